//! Receives the messages of a round from one peer.
//!
//! Messages are opened in the order in which they were sent, by their header on the first stream,
//! which determines their target. The other streams are read only while an open message has bytes
//! on them. A message without a posted receive (another tag or group) goes to the
//! [unexpected queue](super::unexpected_queue).
//!
//! A peer without a receive in the round is not read at all: its messages stay in the socket
//! buffers, which applies back-pressure to the sender.

use std::collections::VecDeque;
use std::io::{self, Read};

use lockstep_mesh::Rank;
use lockstep_platform::{StreamSet, Target};

use super::frame::{HEADER_BYTES, Header};
use super::inbox::Inbox;
use super::stripe::{part_bytes, run};
use super::unexpected_queue::UnexpectedQueue;
use super::{MAX_CALL_BYTES, PeerError};
use crate::signature::Signature;
use crate::transport::{Envelope, Round};

/// Receiving half of a link.
pub(super) struct Receiver {
    peer: Rank,
    tracks: Vec<Track>,
    /// Messages whose header was read and whose bytes are incomplete, in the order sent.
    open: VecDeque<Open>,
    unexpected: UnexpectedQueue,
    /// Messages opened in this epoch.
    num_opened: u64,
    /// Index of the receive that takes the next message from this peer.
    next_recv: usize,
    /// Receives of the round whose message is not open yet, and whose message is incomplete.
    num_unopened: usize,
    num_unfinished: usize,
    /// Whether a round has failed with receives from the peer.
    is_torn: bool,
    epoch: u16,
    max_unexpected_bytes: usize,
}

/// One stream.
struct Track {
    /// Index in the stream set.
    stream: usize,
    inbox: Inbox,
    /// The message whose bytes come next: sequence number and bytes received.
    body: Option<(u64, usize)>,
    /// The first message that the stream may still have bytes of.
    next_sequence: u64,
    /// Bytes of an earlier epoch's message to skip.
    to_skip: usize,
}

/// A message that is being received.
struct Open {
    header: Header,
    len: usize,
    /// Bytes not received yet.
    left: usize,
    /// Index into the round's receives; `None` for an unexpected message.
    recv: Option<usize>,
}

impl Receiver {
    pub(super) fn new(peer: Rank, streams: &[usize], max_unexpected_bytes: usize) -> Self {
        let track = |&stream: &usize| {
            let (inbox, body, next_sequence, to_skip) = (Inbox::new(), None, 0, 0);
            Track { stream, inbox, body, next_sequence, to_skip }
        };
        Self {
            peer,
            tracks: streams.iter().map(track).collect(),
            open: VecDeque::new(),
            unexpected: UnexpectedQueue::new(max_unexpected_bytes),
            num_opened: 0,
            next_recv: 0,
            num_unopened: 0,
            num_unfinished: 0,
            is_torn: false,
            epoch: 0,
            max_unexpected_bytes,
        }
    }

    /// Posts the receives of a round; matching unexpected messages are delivered at once.
    pub(super) fn begin(&mut self, round: &mut Round<'_>) -> Result<(), PeerError> {
        debug_assert!(self.is_done(), "the last round is over");
        let recvs = round.recvs;
        if self.is_torn && recvs.iter().any(|(peer, _)| *peer == self.peer) {
            return Err(PeerError::Closed);
        }
        self.next_recv = recvs.len();
        for (index, (peer, window)) in recvs.iter().enumerate() {
            if *peer != self.peer {
                continue;
            }
            self.num_unfinished += 1;
            if let Some(unexpected) = self.unexpected.claim(&round.envelope, index) {
                unexpected.check(&round.envelope, window.len())?;
                if unexpected.is_complete() {
                    let sequence = unexpected.sequence;
                    self.deliver(round, sequence);
                }
            } else {
                self.num_unopened += 1;
                self.next_recv = self.next_recv.min(index);
            }
        }
        Ok(())
    }

    /// Drops the receives of a round that failed. What is left of a message has no target any more,
    /// so nothing can be received from the peer until the next epoch.
    pub(super) fn abandon(&mut self) {
        self.is_torn |= !self.is_done();
        (self.num_unopened, self.num_unfinished) = (0, 0);
    }

    pub(super) fn is_done(&self) -> bool {
        self.num_unfinished == 0
    }

