//! The other ranks come to the meeting point.

use std::time::Duration;

use super::door::Door;
use super::greet::{ask, greet, strange};
use super::place::own_addrs;
use super::wire::{Answer, Hello, Join, Member, Table};
use super::{Party, RendezvousError, listen_at};

/// Time between two attempts to reach the host, at first and at most.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_millis(250);

/// Calls the host, which may not be there yet, until the table arrives.
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
            let who = party.place.host();
            return Err(RendezvousError::Unreachable { who, addr, waited_ms, reason });
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
    let stream = net.connect(master, party.remaining()).map_err(|error| again(&error))?;
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
        encrypts: party.settings.encrypt,
        run: party.place.ticket.run.clone(),
        member: Member { addr, ..own.clone() },
    });
    let host = party.place.host();
    let asked = greet(party, stream, host).and_then(|mut s| ask(party, &mut s, host, &hello));
    match asked {
        Ok(Answer::Table(table)) => Ok((party.door(listener), table)),
        Ok(_) => Err(Failure::Final(strange(host, "it answered with something else"))),
        Err(RendezvousError::Lost { reason, .. }) => Err(Failure::Again(reason)),
        Err(error) => Err(Failure::Final(error)),
    }
}
