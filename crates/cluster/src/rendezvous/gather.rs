//! The host of a meeting point, rank 0 or a process of its own, waits until everybody has come.

use std::io::Write;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, World};

use super::door::{CallerId, Door, Event};
use super::refusals::Log;
use super::wire::{Answer, Hello, Join, Member, Table};
use super::{RendezvousError, new_run};

/// What the host waits for.
pub(super) struct Gathering<'a> {
    pub(super) world: &'a World,
    pub(super) num_ranks: usize,
    /// The run's name.
    pub(super) run: &'a str,
    /// What all ranks must agree on; nothing lets the first that comes decide.
    pub(super) terms: Option<Terms>,
    pub(super) deadline: Deadline,
    pub(super) timeout: Duration,
    /// Where arrivals are told.
    pub(super) log: Option<Log>,
}

/// What all ranks of a run must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) num_streams: u64,
    pub(super) shares_memory: bool,
    pub(super) encrypts: bool,
}

/// A rank that has come.
struct Guest {
    caller: CallerId,
    member: Member,
    terms: Terms,
}

/// Waits for all ranks and sends them the table; rank 0 does not come if it is `own`.
pub(super) fn gather(
    gathering: &Gathering<'_>,
    door: &mut Door,
    own: Option<Member>,
) -> Result<Table, RendezvousError> {
    let first = usize::from(own.is_some());
    let mut guests: Vec<Option<Guest>> = (0..gathering.num_ranks).map(|_| None).collect();
    while guests.iter().skip(first).any(Option::is_none) {
        match door.next(&gathering.deadline) {
            None => return Err(missing(gathering, door, &guests, first)),
            Some(Event::Hello(caller, hello)) => {
                match admit(gathering, door, &guests, first, hello) {
                    Ok((rank, member, terms)) => {
                        if let Some(log) = gathering.log {
                            let (addr, host) = (door.caller_addr(caller), &member.host);
                            log(&format!("rank {rank} came from {addr} ({host})"));
                        }
                        guests[rank] = Some(Guest { caller, member, terms });
                    }
                    Err(reason) => door.refuse(caller, &reason),
                }
            }
            // A rank that left may come again, started anew by its launcher.
            Some(Event::Gone(caller)) => {
                let slot = guests
                    .iter_mut()
                    .find(|slot| slot.as_ref().is_some_and(|guest| guest.caller == caller));
                if let Some(slot) = slot {
                    *slot = None;
                }
            }
        }
    }
    let guests: Vec<Guest> = guests.into_iter().flatten().collect();
    let others = guests.iter().map(|guest| guest.member.clone());
    let members = own.into_iter().chain(others).collect();
    let table = Table { run: new_run(gathering.world), members };
    let answer = Answer::Table(table.clone()).encode();
    for (index, guest) in guests.iter().enumerate() {
        let mut stream = door.take(guest.caller);
        let remaining = gathering.deadline.remaining(gathering.world.clock());
        lockstep_platform::Stream::set_deadline(&mut stream, Some(remaining));
        stream.write_all(&answer).map_err(|error| RendezvousError::Lost {
            peer: Rank(first + index),
            reason: format!("it did not take the list of ranks: {error}"),
        })?;
    }
    Ok(table)
}

/// Whether a caller belongs to this run, and as which rank.
fn admit(
    gathering: &Gathering<'_>,
    door: &Door,
    guests: &[Option<Guest>],
    first: usize,
    hello: Hello,
) -> Result<(usize, Member, Terms), String> {
    let Hello::Join(join) = hello else {
        return Err("it belongs to another run: this one is still gathering".to_owned());
    };
    let Join { rank, num_ranks, num_streams, shares_memory, encrypts, run, member } = join;
    let expected = gathering.num_ranks;
    if run != gathering.run {
        let ours = gathering.run;
        return Err(format!("it belongs to run {run:?} and this is run {ours:?}"));
    }
    if num_ranks != expected as u64 {
        return Err(format!("it expects {num_ranks} ranks and this run has {expected}"));
    }
    let terms = Terms { num_streams, shares_memory, encrypts };
    let settled = guests.iter().flatten().map(|guest| guest.terms).next();
    if let Some(ours) = gathering.terms.or(settled) {
        agree(terms, ours)?;
    }
    let slot = usize::try_from(rank).ok().filter(|rank| (first..expected).contains(rank));
    let Some(slot) = slot else {
        let last = expected - 1;
        return Err(format!("it calls itself rank {rank}, and callers are {first} to {last}"));
    };
    match &guests[slot] {
        Some(guest) => {
            let addr = door.caller_addr(guest.caller);
            Err(format!("rank {rank} has come already, from {addr}"))
        }
        None => Ok((slot, member, terms)),
    }
}

/// Whether a caller would talk to the others as they talk.
fn agree(theirs: Terms, ours: Terms) -> Result<(), String> {
    let (their_streams, our_streams) = (theirs.num_streams, ours.num_streams);
    if their_streams != our_streams {
        return Err(format!("it expects {their_streams} streams and this run uses {our_streams}"));
    }
    if theirs.shares_memory != ours.shares_memory {
        return Err("it differs on whether ranks of one machine share memory".to_owned());
    }
    if theirs.encrypts != ours.encrypts {
        return Err("it differs on whether traffic is encrypted".to_owned());
    }
    Ok(())
}

fn missing(
    gathering: &Gathering<'_>,
    door: &Door,
    guests: &[Option<Guest>],
    first: usize,
) -> RendezvousError {
    let ranks = guests.iter().enumerate().skip(first);
    RendezvousError::Missing {
        missing: ranks.filter(|(_, slot)| slot.is_none()).map(|(rank, _)| Rank(rank)).collect(),
        addr: door.addr(),
        waited_ms: gathering.timeout.as_millis() as u64,
        refused: door.refusals().kept().to_vec(),
    }
}
