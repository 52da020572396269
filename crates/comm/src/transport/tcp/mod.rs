//! Transport over TCP.
//!
//! Every pair of ranks has a few streams for messages and one control stream per channel. One
//! thread sends and receives on all streams of a round at once, as each becomes ready, so two ranks
//! that send each other more than the network holds do not deadlock. An idle thread first spins,
//! because a message is usually a few microseconds away, and then sleeps until a stream is ready.
//!
//! - [`Connection`]: the streams between two ranks; `frame`: the header in front of a message
//! - `stripe`: how long messages are striped over the streams
//! - `sender`, `receiver`: one peer's half of a round, with the receiver's `inbox` and
//!   `unexpected_queue`
//! - `message_probe`: waiting for a message without receiving it
//! - `control`: the control messages; `verdict_exchange`: agreement on one verdict;
//!   `peer_error`: errors of one peer; `epoch`: continuing on the same streams after a failure
//! - `mpi`: data streams over MPI instead
//! - `emulate`: emulated bandwidth, latency, jitter and packet loss

mod connection;
mod control;
mod emulate;
mod epoch;
mod frame;
pub(crate) mod hostile;
mod inbox;
mod message_probe;
mod mpi;
mod peer_error;
mod receiver;
mod sender;
mod stripe;
mod unexpected_queue;
mod verdict_exchange;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockstep_auth::stream_set::SealedStreamSet;
use lockstep_config::Emulate;
use lockstep_mesh::Rank;
use lockstep_mpi::Process;
use lockstep_platform::{Interest, NetError, Stream, StreamSet, World};

use super::shared::SharedWorld;
use super::{
    Channels, Envelope, EpochChange, FailureState, NUM_CHANNELS, POLL_INTERVAL, Round,
    SLOW_PEER_WARNING, Transport,
};
use crate::error::{CommError, Interruption};
use crate::verdict::Verdict;
pub use connection::{Connection, Connections};
use control::Control;
use emulate::{EmulatedSet, LinkDirection};
use mpi::MpiSet;
use peer_error::PeerError;
use receiver::Receiver;
use sender::Sender;
use verdict_exchange::Liveness;

/// Most bytes that one system call moves, so that no stream starves.
const MAX_CALL_BYTES: usize = 256 << 10;

/// Options of the TCP transport.
#[derive(Debug, Clone, PartialEq)]
pub struct TcpOptions {
    /// How long to spin before sleeping.
    pub spin: Duration,
    /// Most bytes of unexpected messages that are buffered per peer.
    pub max_unexpected_bytes: usize,
    /// Emulated link conditions.
    pub emulate: Emulate,
    /// MPI for the data streams, whose ranks are those of the run.
    pub mpi: Option<Process>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        let spin = Duration::from_micros(50);
        Self { spin, max_unexpected_bytes: 1 << 30, emulate: Emulate::none(), mpi: None }
    }
}

/// One channel of a rank to its TCP peers.
pub struct TcpTransport {
    world: World,
    rank: Rank,
    num_ranks: usize,
    set: Box<dyn StreamSet>,
    links: Vec<Link>,
    /// Index into `links` by rank; `None` without a connection.
    link_of: Vec<Option<usize>>,
    /// Links with unfinished messages in the current round.
    active: Vec<usize>,
    options: TcpOptions,
    /// Most polls before sleeping, and whether the thread yields its core between them.
    max_tries: u32,
    is_crowded: bool,
    /// Number of failures that the ranks have recovered from in place.
    epoch: u64,
    /// Whether this rank ran throughout its current wait.
    liveness: Liveness,
    /// The first failure of any channel of this rank.
    failure: Arc<FailureState>,
    /// Control streams of the other channels, for this rank's failure report.
    control_copies: Vec<ControlCopy>,
}

/// Parameters that all channels of a rank share.
struct Common<'a> {
    world: &'a World,
    /// Index of the channel.
    channel: usize,
    rank: Rank,
    num_local: usize,
    options: &'a TcpOptions,
    /// Emulated links to all ranks; empty without emulation.
    directions: &'a [Arc<Mutex<LinkDirection>>],
    failure: &'a Arc<FailureState>,
}

/// Emulated links to all ranks. All channels share them, as they would share a network.
fn directions(rank: Rank, num_ranks: usize, emulate: &Emulate) -> Vec<Arc<Mutex<LinkDirection>>> {
    let to = |peer: usize| Arc::new(Mutex::new(LinkDirection::new(emulate, rank.0, peer)));
    let num_directions = if emulate.has_links() { num_ranks } else { 0 };
    (0..num_directions).map(to).collect()
}