    /// Streams on which bytes of the round may arrive.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        let indices = (0..self.tracks.len()).filter(|&index| self.expects(index));
        indices.map(|index| self.tracks[index].stream)
    }

    /// Reads at most one long piece per stream without blocking; returns whether any byte arrived.
    pub(super) fn step(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
    ) -> Result<bool, PeerError> {
        let mut has_moved = false;
        for index in 0..self.tracks.len() {
            while self.expects(index) {
                let before = self.tracks[index].inbox.len();
                match self.pull(set, round, index) {
                    Ok(()) => has_moved = true,
                    Err(PeerError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
                // Buffered bytes do not make the stream ready, so consume them before sleeping.
                if before == 0 && self.tracks[index].inbox.len() == 0 {
                    break;
                }
            }
        }
        Ok(has_moved)
    }

    /// Signature of a later call that an awaited peer has already made, if one is queued.
    pub(super) fn call_ahead_of(&self, expected: &Envelope) -> Option<Signature> {
        if self.is_done() { None } else { self.unexpected.call_ahead_of(expected) }
    }

    /// The header of the next message, if it has arrived and no receive has read it.
    pub(super) fn peek(&mut self, set: &mut dyn StreamSet) -> Option<Header> {
        let track = &mut self.tracks[0];
        if track.body.is_some() {
            return None;
        }
        if track.inbox.len() < HEADER_BYTES {
            // An error of the stream surfaces at the next receive.
            let _ = track.inbox.fill(|space| set.read(track.stream, space));
        }
        let is_skipping = track.to_skip > 0;
        let header = Header::decode(&track.inbox.peek_array()?)?;
        (!is_skipping && header.epoch == self.epoch).then_some(header)
    }

    /// Whether a message that matches an envelope is in the unexpected queue or next on the stream.
    pub(super) fn has_message(&mut self, set: &mut dyn StreamSet, expected: &Envelope) -> bool {
        let is_expected = |header: Header| header.envelope.matches(expected);
        self.unexpected.has(expected) || self.peek(set).is_some_and(is_expected)
    }

    /// The stream that carries headers.
    pub(super) fn first_stream(&self) -> usize {
        self.tracks[0].stream
    }

    /// Whether the round expects bytes on a stream.
    fn expects(&self, index: usize) -> bool {
        if self.is_done() {
            return false;
        }
        self.tracks[index].body.is_some()
            || self.tracks[index].to_skip > 0
            || if index == 0 { self.num_unopened > 0 } else { self.next_open(index).is_some() }
    }

    /// The next open message with bytes on a stream other than the first.
    fn next_open(&self, index: usize) -> Option<&Open> {
        let (num_streams, first) = (self.tracks.len(), self.tracks[index].next_sequence);
        self.open.iter().find(|open| {
            open.header.sequence >= first && part_bytes(open.len, num_streams, index) > 0
        })
    }

    /// Reads once from the stream or from its inbox.
    fn pull(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
        index: usize,
    ) -> Result<(), PeerError> {
        if self.tracks[index].to_skip > 0 {
            return self.tracks[index].skip(set);
        }
        let Some((sequence, position)) = self.tracks[index].body else {
            return self.pull_header(set, round, index);
        };
        let num_streams = self.tracks.len();
        let at = self.position_of(sequence);
        let (len, recv) = (self.open[at].len, self.open[at].recv);
        let run = run(len, num_streams, index, position);
        let run = run.start..run.end.min(run.start + MAX_CALL_BYTES);
        let window = match recv {
            Some(recv) => round.recvs[recv].1.part(run),
            None => self.unexpected.window(sequence, run),
        };
        let track = &mut self.tracks[index];
        let num_bytes = match track.inbox.take(window) {
            0 => window.read_from(&mut From { set, stream: track.stream })?,
            taken => taken,
        };
        if num_bytes == 0 {
            return Err(PeerError::Closed);
        }
        let position = position + num_bytes;
        track.body = Some((sequence, position));
        if position == part_bytes(len, num_streams, index) {
            track.body = None;
            track.next_sequence = sequence + 1;
        }
        if recv.is_some() {
            round.done_bytes += num_bytes as u64;
        }
        self.open[at].left -= num_bytes;
        self.close_finished(round, sequence);
        Ok(())
    }

    fn pull_header(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
        index: usize,
    ) -> Result<(), PeerError> {
        let num_streams = self.tracks.len();
        let track = &mut self.tracks[index];
        if track.inbox.len() < HEADER_BYTES
            && track.inbox.fill(|space| set.read(track.stream, space))? == 0
        {
            return Err(PeerError::Closed);
        }
        let Some(bytes) = track.inbox.peek_array() else { return Ok(()) };
        let header = Header::decode(&bytes)
            .ok_or_else(|| PeerError::Protocol("it sent bytes that are no message".to_owned()))?;
        let ahead = header.epoch.wrapping_sub(self.epoch).cast_signed();
        if ahead > 0 {
            // The peer is in the next epoch already; its report is on the control stream.
            return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
        }
        let _: Option<[u8; HEADER_BYTES]> = track.inbox.take_array();
        if ahead < 0 {
            let len = usize::try_from(header.length).unwrap_or(usize::MAX);
            track.to_skip = part_bytes(len, num_streams, index);
            return Ok(());
        }
        if usize::from(header.stream) != index {
            return Err(PeerError::Protocol(format!(
                "it sent on stream {index} what belongs on stream {}",
                header.stream
            )));
        }
        if index == 0 {
            self.open_message(round, header)
        } else {
            self.continue_message(index, &header)
        }
    }

    /// Selects the target of the next message.
    fn open_message(&mut self, round: &mut Round<'_>, header: Header) -> Result<(), PeerError> {
        if header.sequence != self.num_opened {
            return Err(PeerError::Protocol(format!(
                "it sent message {} where message {} was expected",
                header.sequence, self.num_opened
            )));
        }
        self.num_opened += 1;
        if header.envelope.is_left_over(&round.envelope) {
            let Envelope { number, signature, .. } = header.envelope;
            return Err(PeerError::EarlierMismatch(number, signature));
        }
        let is_expected = self.num_unopened > 0 && header.envelope.matches(&round.envelope);
        let (recv, len) = if is_expected {
            let len = round.recvs[self.next_recv].1.len();
            header.check(&round.envelope.signature, len)?;
            let recv = self.next_recv;
            let later = round.recvs.iter().skip(recv + 1).position(|(peer, _)| *peer == self.peer);
            self.next_recv = later.map_or(round.recvs.len(), |later| recv + 1 + later);
            self.num_unopened -= 1;
            (Some(recv), len)
        } else {
            (None, self.unexpected.add(&header)?)
        };
        self.open.push_back(Open { header, len, left: len, recv });
        self.tracks[0].body = (len > 0).then_some((header.sequence, 0));
        self.close_finished(round, header.sequence);
        Ok(())
    }

    /// Checks that the header on another stream equals the one on the first stream.
    fn continue_message(&mut self, index: usize, header: &Header) -> Result<(), PeerError> {
        let open = self.next_open(index).expect("a stream is read only while one is open");
        let expected = Header { stream: index as u16, ..open.header };
        if *header != expected {
            return Err(PeerError::Protocol(format!(
                "it sent message {} on stream {index} where message {} was expected",
                header.sequence, expected.sequence
            )));
        }
        self.tracks[index].body = Some((header.sequence, 0));
        Ok(())
    }

    /// Starts an epoch: drops all receives of the last one, and skips the rest of their messages.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        let num_streams = self.tracks.len();
        for (index, track) in self.tracks.iter_mut().enumerate() {
            if let Some((sequence, position)) = track.body.take() {
                let open = self.open.iter().find(|open| open.header.sequence == sequence);
                let len = open.expect("a stream is at a message that is open").len;
                track.to_skip = part_bytes(len, num_streams, index) - position;
            }
            track.next_sequence = 0;
        }
        self.open.clear();
        self.unexpected = UnexpectedQueue::new(self.max_unexpected_bytes);
        (self.num_opened, self.num_unopened, self.num_unfinished) = (0, 0, 0);
        self.is_torn = false;
        self.epoch = epoch as u16;
    }

    fn position_of(&self, sequence: u64) -> usize {
        let found = self.open.iter().position(|open| open.header.sequence == sequence);
        found.expect("a stream is at a message that is open")
    }

    /// Closes a message once all its bytes have arrived.
    fn close_finished(&mut self, round: &mut Round<'_>, sequence: u64) {
        let at = self.position_of(sequence);
        if self.open[at].left > 0 {
            return;
        }
        let recv = self.open.remove(at).expect("found above").recv;
        if recv.is_some() {
            self.num_unfinished -= 1;
        } else if self.unexpected.finish(sequence) {
            self.deliver(round, sequence);
        }
    }

    /// Copies a complete unexpected message to the receive that claimed it.
    fn deliver(&mut self, round: &mut Round<'_>, sequence: u64) {
        let (bytes, recv) = self.unexpected.remove(sequence);
        round.recvs[recv].1.copy_from_slice(&bytes);
        round.done_bytes += bytes.len() as u64;
        self.num_unfinished -= 1;
    }
}

impl Track {
    /// Discards bytes of an earlier epoch.
    fn skip(&mut self, set: &mut dyn StreamSet) -> Result<(), PeerError> {
        let mut bytes = [0; 16 << 10];
        let window = &mut bytes[..self.to_skip.min(16 << 10)];
        let num_bytes = match self.inbox.take(Target::of(window)) {
            0 => set.read(self.stream, window)?,
            taken => taken,
        };
        self.to_skip -= num_bytes;
        if num_bytes == 0 { Err(PeerError::Closed) } else { Ok(()) }
    }
}

/// Reads from one stream of a set.
struct From<'a> {
    set: &'a mut dyn StreamSet,
    stream: usize,
}

impl Read for From<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.set.read(self.stream, buffer)
    }
}
