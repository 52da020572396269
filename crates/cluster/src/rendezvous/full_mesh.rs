//! Connects every pair of ranks.
//!
//! A rank first connects to all lower ranks, one after the other and stream by stream, and then
//! accepts the higher ones. This cannot deadlock: rank 0 accepts at once, rank 1 waits for rank 0
//! only, and so on.

use std::io::{Read, Write};

use lockstep_mesh::Rank;
use lockstep_platform::{LocalListener, Stream};

use super::acceptor::{Acceptor, Event};
use super::error::Side;
use super::handshake::{authenticate, lost, send_hello};
use super::wire::{Answer, Hello, Pair, RunId, Table};
use super::{ConnectedRank, JoinContext, RendezvousError, run_name};
use lockstep_comm::transport::NUM_CHANNELS;
use lockstep_comm::transport::tcp::{Connection, Connections};

/// All streams of a pair, grouped by channel; the first stream of a channel is for control.
type Streams = Vec<Option<Box<dyn Stream>>>;

/// Connects this rank to all others.
pub(super) fn connect(
    context: &JoinContext<'_>,
    mut acceptor: Acceptor,
    table: Table,
) -> Result<ConnectedRank, RendezvousError> {
    // The local name must exist before any peer looks for it.
    let local_name = open_local_name(context, &table.run);
    let mut all: Vec<Streams> = (0..context.rank_env.num_ranks).map(|_| Vec::new()).collect();
    for peer in (0..context.rank_env.rank.0).map(Rank) {
        all[peer.0] = connect_to(context, &table, peer)?;
    }
    accept_all(context, &mut acceptor, &table.run, &mut all)?;
    let domains = if context.settings.shares_memory {
        find_domains(context, &table.run, &mut all)?
    } else {
        (0..context.rank_env.num_ranks).collect()
    };
    drop(local_name);
    let mut connections: Connections = [0; NUM_CHANNELS].map(|_| Vec::new());
    for streams in all {
        let mut streams = streams.into_iter().map(|stream| stream.expect("all are connected"));
        for channel in &mut connections {
            channel.push(connection(context, &mut streams)?);
        }
    }
    Ok(context.joined(table, connections, domains))
}

fn num_streams(context: &JoinContext<'_>) -> usize {
    NUM_CHANNELS * (1 + context.settings.num_streams)
}

/// Opens all streams to a lower rank.
fn connect_to(
    context: &JoinContext<'_>,
    table: &Table,
    peer: Rank,
) -> Result<Streams, RendezvousError> {
    let addr = match &table.peers[peer.0].addr {
        // Rank 0 listens at the rendezvous address unless a standalone host does.
        none if none.is_empty() => &context.rank_env.master,
        addr => addr,
    };
    let open = |stream| open(context, addr, table.run, peer, stream).map(Some);
    (0..num_streams(context)).map(open).collect()
}