/// Streams of a channel: all over TCP, or those of data over MPI.
enum Streams {
    Tcp(Box<dyn StreamSet>),
    Mpi(Box<MpiSet>),
}

impl Streams {
    fn set(&mut self) -> &mut dyn StreamSet {
        match self {
            Self::Tcp(set) => &mut **set,
            Self::Mpi(set) => &mut **set,
        }
    }

    /// Adds the data streams to a rank. With MPI those over TCP are closed.
    fn add_data(&mut self, peer: usize, data: Vec<Box<dyn Stream>>) -> Vec<usize> {
        match self {
            Self::Tcp(set) => data.into_iter().map(|stream| set.add(stream)).collect(),
            Self::Mpi(set) => vec![set.add_peer(peer)],
        }
    }

    fn into_set(self) -> Box<dyn StreamSet> {
        match self {
            Self::Tcp(set) => set,
            Self::Mpi(set) => set,
        }
    }
}

/// A peer's control stream on another channel.
type ControlCopy = (Rank, Box<dyn Stream>);

/// State of one peer.
struct Link {
    peer: Rank,
    control: Control,
    sender: Sender,
    receiver: Receiver,
}

impl TcpTransport {
    /// The channels of `rank`. `num_local` is the number of ranks known to be on this host.
    pub fn channels(
        world: &World,
        rank: Rank,
        mut connections: Connections,
        num_local: usize,
        options: &TcpOptions,
    ) -> Result<[Self; NUM_CHANNELS], NetError> {
        // The last two connections of a pair are one for each direction: one rank sends on the
        // connection that the other receives on.
        let [_, _, upward, downward] = &mut connections;
        let lower = rank.0.min(upward.len());
        upward[..lower].swap_with_slice(&mut downward[..lower]);
        let failure = Arc::new(FailureState::default());
        let to_others = |own: usize| -> Result<Vec<ControlCopy>, NetError> {
            let others = connections.iter().enumerate().filter(|(channel, _)| *channel != own);
            let connections = others.flat_map(|(_, channel)| channel.iter().enumerate());
            let present = connections
                .filter_map(|(peer, connection)| Some((Rank(peer), connection.as_ref()?)));
            present.map(|(peer, connection)| Ok((peer, connection.control.try_clone()?))).collect()
        };
        let control_copies = [to_others(0)?, to_others(1)?, to_others(2)?, to_others(3)?];
        let directions = directions(rank, connections[0].len(), &options.emulate);
        let channel = |channel, connections, control_copies| {
            let common = Common {
                world,
                channel,
                rank,
                num_local,
                options,
                directions: &directions,
                failure: &failure,
            };
            Self::channel(&common, connections, control_copies)
        };
        let mut control_copies = control_copies.into_iter().enumerate();
        let mut next = |connections| {
            let (index, copies) = control_copies.next().expect("one list for each channel");
            channel(index, connections, copies)
        };
        let [caller, background, sends, recvs] = connections;
        Ok([next(caller)?, next(background)?, next(sends)?, next(recvs)?])
    }

    /// The channels as a [`Comm`](crate::Comm) takes them.
    pub fn into_channels(channels: [Self; NUM_CHANNELS]) -> Channels {
        Channels::new(channels)
    }

    fn channel(
        common: &Common<'_>,
        connections: Vec<Option<Connection>>,
        control_copies: Vec<ControlCopy>,
    ) -> Result<Self, NetError> {
        let &Common { world, channel, rank, num_local, options, directions, failure } = common;
        let num_ranks = connections.len();
        let sealed = Box::new(SealedStreamSet::new(world.net().stream_set()));
        let mut streams = match options.mpi.clone() {
            Some(process) => Streams::Mpi(Box::new(MpiSet::new(world, sealed, process, channel))),
            None => Streams::Tcp(sealed),
        };
        let mut emulated = Vec::new();
        let mut links = Vec::new();
        let introduction =
            control::encode_introduction(world.processes().own_id(), &world.host().name());
        let mut link_of = vec![None; num_ranks];
        for (peer, connection) in connections.into_iter().enumerate() {
            let Some(connection) = connection else { continue };
            assert!(peer != rank.0 && !connection.data.is_empty(), "a connection to rank {peer}");
            for stream in connection.data.iter().chain([&connection.control]) {
                stream.set_nodelay(true)?;
            }
            let control = Control::new(streams.set().add(connection.control));
            control.send(streams.set(), &introduction);
            let data = streams.add_data(peer, connection.data);
            if let Some(direction) = directions.get(peer) {
                emulated.extend(data.iter().map(|&stream| (stream, Arc::clone(direction))));
            }
            link_of[peer] = Some(links.len());
            links.push(Link {
                peer: Rank(peer),
                control,
                sender: Sender::new(Rank(peer), &data),
                receiver: Receiver::new(Rank(peer), &data, options.max_unexpected_bytes),
            });
        }
        let mut set = streams.into_set();
        if !emulated.is_empty() {
            set = Box::new(EmulatedSet::new(world, set, emulated));
        }
        let spin_policy = world.shared().spin_policy(num_local);
        Ok(Self {
            world: Arc::clone(world),
            rank,
            num_ranks,
            set,
            active: Vec::with_capacity(links.len()),
            links,
            link_of,
            options: options.clone(),
            max_tries: spin_policy.num_spins + spin_policy.num_yields,
            is_crowded: num_local > world.threads().available(),
            epoch: 0,
            liveness: Liveness::default(),
            failure: Arc::clone(failure),
            control_copies,
        })
    }

