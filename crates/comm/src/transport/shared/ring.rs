//! Messages through shared memory, for schedules that send and receive.
//!
//! For every ordered pair of ranks there is a ring of bytes in the sender's segment. The sender
//! owns the count of bytes ever written, the receiver the count of bytes ever taken; the difference
//! is what lies in the ring. A message is an envelope of one cache line and its bytes, padded to
//! whole lines. Long messages stream through: the receiver empties what the sender fills.
//!
//! A message that was not asked for yet (a point-to-point message under another tag, or one of
//! another group) is put aside until somebody asks for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use super::SharedWorld;
use super::header::{NUM_LANES, RING_BYTES};
use crate::error::Interruption;
use crate::signature::Signature;
use crate::transport::{Envelope, Round, Transport};

/// Bytes of a cache line, and of an envelope.
const LINE: usize = 64;

/// Bytes that are made visible at once, so that both ends work at the same time.
const PIECE_BYTES: usize = 32 << 10;

/// Message passing between ranks that share memory.
pub struct SharedTransport {
    world: Arc<SharedWorld>,
    lane: usize,
    /// How far the messages of the current round are.
    sent: Vec<Progress>,
    received: Vec<Progress>,
    /// Bytes ever written to each rank, and taken from each.
    written: Vec<u64>,
    taken: Vec<u64>,
    /// A message whose envelope was read and whose bytes were not, by sender.
    opened: Vec<Option<(Envelope, usize)>>,
    /// Messages that came before they were asked for, by sender, group and number.
    aside: BTreeMap<(usize, u64, u64), VecDeque<Letter>>,
}

/// A message that was put aside: what it is for, and what is in it.
type Letter = (Signature, Vec<u8>);

/// How far a message of a round is.
#[derive(Clone, Copy, Default)]
struct Progress {
    has_started: bool,
    num_bytes: usize,
    is_done: bool,
}

impl SharedTransport {
    /// The wires of `world`: one set for the thread that makes calls, and one for calls in the
    /// background, which must not get in each other's way.
    pub fn lanes(world: &Arc<SharedWorld>) -> [Self; 2] {
        const { assert!(NUM_LANES == 2) };
        [0, 1].map(|lane| Self::new(Arc::clone(world), lane))
    }

    fn new(world: Arc<SharedWorld>, lane: usize) -> Self {
        let num_ranks = world.num_ranks();
        Self {
            world,
            lane,
            sent: Vec::new(),
            received: Vec::new(),
            written: vec![0; num_ranks],
            taken: vec![0; num_ranks],
            opened: vec![None; num_ranks],
            aside: BTreeMap::new(),
        }
    }

    fn room(&self, peer: Rank) -> usize {
        let world = &self.world;
        let taken = world.segment(peer).word(world.header.taken(self.lane, world.rank.0));
        RING_BYTES - (self.written[peer.0] - taken.load(Ordering::Acquire)) as usize
    }

    fn available(&self, peer: Rank) -> usize {
        let world = &self.world;
        let written = world.segment(peer).word(world.header.written(self.lane, world.rank.0));
        (written.load(Ordering::Acquire) - self.taken[peer.0]) as usize
    }

