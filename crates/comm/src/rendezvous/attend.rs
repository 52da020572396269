//! The other ranks come to rank 0, and ranks talk to each other.

use std::io::ErrorKind;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::Stream;

use super::door::Door;
use super::place::own_addrs;
use super::wire::{Answer, FRONT_BYTES, Hello, Join, Member, Table};
use super::{Party, RendezvousError, listen_at};

/// Time between two attempts to reach rank 0, at first and at most.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_millis(250);

/// Calls rank 0, which may not be there yet, until the table arrives.
pub(super) fn attend(party: &Party<'_>, own: &Member) -> Result<(Door, Table), RendezvousError> {
    let mut retry = FIRST_RETRY;
    loop {
        let reason = match attempt(party, own) {
            Err(Failure::Again(reason)) => reason,
            Err(Failure::Final(error)) => return Err(error),
            Ok(done) => return Ok(done),
        };
        let remaining = party.remaining();
        if remaining.is_zero() {
            let (addr, waited_ms) = (party.place.master.clone(), party.timeout_ms());
            return Err(RendezvousError::Unreachable { addr, waited_ms, reason });
        }
        party.world.clock().sleep(retry.min(remaining));
        retry = (2 * retry).min(LAST_RETRY);
    }
}

/// Why an attempt failed, and whether another one may do better.
enum Failure {
    Again(String),
    Final(RendezvousError),
}

fn attempt(party: &Party<'_>, own: &Member) -> Result<(Door, Table), Failure> {
    let net = party.world.net();
    let master = &party.place.master;
    let again = |error: &dyn std::error::Error| Failure::Again(error.to_string());
    let mut stream = net.connect(master, party.remaining()).map_err(|error| again(&error))?;
    let (candidates, found_at) = own_addrs(master, &stream.local_addr());
    let listener = listen_at(party.world, &candidates).map_err(Failure::Final)?;
    let addr = listener.local_addr();
    let addr = match (found_at, addr.rsplit_once(':')) {
        (Some(host), Some((_, port))) => format!("{host}:{port}"),
        _ => addr,
    };
    let hello = Hello::Join(Join {
        rank: party.place.rank.0 as u64,
        num_ranks: party.place.num_ranks as u64,
        num_streams: party.settings.num_streams as u64,
        shares_memory: party.settings.shares_memory,
        member: Member { addr, ..own.clone() },
    });
    match ask(party, &mut *stream, Rank(0), &hello) {
        Ok(Answer::Table(table)) => {
            Ok((Door::new(party.world, listener, party.num_callers()), table))
        }
        Ok(_) => Err(Failure::Final(strange(Rank(0), "it answered with something else"))),
        Err(RendezvousError::Lost { reason, .. }) => Err(Failure::Again(reason)),
        Err(error) => Err(Failure::Final(error)),
    }
}

/// Says hello and waits for the answer; a refusal is an error.
pub(super) fn ask(
    party: &Party<'_>,
    stream: &mut dyn Stream,
    peer: Rank,
    hello: &Hello,
) -> Result<Answer, RendezvousError> {
    stream.set_deadline(Some(party.remaining()));
    let num_ranks = party.place.num_ranks;
    let mut front = [0; FRONT_BYTES];
    let mut exchange = || -> std::io::Result<_> {
        stream.write_all(&hello.encode())?;
        stream.read_exact(&mut front)?;
        let (kind, len) = match Answer::read_front(&front, num_ranks) {
            Ok(front) => front,
            Err(malformed) => return Ok(Err(malformed)),
        };
        let mut body = vec![0; len];
        stream.read_exact(&mut body)?;
        Ok(Answer::decode(kind, &body, num_ranks))
    };
    match exchange() {
        Ok(Ok(Answer::Refused(reason))) => Err(RendezvousError::Refused { by: peer, reason }),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(malformed)) => Err(strange(peer, &malformed.0)),
        Err(error) => Err(lost(peer, &error)),
    }
}

pub(super) fn lost(peer: Rank, error: &std::io::Error) -> RendezvousError {
    let reason = match error.kind() {
        ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "the connection broke".to_owned(),
        _ => error.to_string(),
    };
    RendezvousError::Lost { peer, reason }
}

/// What a peer sent is not what a rank would send, so trying again is no use.
fn strange(peer: Rank, reason: &str) -> RendezvousError {
    RendezvousError::Refused { by: peer, reason: format!("its answer is not understood: {reason}") }
}
