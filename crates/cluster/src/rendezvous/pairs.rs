//! Every pair of ranks connects.
//!
//! A rank first calls all lower ranks, one after the other and stream by stream, and then answers
//! the higher ones. Nobody waits in a circle: rank 0 calls nobody and answers at once, rank 1 waits
//! for rank 0 only, and so on.

use std::io::{Read, Write};

use lockstep_mesh::Rank;
use lockstep_platform::{LocalListener, Stream};

use super::door::{Door, Event};
use super::error::Side;
use super::greet::{ask, greet, lost};
use super::wire::{Answer, Hello, Pair, RunId, Table};
use super::{Joined, Party, RendezvousError, run_name};
use lockstep_comm::transport::NUM_CHANNELS;
use lockstep_comm::transport::tcp::{Connection, Connections};

/// All streams of a pair, lane after lane; the first of each lane is for control.
type Streams = Vec<Option<Box<dyn Stream>>>;

/// Connects this rank to all others.
pub(super) fn connect(
    party: &Party<'_>,
    mut door: Door,
    table: Table,
) -> Result<Joined, RendezvousError> {
    // Whoever gets an answer from this rank can already find its local name.
    let local_name = open_local_name(party, &table.run);
    let mut all: Vec<Streams> = (0..party.place.num_ranks).map(|_| Vec::new()).collect();
    for peer in (0..party.place.rank.0).map(Rank) {
        all[peer.0] = call(party, &table, peer)?;
    }
    answer_all(party, &mut door, &table.run, &mut all)?;
    let domains = if party.settings.shares_memory {
        find_domains(party, &table.run, &mut all)?
    } else {
        (0..party.place.num_ranks).collect()
    };
    drop(local_name);
    let mut connections: Connections = [0; NUM_CHANNELS].map(|_| Vec::new());
    for streams in all {
        let mut streams = streams.into_iter().map(|stream| stream.expect("all are connected"));
        for channel in &mut connections {
            channel.push(connection(party, &mut streams)?);
        }
    }
    Ok(party.joined(table, connections, domains))
}

fn num_streams(party: &Party<'_>) -> usize {
    NUM_CHANNELS * (1 + party.settings.num_streams)
}

/// Opens all streams to a lower rank.
fn call(party: &Party<'_>, table: &Table, peer: Rank) -> Result<Streams, RendezvousError> {
    let addr = match &table.members[peer.0].addr {
        // Rank 0 is where the others met, unless somebody else was the host there.
        none if none.is_empty() => &party.place.master,
        addr => addr,
    };
    let open = |stream| open(party, addr, table.run, peer, stream).map(Some);
    (0..num_streams(party)).map(open).collect()
}

