//! Messages through shared memory, for schedules that send and receive.
//!
//! For every ordered pair of ranks there is a ring of bytes in the sender's segment. The sender
//! owns the count of bytes ever written, the receiver the count of bytes ever taken; the difference
//! is what lies in the ring. A message is an envelope of one cache line and its bytes, padded to
//! whole lines. Long messages stream through: the receiver empties what the sender fills.
//!
//! A message that was not asked for yet (a point-to-point message under another tag, or one of
//! another group) is put aside until somebody asks for it; there is a limit to how much one peer
//! may cause to be kept. Counts and lengths that a peer wrote are checked before they are used.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use super::SharedWorld;
use super::header::{NUM_RINGS, RING_BYTES};
use crate::error::{CommError, Interruption};
use crate::flags::{publish, published};
use crate::signature::Signature;
use crate::transport::{Envelope, NUM_LANES, Renewal, Round, Transport};
use crate::verdict::Verdict;

/// Bytes of a cache line, and of an envelope.
const LINE: usize = 64;

/// Bytes that are made visible at once, so that both ends work at the same time.
const PIECE_BYTES: usize = 32 << 10;

/// Bytes of one peer's messages that may be kept until somebody asks for them, counting a line for
/// each message.
const MAX_ASIDE_BYTES: usize = 1 << 30;

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
    /// A message whose envelope was read and whose bytes were not all taken, by sender.
    opened: Vec<Option<Opened>>,
    /// Messages that came before they were asked for, by sender, group and number.
    aside: BTreeMap<(usize, u64, u64), VecDeque<Letter>>,
    /// How many bytes of them there are, by sender.
    aside_bytes: Vec<usize>,
}

