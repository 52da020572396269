//! Ranks that are connected by TCP.
//!
//! Every pair of ranks has a few streams for messages and one for control. One thread does it all:
//! it sends and receives on every stream of a round at once, whatever each of them is ready for,
//! so that two ranks which send each other more than the network can hold never wait for each
//! other. When nothing moves it tries again for a short while, because a message is usually a few
//! microseconds away, and then sleeps until some stream is ready.
//!
//! - [`Cable`]: the streams between two ranks; `frame`: the header in front of a message
//! - `stripe`: how long messages are spread over the streams
//! - `sending`, `receiving`: one peer's half of a round; `inbox` and `early` are for the receiver
//! - `control`: the words beside the messages; `settling`: one verdict for all; `trouble`: what can
//!   be wrong with a peer; `renewing`: the same streams in the next epoch
//! - `emulate`: a link made worse than it is
//! - `waiting`: whoever sends first

mod cable;
mod control;
mod early;
mod emulate;
mod frame;
pub(crate) mod hostile;
mod inbox;
mod receiving;
mod renewing;
mod sending;
mod settling;
mod stripe;
mod trouble;
mod waiting;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockstep_config::Emulate;
use lockstep_mesh::Rank;
use lockstep_platform::{Interest, NetError, Stream, StreamSet, World};

use super::shared::SharedWorld;
use super::{Envelope, NUM_LANES, Renewal, Round, Transport, Wires};
use crate::error::{CommError, Interruption};
use crate::secret::set::SealedSet;
use crate::verdict::Verdict;
pub use cable::{Cable, Cables};
use control::Control;
use emulate::{EmulatedSet, Way};
use receiving::Receiver;
use sending::Sender;
use settling::Awake;
pub(crate) use settling::{Fate, WARNING};
use trouble::Trouble;

/// Bytes that one call of the system moves at most, so that no stream is kept waiting for long.
const MAX_CALL_BYTES: usize = 256 << 10;

/// The longest sleep without a look at how the rank's other lane is doing.
pub(crate) const LOOK_AROUND: Duration = Duration::from_millis(20);

/// What can be set about TCP.
#[derive(Debug, Clone, PartialEq)]
pub struct TcpOptions {
    /// How long to try again before sleeping.
    pub spin: Duration,
    /// Bytes that one peer may send before they are asked for, at most.
    pub max_early_bytes: usize,
    /// What links are made to be like, where they are not left as they are.
    pub emulate: Emulate,
}

impl Default for TcpOptions {
    fn default() -> Self {
        let spin = Duration::from_micros(50);
        Self { spin, max_early_bytes: 1 << 30, emulate: Emulate::none() }
    }
}

/// One lane of a rank's wires to ranks that are reached by TCP.
pub struct TcpTransport {
    world: World,
    rank: Rank,
    num_ranks: usize,
    set: Box<dyn StreamSet>,
    links: Vec<Link>,
    /// Which links each rank has, if any.
    link_of: Vec<Option<usize>>,
    /// Links that the current round is not done with.
    active: Vec<usize>,
    options: TcpOptions,
    /// Tries before sleeping, at most, and whether the core is given away between them.
    max_tries: u32,
    is_crowded: bool,
    /// Which of the groups of ranks this is that were formed one after the other.
    epoch: u64,
    /// Since when this rank waits without having been frozen.
    awake: Awake,
    /// The first failure of any lane of this rank; messages may be torn after it.
    fate: Arc<Fate>,
    /// Where to make statements to everybody on the other lanes.
    heralds: Vec<Herald>,
}

/// What the lanes of a rank have in common.
struct Common<'a> {
    world: &'a World,
    rank: Rank,
    num_local: usize,
    options: &'a TcpOptions,
    /// What the links to all ranks are made to be like; empty where they are left as they are.
    ways: &'a [Arc<Mutex<Way>>],
    fate: &'a Arc<Fate>,
}

/// The ways to all ranks, which the lanes share as they share a network.
fn ways(rank: Rank, num_ranks: usize, emulate: &Emulate) -> Vec<Arc<Mutex<Way>>> {
    let to = |peer: usize| Arc::new(Mutex::new(Way::new(emulate, rank.0, peer)));
    let num_ways = if emulate.has_links() { num_ranks } else { 0 };
    (0..num_ways).map(to).collect()
}

/// A peer's control stream on another lane.
type Herald = (Rank, Box<dyn Stream>);

/// Everything about one peer.
struct Link {
    peer: Rank,
    control: Control,
    sender: Sender,
    receiver: Receiver,
}

