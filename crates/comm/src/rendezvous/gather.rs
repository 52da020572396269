//! Rank 0 waits until everybody has come.

use std::io::Write;

use lockstep_mesh::Rank;

use super::door::{CallerId, Door, Event};
use super::wire::{Answer, Hello, Join, Member, Table};
use super::{Party, RendezvousError, new_run};

/// A rank that has come.
struct Guest {
    caller: CallerId,
    member: Member,
}

/// Waits for all ranks and sends them the table.
pub(super) fn gather(
    party: &Party<'_>,
    door: &mut Door,
    own: Member,
) -> Result<Table, RendezvousError> {
    let num_ranks = party.place.num_ranks;
    let mut guests: Vec<Option<Guest>> = (0..num_ranks).map(|_| None).collect();
    while guests.iter().skip(1).any(Option::is_none) {
        match door.next(&party.deadline) {
            None => return Err(missing(party, door, &guests)),
            Some(Event::Hello(caller, hello)) => match admit(party, door, &guests, hello) {
                Ok((rank, member)) => guests[rank] = Some(Guest { caller, member }),
                Err(reason) => door.refuse(caller, &reason),
            },
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
    let members = std::iter::once(own).chain(others).collect();
    let table = Table { run: new_run(party.world), members };
    let answer = Answer::Table(table.clone()).encode();
    for (index, guest) in guests.iter().enumerate() {
        let mut stream = door.take(guest.caller);
        stream.set_deadline(Some(party.remaining()));
        stream.write_all(&answer).map_err(|error| RendezvousError::Lost {
            peer: Rank(1 + index),
            reason: format!("it did not take the list of ranks: {error}"),
        })?;
    }
    Ok(table)
}

/// Whether a caller belongs to this run, and as which rank.
fn admit(
    party: &Party<'_>,
    door: &Door,
    guests: &[Option<Guest>],
    hello: Hello,
) -> Result<(usize, Member), String> {
    let Hello::Join(join) = hello else {
        return Err("it belongs to another run: this one is still gathering".to_owned());
    };
    let Join { rank, num_ranks, num_streams, shares_memory, member } = join;
    let (settings, expected) = (party.settings, party.place.num_ranks);
    if num_ranks != expected as u64 {
        return Err(format!("it expects {num_ranks} ranks and this run has {expected}"));
    }
    if num_streams != settings.num_streams as u64 {
        let ours = settings.num_streams;
        return Err(format!("it expects {num_streams} streams and this run uses {ours}"));
    }
    if shares_memory != settings.shares_memory {
        return Err("it differs on whether ranks of one machine share memory".to_owned());
    }
    let slot = usize::try_from(rank).ok().filter(|rank| (1..expected).contains(rank));
    let Some(slot) = slot else {
        return Err(format!("it calls itself rank {rank}, and callers are 1 to {}", expected - 1));
    };
    match &guests[slot] {
        Some(guest) => {
            let addr = door.caller_addr(guest.caller);
            Err(format!("rank {rank} has come already, from {addr}"))
        }
        None => Ok((slot, member)),
    }
}

fn missing(party: &Party<'_>, door: &Door, guests: &[Option<Guest>]) -> RendezvousError {
    let ranks = guests.iter().enumerate().skip(1);
    RendezvousError::Missing {
        missing: ranks.filter(|(_, slot)| slot.is_none()).map(|(rank, _)| Rank(rank)).collect(),
        addr: door.addr(),
        waited_ms: party.timeout_ms(),
        refused: door.refused().to_vec(),
    }
}