    /// Whether there is a connection to `rank`.
    pub fn reaches(&self, rank: Rank) -> bool {
        self.link_of[rank.0].is_some()
    }

    /// Posts the messages of a round to and from connected ranks, and ignores the others.
    pub(crate) fn begin(&mut self, round: &mut Round<'_>) -> Result<(), Interruption> {
        self.check_failure()?;
        self.active.clear();
        let to = round.sends.iter().map(|(peer, _)| *peer);
        let from = round.recvs.iter().map(|(peer, _)| *peer);
        for peer in to.chain(from) {
            if let Some(link) = self.link_of[peer.0]
                && !self.active.contains(&link)
            {
                self.active.push(link);
            }
        }
        for index in 0..self.active.len() {
            let link = &mut self.links[self.active[index]];
            link.sender.begin(round);
            if let Err(error) = link.receiver.begin(round) {
                let peer = link.peer;
                return Err(self.fail(peer, error));
            }
        }
        Ok(())
    }

    /// Makes progress without blocking; returns whether any byte moved.
    pub(crate) fn step(&mut self, round: &mut Round<'_>) -> Result<bool, Interruption> {
        let mut has_moved = false;
        for index in (0..self.active.len()).rev() {
            let link = &mut self.links[self.active[index]];
            let set = &mut *self.set;
            let sent = link.sender.step(set, round);
            match sent.and_then(|sent| Ok(link.receiver.step(set, round)? || sent)) {
                Ok(moved) => has_moved |= moved,
                Err(error) => {
                    let peer = link.peer;
                    return Err(self.fail(peer, error));
                }
            }
            if link.sender.is_done() && link.receiver.is_done() {
                if round.recvs.iter().any(|(peer, _)| *peer == link.peer) {
                    (round.arrived)(link.peer);
                }
                self.active.swap_remove(index);
            }
        }
        Ok(has_moved)
    }

    /// Whether every message of the round was sent or received.
    pub(crate) fn is_done(&self) -> bool {
        self.active.is_empty()
    }

    /// The rank that this one waits for: to receive from first, else to send to.
    pub(crate) fn awaited_rank(&self) -> Rank {
        let active = || self.active.iter().map(|&link| &self.links[link]);
        let receiving = active().filter(|link| !link.receiver.is_done()).map(|link| link.peer);
        receiving.min().or_else(|| active().map(|link| link.peer).min()).unwrap_or(self.rank)
    }

    /// Sleeps until a stream is ready or `timeout` has passed. The failure of any rank, in the
    /// round or not, is an interruption.
    pub(crate) fn sleep(&mut self, timeout: Duration) -> Result<(), Interruption> {
        for link in &self.links {
            for stream in link.sender.streams() {
                self.set.watch(stream, Interest::default());
            }
            if let Some(control) = link.control.stream() {
                self.set.watch(control, Interest { read: true, write: false });
            }
        }
        self.liveness.check(self.world.clock().now());
        for link in self.active.iter().map(|&link| &self.links[link]) {
            for stream in link.receiver.waiting() {
                self.set.watch(stream, Interest { read: true, write: false });
            }
            for stream in link.sender.waiting() {
                let read = link.receiver.waiting().any(|other| other == stream);
                self.set.watch(stream, Interest { read, write: true });
            }
        }
        match self.set.wait(None, timeout.min(POLL_INTERVAL)) {
            Ok(true) => self.check_reports(true),
            Ok(false) => self.check_failure(),
            Err(error) => {
                let reason = format!("waiting for streams failed: {error}");
                Err(self.record_failure(Interruption::Lost { peer: self.awaited_rank(), reason }))
            }
        }
    }

