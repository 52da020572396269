//! A rank registers at the rendezvous host and receives the table of ranks.

use std::time::Duration;

use super::acceptor::Acceptor;
use super::handshake::{authenticate, protocol_error, send_hello};
use super::rank_env::own_addrs;
use super::wire::{Answer, Hello, Join, PeerInfo, Table};
use super::{JoinContext, RendezvousError, listen_at};

/// First and longest pause between two attempts to reach the host.
const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_millis(250);

/// Shortest time for a connection to be accepted; a report of the wait may be late by it.
const MIN_CONNECT: Duration = Duration::from_secs(1);

/// Registers at the host, which may start later, and waits for the table.
pub(super) fn register(
    context: &JoinContext<'_>,
    own: &PeerInfo,
) -> Result<(Acceptor, Table), RendezvousError> {
    let mut retry = FIRST_RETRY;
    loop {
        let reason = match attempt(context, own) {
            Err(Failure::Retry(reason)) => reason,
            Err(Failure::Final(error)) => return Err(error),
            Ok(done) => return Ok(done),
        };
        let remaining = context.remaining();
        context.waiting.report(|| {
            let (rank, host) = (context.rank_env.rank, context.rank_env.host());
            let addr = &context.rank_env.master;
            format!("rank {rank} waits for {host} at {addr}, {reason} (is it started?)")
        });
        if remaining.is_zero() {
            let (addr, waited_ms) = (context.rank_env.master.clone(), context.timeout_ms());
            let who = context.rank_env.host();
            return Err(RendezvousError::Unreachable { who, addr, waited_ms, reason });
        }
        context.world.clock().sleep(retry.min(remaining));
        retry = (2 * retry).min(LAST_RETRY);
    }
}

/// Failure of an attempt; `Retry` may succeed later.
enum Failure {
    Retry(String),
    Final(RendezvousError),
}

fn attempt(context: &JoinContext<'_>, own: &PeerInfo) -> Result<(Acceptor, Table), Failure> {
    let net = context.world.net();
    let master = &context.rank_env.master;
    let timeout = context.remaining().min(context.waiting.until_next().max(MIN_CONNECT));
    let stream = net.connect(master, timeout);
    let stream = stream.map_err(|error| Failure::Retry(error.reason().to_owned()))?;
    let (candidates, found_at) = own_addrs(master, &stream.local_addr());
    let listener = listen_at(context.world, &candidates).map_err(Failure::Final)?;
    let addr = listener.local_addr();
    let addr = match (found_at, addr.rsplit_once(':')) {
        (Some(host), Some((_, port))) => format!("{host}:{port}"),
        _ => addr,
    };
    let hello = Hello::Join(Join {
        rank: context.rank_env.rank.0 as u64,
        num_ranks: context.rank_env.num_ranks as u64,
        num_streams: context.settings.num_streams as u64,
        shares_memory: context.settings.shares_memory,
        encrypts: context.settings.encrypt,
        run: context.rank_env.ticket.run.clone(),
        peer: PeerInfo { addr, ..own.clone() },
    });
    let host = context.rank_env.host();
    let answer = authenticate(context, stream, host)
        .and_then(|mut s| send_hello(context, &mut s, host, &hello));
    match answer {
        Ok(Answer::Table(table)) => Ok((context.acceptor(listener), table)),
        Ok(_) => Err(Failure::Final(protocol_error(host, "unexpected answer"))),
        Err(RendezvousError::Lost { reason, .. }) => Err(Failure::Retry(reason)),
        Err(error) => Err(Failure::Final(error)),
    }
}
