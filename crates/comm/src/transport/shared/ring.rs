//! Message rings in shared memory, for schedules that send and receive.
//!
//! Every ordered pair of ranks has a ring of bytes in the sender's segment. The sender owns the
//! count of bytes written, the receiver the count of bytes taken; the difference is the content of
//! the ring. A message is an envelope of one cache line and its bytes, padded to whole lines. Long
//! messages stream through: the receiver empties the ring while the sender fills it.
//!
//! An unexpected message (another tag or group) is buffered until its receive is posted, up to a
//! limit per peer. Counts and lengths written by a peer are validated before use.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use super::SharedWorld;
use super::header::{NUM_RINGS, RING_BYTES};
use crate::error::{CommError, Interruption};
use crate::flags::{publish, published};
use crate::segment_window::{source, target};
use crate::signature::Signature;
use crate::transport::{Envelope, EpochChange, NUM_CHANNELS, Round, Transport};
use crate::verdict::Verdict;

/// Bytes of a cache line, and of an envelope.
const LINE: usize = 64;

/// Bytes that are published at once, so that both ends work concurrently.
const PIECE_BYTES: usize = 32 << 10;

/// Most bytes of unexpected messages per peer, counting one line for each message.
const MAX_UNEXPECTED_BYTES: usize = 1 << 30;

/// One channel between ranks that share memory.
pub struct SharedTransport {
    world: Arc<SharedWorld>,
    channel: usize,
    /// Progress of the messages of the current round.
    sent: Vec<Progress>,
    received: Vec<Progress>,
    /// Count of bytes written to each rank, and taken from each.
    written: Vec<u64>,
    taken: Vec<u64>,
    /// Message whose envelope was read and whose bytes are incomplete, by sender.
    opened: Vec<Option<Opened>>,
    /// Unexpected messages, by sender, group and number.
    unexpected: BTreeMap<(usize, u64, u64), VecDeque<UnexpectedMessage>>,
    /// Bytes of unexpected messages, by sender.
    unexpected_bytes: Vec<usize>,
}

/// The message at the front of a ring.
struct Opened {
    envelope: Envelope,
    len: usize,
    /// Bytes received so far, if the message is unexpected.
    bytes: Vec<u8>,
}

/// Signature and bytes of an unexpected message.
type UnexpectedMessage = (Signature, Vec<u8>);

/// Progress of a message.
#[derive(Clone, Copy, Default)]
struct Progress {
    has_started: bool,
    num_bytes: usize,
    is_done: bool,
}

impl SharedTransport {
    /// All channels of `world`. The last two use the same rings: one writes, the other reads.
    pub fn channels(world: &Arc<SharedWorld>) -> [Self; NUM_CHANNELS] {
        std::array::from_fn(|channel| Self::new(Arc::clone(world), channel.min(NUM_RINGS - 1)))
    }

    fn new(world: Arc<SharedWorld>, channel: usize) -> Self {
        let num_ranks = world.num_ranks();
        Self {
            world,
            channel,
            sent: Vec::new(),
            received: Vec::new(),
            written: vec![0; num_ranks],
            taken: vec![0; num_ranks],
            opened: (0..num_ranks).map(|_| None).collect(),
            unexpected: BTreeMap::new(),
            unexpected_bytes: vec![0; num_ranks],
        }
    }

    /// Free bytes of the ring to `peer`.
    fn room(&self, peer: Rank) -> Result<usize, Interruption> {
        let world = &self.world;
        let taken = world.segment(peer).word(world.header.taken(self.channel, world.rank.0));
        Ok(RING_BYTES - between(peer, published(taken), self.written[peer.0])?)
    }

    /// Readable bytes of the ring from `peer`.
    fn available(&self, peer: Rank) -> Result<usize, Interruption> {
        let world = &self.world;
        let written = world.segment(peer).word(world.header.written(self.channel, world.rank.0));
        between(peer, self.taken[peer.0], published(written))
    }