    /// Finds a rank that sent a message for this call although the round receives nothing from it:
    /// that rank is in a different call.
    pub(crate) fn find_mismatch(&mut self, expected: &Envelope) -> Result<(), Interruption> {
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if !link.receiver.is_done() {
                continue;
            }
            let found = link.receiver.peek(&mut *self.set).map(|header| header.envelope);
            if let Some(found) = found
                && found.matches(expected)
                && found.signature != expected.signature
            {
                let (peer, theirs) = (link.peer, found.signature);
                return Err(self.record_failure(Interruption::Mismatch {
                    peer,
                    theirs,
                    number: None,
                }));
            }
        }
        Ok(())
    }

    /// The cause of a timeout: an awaited peer is in a later call, or it did not arrive.
    pub(crate) fn timeout_cause(&self, expected: &Envelope) -> Interruption {
        let mut active = self.active.iter().map(|&link| &self.links[link]);
        let ahead = active
            .find_map(|link| Some((link.peer, link.receiver.call_ahead_of(expected)?)))
            .map(|(peer, theirs)| Interruption::Mismatch { peer, theirs, number: None });
        self.record_failure(
            ahead.unwrap_or_else(|| Interruption::Deadline { peer: self.awaited_rank() }),
        )
    }
}

impl Transport for TcpTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn num_ranks(&self) -> usize {
        self.num_ranks
    }

    fn exchange(&mut self, round: &mut Round<'_>, timeout: Duration) -> Result<(), Interruption> {
        let to = round.sends.iter().map(|(peer, _)| *peer);
        let mut peers = to.chain(round.recvs.iter().map(|(peer, _)| *peer));
        assert!(peers.all(|peer| self.reaches(peer)), "every other rank has a connection");
        let result = self.exchange_all(round, timeout);
        result.inspect_err(|_| self.abandon(round))
    }

    fn wait_for_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        assert!(peers.iter().all(|peer| self.reaches(*peer)), "every other rank is connected");
        self.probe_first(peers, envelope, timeout)
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        None
    }

    fn mark_expendable(&self, ranks: &[Rank]) {
        self.failure.mark_expendable(ranks);
    }

    fn agree_on_verdict(&mut self, report: Verdict) -> Verdict {
        self.run_agreement(report)
    }

    fn into_next_epoch(
        mut self: Box<Self>,
        change: &EpochChange<'_>,
    ) -> Result<Box<dyn Transport>, CommError> {
        self.begin_epoch(change);
        Ok(self)
    }

    fn domains(&self) -> Vec<usize> {
        (0..self.num_ranks).collect()
    }

    fn name(&self) -> &'static str {
        if self.options.mpi.is_some() { "mpi" } else { "tcp" }
    }
}

impl TcpTransport {
    fn exchange_all(
        &mut self,
        round: &mut Round<'_>,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        self.begin(round)?;
        let (mut began, mut idle_since, mut has_warned) = (None, None, false);
        let mut num_tries = 0;
        loop {
            let has_moved = self.step(round)?;
            if self.is_done() {
                return Ok(());
            }
            if has_moved {
                (idle_since, num_tries) = (None, 0);
                continue;
            }
            let now = self.world.clock().now();
            let idle = now.saturating_sub(*idle_since.get_or_insert(now));
            if self.keeps_spinning(idle, &mut num_tries) {
                continue;
            }
            if idle >= POLL_INTERVAL {
                self.find_mismatch(&round.envelope)?;
            }
            if idle >= SLOW_PEER_WARNING && !std::mem::replace(&mut has_warned, true) {
                self.warn();
            }
            let elapsed = now.saturating_sub(*began.get_or_insert(now));
            if idle >= timeout || elapsed >= round.total_timeout(timeout) {
                self.check_reports(false)?;
                return Err(self.timeout_cause(&round.envelope));
            }
            self.sleep(timeout.saturating_sub(idle))?;
        }
    }

    /// Whether to poll again instead of sleeping while nothing moves.
    pub(crate) fn keeps_spinning(&self, idle: Duration, num_tries: &mut u32) -> bool {
        *num_tries += 1;
        if idle >= self.options.spin || *num_tries > self.max_tries {
            return false;
        }
        if self.is_crowded {
            self.world.shared().yield_now();
        } else {
            std::hint::spin_loop();
        }
        true
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        if self.failure.has_verdict() {
            // Every rank has received a report instead of a goodbye.
            if let Some(process) = &self.options.mpi {
                // MPI would wait for the lost ranks for ever.
                process.give_up();
            }
        } else {
            let goodbye = control::encode_goodbye();
            self.links.iter().for_each(|link| link.control.send(&mut *self.set, &goodbye));
        }
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpTransport(rank {} of {})", self.rank, self.num_ranks)
    }
}
