//! The rendezvous host, rank 0 or a standalone process, collects all ranks.

use std::io::Write;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, World};

use super::acceptor::{Acceptor, ClientId, Event};
use super::error::ranks as named_ranks;
use super::rejection_log::Log;
use super::wait_log::WaitLog;
use super::wire::{Answer, Hello, Join, PeerInfo, Table};
use super::{RendezvousError, new_run};

/// Ranks and settings that the host expects.
pub(super) struct Registry<'a> {
    pub(super) world: &'a World,
    pub(super) num_ranks: usize,
    /// Name of the run.
    pub(super) run: &'a str,
    /// Settings that all ranks must share; `None` adopts those of the first rank.
    pub(super) shared_settings: Option<SharedSettings>,
    pub(super) deadline: Deadline,
    pub(super) timeout: Duration,
    /// Reports the missing ranks while it waits.
    pub(super) waiting: &'a WaitLog,
    /// Receives a line for each registration.
    pub(super) log: Option<Log>,
}

/// Settings that all ranks of a run must share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedSettings {
    pub(super) num_streams: u64,
    pub(super) shares_memory: bool,
    pub(super) encrypts: bool,
}

/// Registered rank.
struct Registration {
    client: ClientId,
    peer: PeerInfo,
    shared_settings: SharedSettings,
}

/// Waits for all ranks and sends them the table. With `own`, rank 0 is the host itself.
pub(super) fn collect_ranks(
    registry: &Registry<'_>,
    acceptor: &mut Acceptor,
    own: Option<PeerInfo>,
) -> Result<Table, RendezvousError> {
    let first = usize::from(own.is_some());
    let mut ranks: Vec<Option<Registration>> = (0..registry.num_ranks).map(|_| None).collect();
    while ranks.iter().skip(first).any(Option::is_none) {
        let remaining = registry.deadline.remaining(registry.world.clock());
        let until_report = remaining.min(registry.waiting.until_next());
        match acceptor.next(&Deadline::after(registry.world.clock(), until_report)) {
            None if registry.deadline.has_passed(registry.world.clock()) => {
                return Err(missing_error(registry, acceptor, &ranks, first));
            }
            None => registry.waiting.report(|| {
                let missing = named_ranks(&missing_ranks(&ranks, first));
                let (all, addr) = (registry.num_ranks, acceptor.addr());
                format!("waiting for {missing} of {all} at {addr}")
            }),
            Some(Event::Hello(client, hello)) => {
                match admit(registry, acceptor, &ranks, first, hello) {
                    Ok((rank, peer, shared_settings)) => {
                        if let Some(log) = registry.log {
                            let (addr, host) = (acceptor.client_addr(client), &peer.host);
                            log(&format!("rank {rank} joined from {addr} ({host})"));
                        }
                        ranks[rank] = Some(Registration { client, peer, shared_settings });
                    }
                    Err(reason) => acceptor.refuse(client, &reason),
                }
            }
            // The launcher may restart a rank that disconnected.
            Some(Event::Gone(client)) => {
                let slot = ranks.iter_mut().find(|slot| {
                    slot.as_ref().is_some_and(|registration| registration.client == client)
                });
                if let Some(slot) = slot {
                    *slot = None;
                }
            }
        }
    }
    let ranks: Vec<Registration> = ranks.into_iter().flatten().collect();
    let others = ranks.iter().map(|registration| registration.peer.clone());
    let peers = own.into_iter().chain(others).collect();
    let table = Table { run: new_run(registry.world), peers };
    let answer = Answer::Table(table.clone()).encode();
    for (index, registration) in ranks.iter().enumerate() {
        let mut stream = acceptor.take(registration.client);
        let remaining = registry.deadline.remaining(registry.world.clock());
        lockstep_platform::Stream::set_deadline(&mut stream, Some(remaining));
        stream.write_all(&answer).map_err(|error| RendezvousError::Lost {
            peer: Rank(first + index),
            reason: format!("it did not receive the table of ranks: {error}"),
        })?;
    }
    Ok(table)
}

/// Rank of a client of this run; an error is the reason to reject it.
fn admit(
    registry: &Registry<'_>,
    acceptor: &Acceptor,
    ranks: &[Option<Registration>],
    first: usize,
    hello: Hello,
) -> Result<(usize, PeerInfo, SharedSettings), String> {
    let Hello::Join(join) = hello else {
        return Err("it belongs to another run: this one still waits for ranks".to_owned());
    };
    let Join { rank, num_ranks, num_streams, shares_memory, encrypts, run, peer } = join;
    let expected = registry.num_ranks;
    if run != registry.run {
        let ours = registry.run;
        return Err(format!("it belongs to run {run:?} and this is run {ours:?}"));
    }
    if num_ranks != expected as u64 {
        return Err(format!("it expects {num_ranks} ranks and this run has {expected}"));
    }
    let shared_settings = SharedSettings { num_streams, shares_memory, encrypts };
    let settled = ranks.iter().flatten().map(|registration| registration.shared_settings).next();
    if let Some(ours) = registry.shared_settings.or(settled) {
        agree(shared_settings, ours)?;
    }
    let slot = usize::try_from(rank).ok().filter(|rank| (first..expected).contains(rank));
    let Some(slot) = slot else {
        let last = expected - 1;
        return Err(format!("it claims rank {rank}; expected ranks are {first} to {last}"));
    };
    match &ranks[slot] {
        Some(registration) => {
            let addr = acceptor.client_addr(registration.client);
            Err(format!("rank {rank} has joined already, from {addr}"))
        }
        None => Ok((slot, peer, shared_settings)),
    }
}

/// Checks that the settings of a client equal those of the run.
fn agree(theirs: SharedSettings, ours: SharedSettings) -> Result<(), String> {
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

fn missing_ranks(ranks: &[Option<Registration>], first: usize) -> Vec<Rank> {
    let expected = ranks.iter().enumerate().skip(first);
    expected.filter(|(_, slot)| slot.is_none()).map(|(rank, _)| Rank(rank)).collect()
}

fn missing_error(
    registry: &Registry<'_>,
    acceptor: &Acceptor,
    ranks: &[Option<Registration>],
    first: usize,
) -> RendezvousError {
    RendezvousError::Missing {
        missing: missing_ranks(ranks, first),
        addr: acceptor.addr(),
        waited_ms: registry.timeout.as_millis() as u64,
        refused: acceptor.rejections().quoted().to_vec(),
    }
}