/// Opens one stream. An acceptor with too many pending connections may drop this one before its
/// hello, so a lost connection is retried.
fn open(
    context: &JoinContext<'_>,
    addr: &str,
    run: RunId,
    peer: Rank,
    stream: usize,
) -> Result<Box<dyn Stream>, RendezvousError> {
    const MAX_TRIES: usize = 5;
    let by = Side::Rank(peer);
    let hello =
        Hello::Pair(Pair { run, rank: context.rank_env.rank.0 as u64, stream: stream as u64 });
    let mut num_tries = 0;
    loop {
        num_tries += 1;
        let connected = context.world.net().connect(addr, context.remaining());
        let connected =
            connected.map_err(|error| RendezvousError::Lost { peer, reason: error.to_string() })?;
        let answer = authenticate(context, connected, by)
            .and_then(|mut stream| Ok((send_hello(context, &mut stream, by, &hello)?, stream)));
        match answer {
            Ok((Answer::Welcome, stream)) => return Ok(stream.proceed(context.settings.encrypt)),
            Ok(_) => {
                let reason = "unexpected answer".to_owned();
                return Err(RendezvousError::Lost { peer, reason });
            }
            Err(RendezvousError::Lost { .. }) if num_tries < MAX_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Accepts all streams from higher ranks.
fn accept_all(
    context: &JoinContext<'_>,
    acceptor: &mut Acceptor,
    run: &RunId,
    all: &mut [Streams],
) -> Result<(), RendezvousError> {
    let first = context.rank_env.rank.0 + 1;
    for streams in &mut all[first..] {
        streams.resize_with(num_streams(context), || None);
    }
    while all[first..].iter().flatten().any(Option::is_none) {
        let (client, hello) = match acceptor.next(&context.deadline) {
            Some(Event::Hello(client, hello)) => (client, hello),
            // Every client is answered at once, so none disconnects in between.
            Some(Event::Gone(_)) => continue,
            None => return Err(missing(context, acceptor, all)),
        };
        match admit(run, hello, all, first) {
            Ok((peer, stream)) => {
                let mut connected = acceptor.take(client);
                connected.set_deadline(Some(context.remaining()));
                connected
                    .write_all(&Answer::Welcome.encode())
                    .map_err(|error| lost(Side::Rank(Rank(peer)), &error))?;
                all[peer][stream] = Some(connected.proceed(context.settings.encrypt));
            }
            Err(reason) => acceptor.refuse(client, &reason),
        }
    }
    Ok(())
}

/// Rank and stream of an expected client; an error is the reason to reject it.
fn admit(
    run: &RunId,
    hello: Hello,
    all: &[Streams],
    first: usize,
) -> Result<(usize, usize), String> {
    let Hello::Pair(pair) = hello else {
        return Err("all ranks of this run have joined".to_owned());
    };
    if pair.run != *run {
        return Err("it belongs to another run".to_owned());
    }
    let peer = usize::try_from(pair.rank).ok().filter(|peer| (first..all.len()).contains(peer));
    let Some(peer) = peer else {
        return Err(format!("rank {} does not connect to this rank", pair.rank));
    };
    let stream = usize::try_from(pair.stream).ok();
    match stream.and_then(|stream| Some((stream, all[peer].get(stream)?))) {
        Some((stream, None)) => Ok((peer, stream)),
        Some((stream, Some(_))) => {
            Err(format!("stream {stream} of rank {peer} is connected already"))
        }
        None => Err(format!("there is no stream {}", pair.stream)),
    }
}

fn missing(context: &JoinContext<'_>, acceptor: &Acceptor, all: &[Streams]) -> RendezvousError {
    let is_missing = |streams: &Streams| streams.iter().any(Option::is_none);
    let ranks = all.iter().enumerate().filter(|(_, streams)| is_missing(streams));
    RendezvousError::Missing {
        missing: ranks.map(|(rank, _)| Rank(rank)).collect(),
        addr: acceptor.addr(),
        waited_ms: context.timeout_ms(),
        refused: acceptor.rejections().quoted().to_vec(),
    }
}

/// Name of the local socket of a rank, which only ranks of the same machine can reach.
fn local_name(run: &RunId, rank: Rank) -> String {
    format!("lockstep/{}/neighbour/{rank}", run_name(run))
}

fn open_local_name(context: &JoinContext<'_>, run: &RunId) -> Option<Box<dyn LocalListener>> {
    let name = local_name(run, context.rank_env.rank);
    // Without local sockets there is no shared memory; TCP is used.
    context.settings.shares_memory.then(|| context.world.shared().listen(&name).ok()).flatten()
}

/// Groups ranks by machine. The higher rank of each pair tries the local socket of the lower one
/// and sends it the result. Then every rank sends the lowest rank of its machine to all others, and
/// the answers must agree.
fn find_domains(
    context: &JoinContext<'_>,
    run: &RunId,
    all: &mut [Streams],
) -> Result<Vec<usize>, RendezvousError> {
    let own = context.rank_env.rank.0;
    let mut is_local = vec![false; all.len()];
    is_local[own] = true;
    for peer in 0..own {
        let name = local_name(run, Rank(peer));
        is_local[peer] = context.world.shared().connect(&name, context.remaining()).is_ok();
        send_number(context, Rank(peer), &mut all[peer], u64::from(is_local[peer]))?;
    }
    for peer in own + 1..all.len() {
        is_local[peer] = recv_number(context, Rank(peer), &mut all[peer])? == 1;
    }
    let lowest = is_local.iter().position(|&is_local| is_local).expect("this rank is one");
    let mut domains = vec![lowest; all.len()];
    for peer in (0..all.len()).filter(|&peer| peer != own) {
        send_number(context, Rank(peer), &mut all[peer], lowest as u64)?;
    }
    for peer in (0..all.len()).filter(|&peer| peer != own) {
        let theirs = usize::try_from(recv_number(context, Rank(peer), &mut all[peer])?);
        domains[peer] = theirs.unwrap_or(usize::MAX);
        if (domains[peer] == lowest) != is_local[peer] || domains[peer] > peer {
            let reason = "it disagrees on which ranks share a machine".to_owned();
            return Err(RendezvousError::Lost { peer: Rank(peer), reason });
        }
    }
    Ok(domains)
}

/// Sends a number over the first control stream.
fn send_number(
    context: &JoinContext<'_>,
    peer: Rank,
    streams: &mut Streams,
    number: u64,
) -> Result<(), RendezvousError> {
    let control = streams[0].as_mut().expect("connected before");
    control.set_deadline(Some(context.remaining()));
    control.write_all(&number.to_le_bytes()).map_err(|error| lost(Side::Rank(peer), &error))
}

/// Receives a number over the first control stream.
fn recv_number(
    context: &JoinContext<'_>,
    peer: Rank,
    streams: &mut Streams,
) -> Result<u64, RendezvousError> {
    let control = streams[0].as_mut().expect("connected before");
    control.set_deadline(Some(context.remaining()));
    let mut number = [0; 8];
    control.read_exact(&mut number).map_err(|error| lost(Side::Rank(peer), &error))?;
    Ok(u64::from_le_bytes(number))
}

/// Configures the streams of one channel of a pair; `None` for this rank itself.
fn connection(
    context: &JoinContext<'_>,
    streams: &mut dyn Iterator<Item = Box<dyn Stream>>,
) -> Result<Option<Connection>, RendezvousError> {
    let Some(control) = streams.next() else { return Ok(None) };
    let data: Vec<Box<dyn Stream>> = streams.take(context.settings.num_streams).collect();
    for stream in data.iter().chain([&control]) {
        stream.set_nodelay(true)?;
        stream.set_keepalive_timeout(context.settings.keepalive_timeout)?;
    }
    Ok(Some(Connection { control, data }))
}