/// The message at the front of a ring.
struct Opened {
    envelope: Envelope,
    len: usize,
    /// What was taken of it, if it is being put aside.
    bytes: Vec<u8>,
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
    /// All sets of wires of `world`. The last two use the same rings: one puts messages in, and
    /// the other takes them out.
    pub fn lanes(world: &Arc<SharedWorld>) -> [Self; NUM_LANES] {
        std::array::from_fn(|lane| Self::new(Arc::clone(world), lane.min(NUM_RINGS - 1)))
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
            opened: (0..num_ranks).map(|_| None).collect(),
            aside: BTreeMap::new(),
            aside_bytes: vec![0; num_ranks],
        }
    }

    /// How many bytes fit into the ring to `peer`.
    fn room(&self, peer: Rank) -> Result<usize, Interruption> {
        let world = &self.world;
        let taken = world.segment(peer).word(world.header.taken(self.lane, world.rank.0));
        Ok(RING_BYTES - between(peer, published(taken), self.written[peer.0])?)
    }

    /// How many bytes lie in the ring from `peer`.
    fn available(&self, peer: Rank) -> Result<usize, Interruption> {
        let world = &self.world;
        let written = world.segment(peer).word(world.header.written(self.lane, world.rank.0));
        between(peer, self.taken[peer.0], published(written))
    }

    /// Puts as much of a message into the ring as there is room for; returns whether any was.
    fn push(
        &mut self,
        envelope: &Envelope,
        message: &(Rank, Source<'_, u8>),
        at: &mut Progress,
    ) -> Result<bool, Interruption> {
        let (peer, window) = *message;
        let mut room = self.room(peer)?;
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
        Ok(has_moved)
    }

    fn publish_written(&self, peer: Rank) {
        let word = self.world.own().word(self.world.header.written(self.lane, peer.0));
        publish(word, self.written[peer.0]);
    }

    /// Takes as much of a message as there is; returns whether any was.
    fn pull(
        &mut self,
        envelope: &Envelope,
        message: &(Rank, Target<'_, u8>),
        at: &mut Progress,
    ) -> Result<bool, Interruption> {
        let (peer, window) = *message;
        let before = self.taken[peer.0];
        if !at.has_started {
            if let Some((signature, bytes)) = self.find_aside(peer, envelope) {
                check(peer, envelope, signature, bytes.len(), window.len())?;
                window.copy_from_slice(&bytes);
                *at = Progress { has_started: true, num_bytes: window.len(), is_done: true };
                return Ok(true);
            }
            self.open_next(peer)?;
            let Some(found) = &self.opened[peer.0] else { return Ok(false) };
            if found.envelope.is_left_over(envelope) {
                let Envelope { number, signature: theirs, .. } = found.envelope;
                return Err(Interruption::Mismatch { peer, theirs, number: Some(number) });
            }
            if (found.envelope.group, found.envelope.number) != (envelope.group, envelope.number) {
                self.put_aside(peer)?;
                return Ok(self.taken[peer.0] != before);
            }
            check(peer, envelope, found.envelope.signature, found.len, window.len())?;
            self.opened[peer.0] = None;
            at.has_started = true;
        }
        at.num_bytes += self.take(peer, window.part(at.num_bytes..window.len()))?;
        at.is_done = at.num_bytes == window.len();
        Ok(self.taken[peer.0] != before)
    }

    /// Reads the envelope at the front of the ring from `peer`, once it is there.
    fn open_next(&mut self, peer: Rank) -> Result<(), Interruption> {
        if self.opened[peer.0].is_none() && self.available(peer)? >= LINE {
            let world = &self.world;
            let offset = world.header.ring(self.lane, world.rank.0) + position(self.taken[peer.0]);
            let words = world.segment(peer).source::<u64>(offset, 8).as_chunks::<8>().0.get(0);
            let [group, number, a, b, c, len, ..] = words;
            let envelope = Envelope { group, number, signature: Signature::from_words([a, b, c]) };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            self.opened[peer.0] = Some(Opened { envelope, len, bytes: Vec::new() });
            self.taken[peer.0] += LINE as u64;
            self.publish_taken(peer);
        }
        Ok(())
    }

    /// The first message of `peer` for an envelope that was put aside before.
    fn find_aside(&mut self, peer: Rank, envelope: &Envelope) -> Option<Letter> {
        let key = (peer.0, envelope.group, envelope.number);
        let letters = self.aside.get_mut(&key)?;
        let letter = letters.pop_front();
        if letters.is_empty() {
            self.aside.remove(&key);
        }
        self.aside_bytes[peer.0] -= letter.as_ref().map_or(0, |(_, bytes)| LINE + bytes.len());
        letter
    }

    /// Moves what has come of the message at the front out of the way. Memory is taken for bytes
    /// that are there, whatever the envelope says is still to come.
    fn put_aside(&mut self, peer: Rank) -> Result<(), Interruption> {
        let Some(mut front) = self.opened[peer.0].take() else { return Ok(()) };
        let total = self.aside_bytes[peer.0].saturating_add(LINE).saturating_add(front.len);
        if total > MAX_ASIDE_BYTES {
            let (len, waiting) = (front.len, self.aside_bytes[peer.0]);
            let reason = format!(
                "it sent {len} bytes that nobody asked for yet, with {waiting} waiting already; \
                 at most {MAX_ASIDE_BYTES} may wait"
            );
            return Err(Interruption::Lost { peer, reason });
        }
        while front.bytes.len() < front.len {
            let start = front.bytes.len();
            let there = self.available(peer)?.min(front.len - start);
            if there == 0 {
                self.opened[peer.0] = Some(front);
                return Ok(());
            }
            front.bytes.resize(start + there, 0);
            let taken = self.take(peer, Target::of(&mut front.bytes[start..]))?;
            front.bytes.truncate(start + taken);
        }
        let Opened { envelope, bytes, .. } = front;
        self.aside_bytes[peer.0] = total;
        let key = (peer.0, envelope.group, envelope.number);
        self.aside.entry(key).or_default().push_back((envelope.signature, bytes));
        Ok(())
    }

    /// Copies what is there, up to the length of the window; returns how much.
    fn take(&mut self, peer: Rank, window: Target<'_, u8>) -> Result<usize, Interruption> {
        let mut num_bytes = 0;
        loop {
            let start = position(self.taken[peer.0]);
            let there = self.available(peer)?.min(RING_BYTES - start).min(PIECE_BYTES);
            let len = (window.len() - num_bytes).min(there);
            if len == 0 {
                return Ok(num_bytes);
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
        publish(word, self.taken[peer.0]);
        self.world.wake([peer]);
    }
}

/// Where byte number `count` of a stream lies in its ring.
fn position(count: u64) -> usize {
    (count % RING_BYTES as u64) as usize
}

/// How far one count of a ring is ahead of the other; a peer wrote one of them.
fn between(peer: Rank, taken: u64, written: u64) -> Result<usize, Interruption> {
    let there = written.wrapping_sub(taken);
    if there > RING_BYTES as u64 || !there.is_multiple_of(LINE as u64) {
        let reason = "its count of bytes makes no sense".to_owned();
        return Err(Interruption::Lost { peer, reason });
    }
    Ok(there as usize)
}

/// Whether a message that answers to the right name is also the right message.
fn check(
    peer: Rank,
    envelope: &Envelope,
    theirs: Signature,
    len: usize,
    expected: usize,
) -> Result<(), Interruption> {
    if theirs != envelope.signature {
        return Err(Interruption::Mismatch { peer, theirs, number: None });
    }
    if len != expected {
        let reason = format!("it sent {len} bytes where {expected} were expected, for {theirs}");
        return Err(Interruption::Lost { peer, reason });
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
            let has_moved = self.step(round)?;
            if self.is_done() {
                return Ok(());
            }
            if !has_moved {
                self.wait_for_any(round, timeout)?;
            }
        }
    }

    fn wait_for_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        loop {
            if let Some(peer) = self.with_message(peers, envelope)? {
                return Ok(peer);
            }
            self.world.wait_until(peers[0], timeout, || {
                peers.iter().any(|peer| self.available(*peer) != Ok(0))
            })?;
        }
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        Some(Arc::clone(&self.world))
    }

    fn spare(&self, ranks: &[Rank]) {
        self.world.spare(ranks);
    }

    fn settle(&mut self, statement: Verdict) -> Verdict {
        self.world.settle(statement)
    }

    fn renew(self: Box<Self>, renewal: &Renewal<'_>) -> Result<Box<dyn Transport>, CommError> {
        Ok(Box::new(self.renewed(renewal)))
    }

    fn domains(&self) -> Vec<usize> {
        vec![0; self.world.num_ranks()]
    }

    fn name(&self) -> &'static str {
        self.world.name
    }
}