impl TcpTransport {
    /// The wires of `rank`. `num_local` is how many ranks share this machine, as far as is known.
    pub fn lanes(
        world: &World,
        rank: Rank,
        mut cables: Cables,
        num_local: usize,
        options: &TcpOptions,
    ) -> Result<[Self; NUM_LANES], NetError> {
        // The last two cables of a pair are one for each direction: what one rank sends by, the
        // other receives by.
        let [_, _, upward, downward] = &mut cables;
        let lower = rank.0.min(upward.len());
        upward[..lower].swap_with_slice(&mut downward[..lower]);
        let fate = Arc::new(Fate::default());
        let to_others = |own: usize| -> Result<Vec<Herald>, NetError> {
            let others = cables.iter().enumerate().filter(|(lane, _)| *lane != own);
            let cables = others.flat_map(|(_, lane)| lane.iter().enumerate());
            let present = cables.filter_map(|(peer, cable)| Some((Rank(peer), cable.as_ref()?)));
            present.map(|(peer, cable)| Ok((peer, cable.control.try_clone()?))).collect()
        };
        let heralds = [to_others(0)?, to_others(1)?, to_others(2)?, to_others(3)?];
        let ways = ways(rank, cables[0].len(), &options.emulate);
        let lane = |cables, heralds| {
            let common = Common { world, rank, num_local, options, ways: &ways, fate: &fate };
            Self::lane(&common, cables, heralds)
        };
        let mut heralds = heralds.into_iter();
        let mut next = |cables| lane(cables, heralds.next().expect("one list for each lane"));
        let [caller, background, sends, recvs] = cables;
        Ok([next(caller)?, next(background)?, next(sends)?, next(recvs)?])
    }

    /// All lanes, as a communicator wants them.
    pub fn wires(lanes: [Self; NUM_LANES]) -> Wires {
        Wires::of(lanes)
    }

    fn lane(
        common: &Common<'_>,
        cables: Vec<Option<Cable>>,
        heralds: Vec<Herald>,
    ) -> Result<Self, NetError> {
        let &Common { world, rank, num_local, options, ways, fate } = common;
        let num_ranks = cables.len();
        let mut set: Box<dyn StreamSet> = Box::new(SealedSet::new(world.net().stream_set()));
        let mut emulated = Vec::new();
        let mut links = Vec::new();
        let introduction = control::introduction(world.processes().own_id(), &world.host().name());
        let mut link_of = vec![None; num_ranks];
        for (peer, cable) in cables.into_iter().enumerate() {
            let Some(cable) = cable else { continue };
            assert!(peer != rank.0 && !cable.data.is_empty(), "a cable to rank {peer}");
            for stream in cable.data.iter().chain([&cable.control]) {
                stream.set_nodelay(true)?;
            }
            let control = Control::new(set.add(cable.control));
            control.say(&mut *set, &introduction);
            let streams: Vec<usize> = cable.data.into_iter().map(|data| set.add(data)).collect();
            if let Some(way) = ways.get(peer) {
                emulated.extend(streams.iter().map(|&stream| (stream, Arc::clone(way))));
            }
            link_of[peer] = Some(links.len());
            links.push(Link {
                peer: Rank(peer),
                control,
                sender: Sender::new(Rank(peer), &streams),
                receiver: Receiver::new(Rank(peer), &streams, options.max_early_bytes),
            });
        }
        if !emulated.is_empty() {
            set = Box::new(EmulatedSet::new(world, set, emulated));
        }
        let patience = world.shared().patience(num_local);
        Ok(Self {
            world: Arc::clone(world),
            rank,
            num_ranks,
            set,
            active: Vec::with_capacity(links.len()),
            links,
            link_of,
            options: options.clone(),
            max_tries: patience.num_spins + patience.num_yields,
            is_crowded: num_local > world.threads().available(),
            epoch: 0,
            awake: Awake::default(),
            fate: Arc::clone(fate),
            heralds,
        })
    }

    /// Whether there is a cable to `rank`.
    pub fn reaches(&self, rank: Rank) -> bool {
        self.link_of[rank.0].is_some()
    }