/// Opens one stream. A door that is crowded by strangers may turn away whoever has not said hello
/// yet, so that is tried again; a rank that is gone is gone.
fn open(
    party: &Party<'_>,
    addr: &str,
    run: RunId,
    peer: Rank,
    stream: usize,
) -> Result<Box<dyn Stream>, RendezvousError> {
    const MAX_TRIES: usize = 5;
    let by = Side::Rank(peer);
    let hello = Hello::Pair(Pair { run, rank: party.place.rank.0 as u64, stream: stream as u64 });
    let mut num_tries = 0;
    loop {
        num_tries += 1;
        let connected = party.world.net().connect(addr, party.remaining());
        let connected =
            connected.map_err(|error| RendezvousError::Lost { peer, reason: error.to_string() })?;
        let asked = greet(party, connected, by)
            .and_then(|mut stream| Ok((ask(party, &mut stream, by, &hello)?, stream)));
        match asked {
            Ok((Answer::Welcome, stream)) => return Ok(stream.proceed(party.settings.encrypt)),
            Ok(_) => {
                let reason = "it answered with something else".to_owned();
                return Err(RendezvousError::Lost { peer, reason });
            }
            Err(RendezvousError::Lost { .. }) if num_tries < MAX_TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Answers all streams from higher ranks.
fn answer_all(
    party: &Party<'_>,
    door: &mut Door,
    run: &RunId,
    all: &mut [Streams],
) -> Result<(), RendezvousError> {
    let first = party.place.rank.0 + 1;
    for streams in &mut all[first..] {
        streams.resize_with(num_streams(party), || None);
    }
    while all[first..].iter().flatten().any(Option::is_none) {
        let (caller, hello) = match door.next(&party.deadline) {
            Some(Event::Hello(caller, hello)) => (caller, hello),
            // Every caller is answered or refused at once, so none can leave in between.
            Some(Event::Gone(_)) => continue,
            None => return Err(missing(party, door, all)),
        };
        match admit(run, hello, all, first) {
            Ok((peer, stream)) => {
                let mut connected = door.take(caller);
                connected.set_deadline(Some(party.remaining()));
                connected
                    .write_all(&Answer::Welcome.encode())
                    .map_err(|error| lost(Side::Rank(Rank(peer)), &error))?;
                all[peer][stream] = Some(connected.proceed(party.settings.encrypt));
            }
            Err(reason) => door.refuse(caller, &reason),
        }
    }
    Ok(())
}

/// Whether a caller is expected, and as which stream of which rank.
fn admit(
    run: &RunId,
    hello: Hello,
    all: &[Streams],
    first: usize,
) -> Result<(usize, usize), String> {
    let Hello::Pair(pair) = hello else {
        return Err("this run is complete: nobody else can join it".to_owned());
    };
    if pair.run != *run {
        return Err("it belongs to another run".to_owned());
    }
    let peer = usize::try_from(pair.rank).ok().filter(|peer| (first..all.len()).contains(peer));
    let Some(peer) = peer else {
        return Err(format!("rank {} is not expected to call here", pair.rank));
    };
    let stream = usize::try_from(pair.stream).ok();
    match stream.and_then(|stream| Some((stream, all[peer].get(stream)?))) {
        Some((stream, None)) => Ok((peer, stream)),
        Some((stream, Some(_))) => Err(format!("stream {stream} of rank {peer} is there already")),
        None => Err(format!("there is no stream {}", pair.stream)),
    }
}

fn missing(party: &Party<'_>, door: &Door, all: &[Streams]) -> RendezvousError {
    let is_missing = |streams: &Streams| streams.iter().any(Option::is_none);
    let ranks = all.iter().enumerate().filter(|(_, streams)| is_missing(streams));
    RendezvousError::Missing {
        missing: ranks.map(|(rank, _)| Rank(rank)).collect(),
        addr: door.addr(),
        waited_ms: party.timeout_ms(),
        refused: door.refusals().kept().to_vec(),
    }
}

/// The name under which ranks of the same machine, and nobody else, find this rank.
fn local_name(run: &RunId, rank: Rank) -> String {
    format!("lockstep/{}/neighbour/{rank}", run_name(run))
}

fn open_local_name(party: &Party<'_>, run: &RunId) -> Option<Box<dyn LocalListener>> {
    let name = local_name(run, party.place.rank);
    // Where such names cannot be had no memory can be shared either, and the network will do.
    party.settings.shares_memory.then(|| party.world.shared().listen(&name).ok()).flatten()
}

/// Finds out who shares a machine with whom. The higher rank of each pair looks for the lower one
/// and tells it; then everybody tells everybody the lowest rank of its machine, and that must fit.
fn find_domains(
    party: &Party<'_>,
    run: &RunId,
    all: &mut [Streams],
) -> Result<Vec<usize>, RendezvousError> {
    let own = party.place.rank.0;
    let mut is_local = vec![false; all.len()];
    is_local[own] = true;
    for peer in 0..own {
        let name = local_name(run, Rank(peer));
        is_local[peer] = party.world.shared().connect(&name, party.remaining()).is_ok();
        tell(party, Rank(peer), &mut all[peer], u64::from(is_local[peer]))?;
    }
    for peer in own + 1..all.len() {
        is_local[peer] = hear(party, Rank(peer), &mut all[peer])? == 1;
    }
    let lowest = is_local.iter().position(|&is_local| is_local).expect("this rank is one");
    let mut domains = vec![lowest; all.len()];
    for peer in (0..all.len()).filter(|&peer| peer != own) {
        tell(party, Rank(peer), &mut all[peer], lowest as u64)?;
    }
    for peer in (0..all.len()).filter(|&peer| peer != own) {
        let theirs = usize::try_from(hear(party, Rank(peer), &mut all[peer])?);
        domains[peer] = theirs.unwrap_or(usize::MAX);
        if (domains[peer] == lowest) != is_local[peer] || domains[peer] > peer {
            let reason = "it has another opinion on who shares a machine".to_owned();
            return Err(RendezvousError::Lost { peer: Rank(peer), reason });
        }
    }
    Ok(domains)
}

/// Sends a number over the first control stream.
fn tell(
    party: &Party<'_>,
    peer: Rank,
    streams: &mut Streams,
    number: u64,
) -> Result<(), RendezvousError> {
    let control = streams[0].as_mut().expect("connected before");
    control.set_deadline(Some(party.remaining()));
    control.write_all(&number.to_le_bytes()).map_err(|error| lost(Side::Rank(peer), &error))
}

/// Receives a number over the first control stream.
fn hear(party: &Party<'_>, peer: Rank, streams: &mut Streams) -> Result<u64, RendezvousError> {
    let control = streams[0].as_mut().expect("connected before");
    control.set_deadline(Some(party.remaining()));
    let mut number = [0; 8];
    control.read_exact(&mut number).map_err(|error| lost(Side::Rank(peer), &error))?;
    Ok(u64::from_le_bytes(number))
}

/// Makes the streams of one lane of a pair ready for use; this rank itself has none.
fn connection(
    party: &Party<'_>,
    streams: &mut dyn Iterator<Item = Box<dyn Stream>>,
) -> Result<Option<Connection>, RendezvousError> {
    let Some(control) = streams.next() else { return Ok(None) };
    let data: Vec<Box<dyn Stream>> = streams.take(party.settings.num_streams).collect();
    for stream in data.iter().chain([&control]) {
        stream.set_nodelay(true)?;
        stream.set_keepalive_timeout(party.settings.silence_limit)?;
    }
    Ok(Some(Connection { control, data }))
}