    /// Puts as much of a message into the ring as there is room for; returns whether any was.
    fn push(
        &mut self,
        envelope: &Envelope,
        message: &(Rank, Source<'_, u8>),
        at: &mut Progress,
    ) -> bool {
        let (peer, window) = *message;
        let mut room = self.room(peer);
        let before = self.written[peer.0];
        if !at.has_started && room >= LINE {
            let [a, b, c] = envelope.signature.to_words();
            let length = window.len() as u64;
            let words = [envelope.group, envelope.number, a, b, c, length, 0, 0];
            let offset = self.world.header.ring(self.lane, peer.0) + position(before);
            self.world.own().target::<u64>(offset, 8).as_chunks::<8>().0.set(0, words);
            self.written[peer.0] += LINE as u64;
            room -= LINE;
            at.has_started = true;
        }
        while at.has_started && at.num_bytes < window.len() && room >= LINE {
            let start = position(self.written[peer.0]);
            let rest = window.len() - at.num_bytes;
            let len = rest.min(room).min(RING_BYTES - start).min(PIECE_BYTES);
            let offset = self.world.header.ring(self.lane, peer.0) + start;
            let piece = window.part(at.num_bytes..at.num_bytes + len);
            self.world.own().target::<u8>(offset, len).copy_from(piece);
            at.num_bytes += len;
            self.written[peer.0] += len.next_multiple_of(LINE) as u64;
            room -= len.next_multiple_of(LINE);
            self.publish_written(peer);
        }
        at.is_done = at.has_started && at.num_bytes == window.len();
        let has_moved = self.written[peer.0] != before;
        if has_moved {
            self.publish_written(peer);
            self.world.wake([peer]);
        }
        has_moved
    }

    fn publish_written(&self, peer: Rank) {
        let word = self.world.own().word(self.world.header.written(self.lane, peer.0));
        word.store(self.written[peer.0], Ordering::Release);
    }

    /// Takes as much of a message as there is; returns whether any was.
    fn pull(
        &mut self,
        envelope: &Envelope,
        message: &(Rank, Target<'_, u8>),
        at: &mut Progress,
        timeout: Duration,
    ) -> Result<bool, Interruption> {
        let (peer, window) = *message;
        let key = (peer.0, envelope.group, envelope.number);
        if !at.has_started
            && let Some((signature, bytes)) = self.aside.get_mut(&key).and_then(VecDeque::pop_front)
        {
            check(peer, envelope, signature, bytes.len(), window.len())?;
            window.copy_from_slice(&bytes);
            *at = Progress { has_started: true, num_bytes: window.len(), is_done: true };
            return Ok(true);
        }
        let before = self.taken[peer.0];
        if !at.has_started {
            let Some((found, len)) = self.open_next(peer) else { return Ok(false) };
            if (found.group, found.number) != (envelope.group, envelope.number) {
                return self.put_aside(peer, found, len, timeout);
            }
            check(peer, envelope, found.signature, len, window.len())?;
            self.opened[peer.0] = None;
            at.has_started = true;
        }
        at.num_bytes += self.take(peer, window.part(at.num_bytes..window.len()));
        at.is_done = at.num_bytes == window.len();
        Ok(self.taken[peer.0] != before)
    }

    /// The envelope at the front of the ring from `peer`, once it is there.
    fn open_next(&mut self, peer: Rank) -> Option<(Envelope, usize)> {
        if self.opened[peer.0].is_none() && self.available(peer) >= LINE {
            let world = &self.world;
            let offset = world.header.ring(self.lane, world.rank.0) + position(self.taken[peer.0]);
            let words = world.segment(peer).source::<u64>(offset, 8).as_chunks::<8>().0.get(0);
            let [group, number, a, b, c, len, ..] = words;
            let envelope = Envelope { group, number, signature: Signature::from_words([a, b, c]) };
            self.opened[peer.0] = Some((envelope, len as usize));
            self.taken[peer.0] += LINE as u64;
            self.publish_taken(peer);
        }
        self.opened[peer.0]
    }

    /// Moves the message at the front out of the way; it is short enough to lie in the ring as a
    /// whole, or its sender is busy sending it. Returns whether it is out of the way.
    fn put_aside(
        &mut self,
        peer: Rank,
        envelope: Envelope,
        len: usize,
        timeout: Duration,
    ) -> Result<bool, Interruption> {
        let key = (peer.0, envelope.group, envelope.number);
        let mut bytes = vec![0; len];
        let mut num_bytes = 0;
        while num_bytes < len {
            num_bytes += self.take(peer, Target::of(&mut bytes[num_bytes..]));
            if num_bytes < len {
                self.world.wait_until(peer, timeout, || self.available(peer) > 0)?;
            }
        }
        self.opened[peer.0] = None;
        self.aside.entry(key).or_default().push_back((envelope.signature, bytes));
        Ok(true)
    }

    /// Copies what is there, up to the length of the window; returns how much.
    fn take(&mut self, peer: Rank, window: Target<'_, u8>) -> usize {
        let mut num_bytes = 0;
        loop {
            let start = position(self.taken[peer.0]);
            let there = self.available(peer).min(RING_BYTES - start).min(PIECE_BYTES);
            let len = (window.len() - num_bytes).min(there);
            if len == 0 {
                return num_bytes;
            }
            let offset = self.world.header.ring(self.lane, self.world.rank.0) + start;
            let piece = self.world.segment(peer).source::<u8>(offset, len);
            window.part(num_bytes..num_bytes + len).copy_from(piece);
            num_bytes += len;
            self.taken[peer.0] += len.next_multiple_of(LINE) as u64;
            self.publish_taken(peer);
        }
    }

    fn publish_taken(&self, peer: Rank) {
        let word = self.world.own().word(self.world.header.taken(self.lane, peer.0));
        word.store(self.taken[peer.0], Ordering::Release);
        self.world.wake([peer]);
    }
}

/// Where byte number `count` of a stream lies in its ring.
fn position(count: u64) -> usize {
    (count % RING_BYTES as u64) as usize
}

fn check(
    peer: Rank,
    envelope: &Envelope,
    theirs: Signature,
    len: usize,
    expected: usize,
) -> Result<(), Interruption> {
    if theirs != envelope.signature || len != expected {
        return Err(Interruption::Mismatch { peer, theirs });
    }
    Ok(())
}

impl Transport for SharedTransport {
    fn rank(&self) -> Rank {
        self.world.rank
    }

    fn num_ranks(&self) -> usize {
        self.world.num_ranks()
    }

    fn exchange(&mut self, round: &mut Round<'_>, timeout: Duration) -> Result<(), Interruption> {
        self.begin(round);
        loop {
            let has_moved = self.step(round, timeout)?;
            if self.is_done() {
                return Ok(());
            }
            if !has_moved {
                self.wait_for_any(round, timeout)?;
            }
        }
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        Some(Arc::clone(&self.world))
    }

    fn abort(&mut self, reason: &str) {
        self.world.abort(reason);
    }

    fn domains(&self) -> Vec<usize> {
        vec![0; self.world.num_ranks()]
    }

    fn name(&self) -> &'static str {
        self.world.name
    }
}

impl SharedTransport {
    /// Starts a round. Messages to and from ranks whose memory is not seen are none of ours.
    pub(crate) fn begin(&mut self, round: &Round<'_>) {
        let fresh = |world: &SharedWorld, peer: Rank| Progress {
            is_done: !world.sees(peer),
            ..Progress::default()
        };
        self.sent.clear();
        self.sent.extend(round.sends.iter().map(|(peer, _)| fresh(&self.world, *peer)));
        self.received.clear();
        self.received.extend(round.recvs.iter().map(|(peer, _)| fresh(&self.world, *peer)));
    }