    /// Takes up the messages of a round that go to or come from ranks with a cable; the others are
    /// somebody else's.
    pub(crate) fn begin(&mut self, round: &mut Round<'_>) -> Result<(), Interruption> {
        self.check_fate()?;
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
            if let Err(trouble) = link.receiver.begin(round) {
                let peer = link.peer;
                return Err(self.fail(peer, trouble));
            }
        }
        Ok(())
    }

    /// Moves what can be moved now; returns whether anything was.
    pub(crate) fn step(&mut self, round: &mut Round<'_>) -> Result<bool, Interruption> {
        let mut has_moved = false;
        for index in (0..self.active.len()).rev() {
            let link = &mut self.links[self.active[index]];
            let set = &mut *self.set;
            let sent = link.sender.step(set, round);
            match sent.and_then(|sent| Ok(link.receiver.step(set, round)? || sent)) {
                Ok(moved) => has_moved |= moved,
                Err(trouble) => {
                    let peer = link.peer;
                    return Err(self.fail(peer, trouble));
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

    /// Whether every message of the round has left or come.
    pub(crate) fn is_done(&self) -> bool {
        self.active.is_empty()
    }

    /// Who is being waited for: a rank that something must come from, or go to.
    pub(crate) fn waited_for(&self) -> Rank {
        let active = || self.active.iter().map(|&link| &self.links[link]);
        let receiving = active().filter(|link| !link.receiver.is_done()).map(|link| link.peer);
        receiving.min().or_else(|| active().map(|link| link.peer).min()).unwrap_or(self.rank)
    }

    /// Sleeps until some stream is ready or `timeout` has passed; somebody who gave up or died in
    /// the meantime, taking part in the round or not, is an interruption.
    pub(crate) fn sleep(&mut self, timeout: Duration) -> Result<(), Interruption> {
        for link in &self.links {
            for stream in link.sender.streams() {
                self.set.watch(stream, Interest::default());
            }
            if let Some(control) = link.control.stream() {
                self.set.watch(control, Interest { read: true, write: false });
            }
        }
        self.awake.look(self.world.clock().now());
        for link in self.active.iter().map(|&link| &self.links[link]) {
            for stream in link.receiver.waiting() {
                self.set.watch(stream, Interest { read: true, write: false });
            }
            for stream in link.sender.waiting() {
                let read = link.receiver.waiting().any(|other| other == stream);
                self.set.watch(stream, Interest { read, write: true });
            }
        }
        match self.set.wait(None, timeout.min(LOOK_AROUND)) {
            Ok(true) => self.listen(true),
            Ok(false) => self.check_fate(),
            Err(error) => {
                let reason = format!("waiting for streams failed: {error}");
                Err(self.end(Interruption::Lost { peer: self.waited_for(), reason }))
            }
        }
    }

    /// Looks whether a rank of which this round wants nothing, and which nobody listens to
    /// therefore, has sent something for the same call: then it is in another one.
    pub(crate) fn look_for_mismatch(&mut self, wanted: &Envelope) -> Result<(), Interruption> {
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if !link.receiver.is_done() {
                continue;
            }
            let found = link.receiver.peek(&mut *self.set).map(|header| header.envelope);
            if let Some(found) = found
                && is_for(&found, wanted)
                && found.signature != wanted.signature
            {
                let (peer, theirs) = (link.peer, found.signature);
                return Err(self.end(Interruption::Mismatch { peer, theirs, number: None }));
            }
        }
        Ok(())
    }

    /// Why the time is up: a peer that is waited for is in a later call, or it did not come.
    pub(crate) fn out_of_time(&self, wanted: &Envelope) -> Interruption {
        let mut active = self.active.iter().map(|&link| &self.links[link]);
        let ahead = active
            .find_map(|link| Some((link.peer, link.receiver.call_ahead_of(wanted)?)))
            .map(|(peer, theirs)| Interruption::Mismatch { peer, theirs, number: None });
        self.end(ahead.unwrap_or_else(|| Interruption::Deadline { peer: self.waited_for() }))
    }
}

/// Whether a message with the first envelope is what a receive with the second asks for.
fn is_for(found: &Envelope, wanted: &Envelope) -> bool {
    (found.group, found.number) == (wanted.group, wanted.number)
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
        assert!(peers.all(|peer| self.reaches(peer)), "every rank but this one has a cable");
        let result = self.exchange_all(round, timeout);
        result.inspect_err(|_| self.abandon(round))
    }

    fn wait_for_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        assert!(peers.iter().all(|peer| self.reaches(*peer)), "every rank but this has a cable");
        self.wait_for_first(peers, envelope, timeout)
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        None
    }

    fn spare(&self, ranks: &[Rank]) {
        self.fate.spare(ranks);
    }

    fn settle(&mut self, statement: Verdict) -> Verdict {
        self.settle_on(statement)
    }

    fn renew(mut self: Box<Self>, renewal: &Renewal<'_>) -> Result<Box<dyn Transport>, CommError> {
        self.begin_epoch(renewal);
        Ok(self)
    }

    fn domains(&self) -> Vec<usize> {
        (0..self.num_ranks).collect()
    }

    fn name(&self) -> &'static str {
        "tcp"
    }
}

impl TcpTransport {
    fn exchange_all(
        &mut self,
        round: &mut Round<'_>,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        self.begin(round)?;
        let (mut idle_since, mut has_warned) = (None, false);
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
            if self.tries_again(idle, &mut num_tries) {
                continue;
            }
            if idle >= LOOK_AROUND {
                self.look_for_mismatch(&round.envelope)?;
            }
            if idle >= WARNING && !std::mem::replace(&mut has_warned, true) {
                self.warn();
            }
            if idle >= timeout {
                self.listen(false)?;
                return Err(self.out_of_time(&round.envelope));
            }
            self.sleep(timeout.saturating_sub(idle))?;
        }
    }

    /// Whether to try once more instead of sleeping, when nothing has moved for a while.
    pub(crate) fn tries_again(&self, idle: Duration, num_tries: &mut u32) -> bool {
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
        // After a failure everybody has heard a statement instead.
        if !self.fate.is_settled() {
            let goodbye = control::goodbye();
            self.links.iter().for_each(|link| link.control.say(&mut *self.set, &goodbye));
        }
    }
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpTransport(rank {} of {})", self.rank, self.num_ranks)
    }
}