    /// Writes as much of a message as fits into the ring; returns whether any byte was written.
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
            let [a, b, c] = envelope.signature.pack();
            let length = window.len() as u64;
            let fields = [envelope.group, envelope.number, a, b, c, length, 0, 0];
            let offset = self.world.header.ring(self.channel, peer.0) + position(before);
            target::<u64>(self.world.own(), offset, 8).as_chunks::<8>().0.set(0, fields);
            self.written[peer.0] += LINE as u64;
            room -= LINE;
            at.has_started = true;
        }
        while at.has_started && at.num_bytes < window.len() && room >= LINE {
            let start = position(self.written[peer.0]);
            let rest = window.len() - at.num_bytes;
            let len = rest.min(room).min(RING_BYTES - start).min(PIECE_BYTES);
            let offset = self.world.header.ring(self.channel, peer.0) + start;
            let piece = window.part(at.num_bytes..at.num_bytes + len);
            target::<u8>(self.world.own(), offset, len).copy_from(piece);
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
        let word = self.world.own().word(self.world.header.written(self.channel, peer.0));
        publish(word, self.written[peer.0]);
    }

    /// Reads as much of a message as has arrived; returns whether any byte was read.
    fn pull(
        &mut self,
        envelope: &Envelope,
        message: &(Rank, Target<'_, u8>),
        at: &mut Progress,
    ) -> Result<bool, Interruption> {
        let (peer, window) = *message;
        let before = self.taken[peer.0];
        if !at.has_started {
            if let Some((signature, bytes)) = self.take_unexpected(peer, envelope) {
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
                self.store_unexpected(peer)?;
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

    /// Reads the next envelope from `peer`, if it has arrived.
    fn open_next(&mut self, peer: Rank) -> Result<(), Interruption> {
        if self.opened[peer.0].is_none() && self.available(peer)? >= LINE {
            let world = &self.world;
            let offset =
                world.header.ring(self.channel, world.rank.0) + position(self.taken[peer.0]);
            let fields = source::<u64>(world.segment(peer), offset, 8).as_chunks::<8>().0.get(0);
            let [group, number, a, b, c, len, ..] = fields;
            let envelope = Envelope { group, number, signature: Signature::unpack([a, b, c]) };
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            self.opened[peer.0] = Some(Opened { envelope, len, bytes: Vec::new() });
            self.taken[peer.0] += LINE as u64;
            self.publish_taken(peer);
        }
        Ok(())
    }

    /// Removes the first unexpected message of `peer` that matches an envelope.
    fn take_unexpected(&mut self, peer: Rank, envelope: &Envelope) -> Option<UnexpectedMessage> {
        let key = (peer.0, envelope.group, envelope.number);
        let messages = self.unexpected.get_mut(&key)?;
        let message = messages.pop_front();
        if messages.is_empty() {
            self.unexpected.remove(&key);
        }
        self.unexpected_bytes[peer.0] -=
            message.as_ref().map_or(0, |(_, bytes)| LINE + bytes.len());
        message
    }

    /// Moves the arrived bytes of the front message to the unexpected messages. Memory is allocated
    /// for arrived bytes only, whatever length the envelope states.
    fn store_unexpected(&mut self, peer: Rank) -> Result<(), Interruption> {
        let Some(mut front) = self.opened[peer.0].take() else { return Ok(()) };
        let total = self.unexpected_bytes[peer.0].saturating_add(LINE).saturating_add(front.len);
        if total > MAX_UNEXPECTED_BYTES {
            let (len, waiting) = (front.len, self.unexpected_bytes[peer.0]);
            let reason = format!(
                "it sent {len} bytes before any receive was posted, with {waiting} buffered \
                 already; at most {MAX_UNEXPECTED_BYTES} may be buffered"
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
        self.unexpected_bytes[peer.0] = total;
        let key = (peer.0, envelope.group, envelope.number);
        self.unexpected.entry(key).or_default().push_back((envelope.signature, bytes));
        Ok(())
    }

    /// Copies available bytes into the window; returns how many.
    fn take(&mut self, peer: Rank, window: Target<'_, u8>) -> Result<usize, Interruption> {
        let mut num_bytes = 0;
        loop {
            let start = position(self.taken[peer.0]);
            let there = self.available(peer)?.min(RING_BYTES - start).min(PIECE_BYTES);
            let len = (window.len() - num_bytes).min(there);
            if len == 0 {
                return Ok(num_bytes);
            }
            let offset = self.world.header.ring(self.channel, self.world.rank.0) + start;
            let piece = source::<u8>(self.world.segment(peer), offset, len);
            window.part(num_bytes..num_bytes + len).copy_from(piece);
            num_bytes += len;
            self.taken[peer.0] += len.next_multiple_of(LINE) as u64;
            self.publish_taken(peer);
        }
    }

    fn publish_taken(&self, peer: Rank) {
        let word = self.world.own().word(self.world.header.taken(self.channel, peer.0));
        publish(word, self.taken[peer.0]);
        self.world.wake([peer]);
    }
}

/// Offset in the ring of byte `count` of a stream.
fn position(count: u64) -> usize {
    (count % RING_BYTES as u64) as usize
}

/// Difference of the two counts of a ring; validated because a peer wrote one of them.
fn between(peer: Rank, taken: u64, written: u64) -> Result<usize, Interruption> {
    let there = written.wrapping_sub(taken);
    if there > RING_BYTES as u64 || !there.is_multiple_of(LINE as u64) {
        let reason = "its byte count is invalid".to_owned();
        return Err(Interruption::Lost { peer, reason });
    }
    Ok(there as usize)
}

/// Checks that a message that matches by envelope also has the expected signature and length.
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
        let mut began = None;
        loop {
            let has_moved = self.step(round)?;
            if self.is_done() {
                return Ok(());
            }
            if !has_moved {
                self.wait_for_any(round, timeout, &mut began)?;
            }
        }
    }

    fn wait_for_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        // Other messages of the peers do not extend the deadline.
        let mut began = None;
        loop {
            if let Some(peer) = self.find_message(peers, envelope)? {
                return Ok(peer);
            }
            let timeout_at = |now: Duration| {
                timeout.saturating_sub(now.saturating_sub(*began.get_or_insert(now)))
            };
            self.world.wait_within(peers[0], timeout_at, || {
                peers.iter().any(|peer| self.available(*peer) != Ok(0))
            })?;
        }
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        Some(Arc::clone(&self.world))
    }

    fn mark_expendable(&self, ranks: &[Rank]) {
        self.world.mark_expendable(ranks);
    }

    fn agree_on_verdict(&mut self, report: Verdict) -> Verdict {
        self.world.agree_on_verdict(report)
    }

    fn into_next_epoch(
        self: Box<Self>,
        change: &EpochChange<'_>,
    ) -> Result<Box<dyn Transport>, CommError> {
        Ok(Box::new(self.in_next_epoch(change)))
    }

    fn domains(&self) -> Vec<usize> {
        vec![0; self.world.num_ranks()]
    }

    fn name(&self) -> &'static str {
        self.world.name
    }
}

impl SharedTransport {
    /// This channel in the memory of the next epoch.
    pub(crate) fn in_next_epoch(&self, change: &EpochChange<'_>) -> Self {
        let memory =
            change.memory.as_ref().expect("ranks that shared memory share it in the next epoch");
        Self::new(Arc::clone(memory), self.channel)
    }

    /// Posts the messages of a round to and from ranks of this host, and ignores the others.
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

    /// Makes progress without blocking; returns whether any byte moved.
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

    /// The first of `peers` on this host from which a matching message has begun to arrive.
    /// Messages in front of it become unexpected messages.
    pub(crate) fn find_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
    ) -> Result<Option<Rank>, Interruption> {
        let name = (envelope.group, envelope.number);
        for &peer in peers {
            if !self.world.sees(peer) {
                continue;
            }
            if self.unexpected.contains_key(&(peer.0, name.0, name.1)) {
                return Ok(Some(peer));
            }
            loop {
                self.open_next(peer)?;
                let Some(front) = &self.opened[peer.0] else { break };
                if (front.envelope.group, front.envelope.number) == name {
                    return Ok(Some(peer));
                }
                self.store_unexpected(peer)?;
                if self.opened[peer.0].is_some() {
                    break;
                }
            }
        }
        Ok(None)
    }

    /// Whether every message of the round is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.sent.iter().chain(&self.received).all(|at| at.is_done)
    }

    /// Checks that no rank has failed or died.
    pub(crate) fn check_peers(&self) -> Result<(), Interruption> {
        self.world.check_peers()
    }

    /// Whether an expendable rank has died.
    pub(crate) fn is_dead(&self, rank: Rank) -> bool {
        self.world.is_dead(rank)
    }

    /// Waits until a message of the round can make progress. `began` is when the round first waited
    /// long.
    fn wait_for_any(
        &self,
        round: &Round<'_>,
        timeout: Duration,
        began: &mut Option<Duration>,
    ) -> Result<(), Interruption> {
        // A receive was blocked by an empty ring, a send by a full one.
        let open = |at: &Progress| !at.is_done;
        let sends = round.sends.iter().zip(&self.sent).filter(|(_, at)| open(at));
        let recvs = round.recvs.iter().zip(&self.received).filter(|(_, at)| open(at));
        let awaited_rank = recvs.clone().map(|((peer, _), _)| *peer).next();
        let awaited_rank =
            awaited_rank.or_else(|| sends.clone().map(|((peer, _), _)| *peer).next());
        let timeout_at = |now: Duration| {
            let elapsed = now.saturating_sub(*began.get_or_insert(now));
            timeout.min(round.total_timeout(timeout).saturating_sub(elapsed))
        };
        self.world.wait_within(awaited_rank.unwrap_or(self.world.rank), timeout_at, || {
            // An invalid count ends the wait too, and is reported by the next step.
            recvs.clone().any(|((peer, _), _)| self.available(*peer) != Ok(0))
                || sends.clone().any(|((peer, _), _)| self.room(*peer) != Ok(0))
        })
    }
}

/// Whether a message is incomplete and all earlier ones of the same pair are complete.
fn is_next(progress: &[Progress], index: usize, peer: impl Fn(usize) -> Rank) -> bool {
    !progress[index].is_done
        && (0..index).all(|earlier| peer(earlier) != peer(index) || progress[earlier].is_done)
}

#[cfg(test)]
mod tests;