    /// Moves what can be moved now; returns whether anything was.
    pub(crate) fn step(
        &mut self,
        round: &mut Round<'_>,
        timeout: Duration,
    ) -> Result<bool, Interruption> {
        let mut has_moved = false;
        for (index, message) in round.sends.iter().enumerate() {
            if is_next(&self.sent, index, |i| round.sends[i].0) {
                let mut at = self.sent[index];
                has_moved |= self.push(&round.envelope, message, &mut at);
                round.done_bytes += (at.num_bytes - self.sent[index].num_bytes) as u64;
                self.sent[index] = at;
            }
        }
        for (index, message) in round.recvs.iter().enumerate() {
            if is_next(&self.received, index, |i| round.recvs[i].0) {
                let mut at = self.received[index];
                has_moved |= self.pull(&round.envelope, message, &mut at, timeout)?;
                round.done_bytes += (at.num_bytes - self.received[index].num_bytes) as u64;
                self.received[index] = at;
            }
        }
        Ok(has_moved)
    }

    /// Whether every message of the round is through.
    pub(crate) fn is_done(&self) -> bool {
        self.sent.iter().chain(&self.received).all(|at| at.is_done)
    }

    /// Whether nobody has given up and nobody has died.
    pub(crate) fn look_around(&self) -> Result<(), Interruption> {
        self.world.look_around()
    }

    /// Waits until some message of the round can go on.
    fn wait_for_any(&self, round: &Round<'_>, timeout: Duration) -> Result<(), Interruption> {
        // What can go on is seen by its ring: an empty one had nothing, a full one no room, when it
        // was tried.
        let open = |at: &Progress| !at.is_done;
        let sends = round.sends.iter().zip(&self.sent).filter(|(_, at)| open(at));
        let recvs = round.recvs.iter().zip(&self.received).filter(|(_, at)| open(at));
        let waited_for = recvs.clone().map(|((peer, _), _)| *peer).next();
        let waited_for = waited_for.or_else(|| sends.clone().map(|((peer, _), _)| *peer).next());
        self.world.wait_until(waited_for.unwrap_or(self.world.rank), timeout, || {
            recvs.clone().any(|((peer, _), _)| self.available(*peer) > 0)
                || sends.clone().any(|((peer, _), _)| self.room(*peer) > 0)
        })
    }
}

/// Whether a message is unfinished and all earlier ones of the same pair are through.
fn is_next(progress: &[Progress], index: usize, peer: impl Fn(usize) -> Rank) -> bool {
    !progress[index].is_done
        && (0..index).all(|earlier| peer(earlier) != peer(index) || progress[earlier].is_done)
}