impl SharedTransport {
    /// The same lane in new memory.
    pub(crate) fn renewed(&self, renewal: &Renewal<'_>) -> Self {
        let memory = renewal.memory.as_ref().expect("the ranks shared memory, and do again");
        Self::new(Arc::clone(memory), self.lane)
    }

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
    pub(crate) fn step(&mut self, round: &mut Round<'_>) -> Result<bool, Interruption> {
        let mut has_moved = false;
        for (index, message) in round.sends.iter().enumerate() {
            if is_next(&self.sent, index, |i| round.sends[i].0) {
                let mut at = self.sent[index];
                has_moved |= self.push(&round.envelope, message, &mut at)?;
                round.done_bytes += (at.num_bytes - self.sent[index].num_bytes) as u64;
                self.sent[index] = at;
            }
        }
        for (index, message) in round.recvs.iter().enumerate() {
            if is_next(&self.received, index, |i| round.recvs[i].0) {
                let mut at = self.received[index];
                has_moved |= self.pull(&round.envelope, message, &mut at)?;
                round.done_bytes += (at.num_bytes - self.received[index].num_bytes) as u64;
                self.received[index] = at;
                if at.is_done {
                    (round.arrived)(message.0);
                }
            }
        }
        Ok(has_moved)
    }

    /// The first of `peers`, among those that are seen, from which a message for this envelope
    /// has begun to come. What stands in front of it is put aside.
    pub(crate) fn with_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
    ) -> Result<Option<Rank>, Interruption> {
        let name = (envelope.group, envelope.number);
        for &peer in peers {
            if !self.world.sees(peer) {
                continue;
            }
            if self.aside.contains_key(&(peer.0, name.0, name.1)) {
                return Ok(Some(peer));
            }
            loop {
                self.open_next(peer)?;
                let Some(front) = &self.opened[peer.0] else { break };
                if (front.envelope.group, front.envelope.number) == name {
                    return Ok(Some(peer));
                }
                self.put_aside(peer)?;
                if self.opened[peer.0].is_some() {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Whether every message of the round is through.
    pub(crate) fn is_done(&self) -> bool {
        self.sent.iter().chain(&self.received).all(|at| at.is_done)
    }

    /// Whether nobody has given up and nobody has died.
    pub(crate) fn look_around(&self) -> Result<(), Interruption> {
        self.world.look_around()
    }

    /// Whether a rank has died that the others can do without.
    pub(crate) fn is_gone(&self, rank: Rank) -> bool {
        self.world.is_gone(rank)
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
            // What makes no sense is found out by trying, too.
            recvs.clone().any(|((peer, _), _)| self.available(*peer) != Ok(0))
                || sends.clone().any(|((peer, _), _)| self.room(*peer) != Ok(0))
        })
    }
}

/// Whether a message is unfinished and all earlier ones of the same pair are through.
fn is_next(progress: &[Progress], index: usize, peer: impl Fn(usize) -> Rank) -> bool {
    !progress[index].is_done
        && (0..index).all(|earlier| peer(earlier) != peer(index) || progress[earlier].is_done)
}
