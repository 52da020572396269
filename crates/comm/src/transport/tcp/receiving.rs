//! The messages of a round that come from one peer.
//!
//! Messages are opened in the order in which they were sent, by their header on the first stream;
//! that decides where they go. The other streams are looked at only when a message is open that
//! has bytes on them. A message that nobody asked for yet (under another tag, or of another group)
//! is put aside until somebody does.
//!
//! A peer from which the round wants nothing is not read at all: what it sends waits on the way,
//! and if that is full, at the peer.

use std::collections::VecDeque;
use std::io::{self, Read};

use lockstep_mesh::Rank;
use lockstep_platform::{StreamSet, Target};

use super::early::Early;
use super::frame::{HEADER_BYTES, Header};
use super::inbox::Inbox;
use super::stripe::{part_bytes, run};
use super::{MAX_CALL_BYTES, Trouble, is_for};
use crate::signature::Signature;
use crate::transport::{Envelope, Round};

/// One peer's incoming half.
pub(super) struct Receiver {
    peer: Rank,
    tracks: Vec<Track>,
    /// Messages whose header was read and whose bytes have not all come, in the order sent.
    open: VecDeque<Open>,
    early: Early,
    /// Messages ever opened.
    num_opened: u64,
    /// Where in the round's receives the next message from this peer goes.
    next_recv: usize,
    /// Receives of the round whose message was not opened yet, and whose message is not complete.
    num_unopened: usize,
    num_unfinished: usize,
    epoch: u16,
    max_early_bytes: usize,
}

/// One stream.
struct Track {
    /// The number in the set.
    stream: usize,
    inbox: Inbox,
    /// The message whose bytes come next: its sequence number and how many have come.
    body: Option<(u64, usize)>,
    /// The first message that the stream may still have bytes of.
    next_sequence: u64,
    /// Bytes of an earlier epoch's message that are still to come.
    to_skip: usize,
}

/// A message on its way.
struct Open {
    header: Header,
    len: usize,
    /// Bytes that have not come.
    left: usize,
    /// An index into the round's receives; nothing for a message that is put aside.
    recv: Option<usize>,
}

impl Receiver {
    pub(super) fn new(peer: Rank, streams: &[usize], max_early_bytes: usize) -> Self {
        let track = |&stream: &usize| {
            let (inbox, body, next_sequence, to_skip) = (Inbox::new(), None, 0, 0);
            Track { stream, inbox, body, next_sequence, to_skip }
        };
        Self {
            peer,
            tracks: streams.iter().map(track).collect(),
            open: VecDeque::new(),
            early: Early::new(max_early_bytes),
            num_opened: 0,
            next_recv: 0,
            num_unopened: 0,
            num_unfinished: 0,
            epoch: 0,
            max_early_bytes,
        }
    }

    /// Takes up the messages of a round; those that came early are delivered at once.
    pub(super) fn begin(&mut self, round: &mut Round<'_>) -> Result<(), Trouble> {
        debug_assert!(self.is_done(), "the last round is over");
        let recvs = round.recvs;
        self.next_recv = recvs.len();
        for (index, (peer, window)) in recvs.iter().enumerate() {
            if *peer != self.peer {
                continue;
            }
            self.num_unfinished += 1;
            if let Some(early) = self.early.claim(&round.envelope, index) {
                early.check(&round.envelope, window.len())?;
                if early.is_complete() {
                    let sequence = early.sequence;
                    self.deliver(round, sequence);
                }
            } else {
                self.num_unopened += 1;
                self.next_recv = self.next_recv.min(index);
            }
        }
        Ok(())
    }

    pub(super) fn is_done(&self) -> bool {
        self.num_unfinished == 0
    }

    /// The streams on which bytes of the round may come.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        let indices = (0..self.tracks.len()).filter(|&index| self.expects(index));
        indices.map(|index| self.tracks[index].stream)
    }

    /// Takes what has come, at most one long read a stream; returns whether any has.
    pub(super) fn step(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
    ) -> Result<bool, Trouble> {
        let mut has_moved = false;
        for index in 0..self.tracks.len() {
            while self.expects(index) {
                let before = self.tracks[index].inbox.len();
                match self.pull(set, round, index) {
                    Ok(()) => has_moved = true,
                    Err(Trouble::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(trouble) => return Err(trouble),
                }
                // What lies in the inbox would not wake anybody, so it is used up first.
                if before == 0 && self.tracks[index].inbox.len() == 0 {
                    break;
                }
            }
        }
        Ok(has_moved)
    }

    /// What a peer calls that is still waited for in an earlier call, if it has said so.
    pub(super) fn call_ahead_of(&self, wanted: &Envelope) -> Option<Signature> {
        if self.is_done() { None } else { self.early.call_ahead_of(wanted) }
    }

    /// The header of a message that has come and that nobody asked for, if one is next.
    pub(super) fn peek(&mut self, set: &mut dyn StreamSet) -> Option<Header> {
        let track = &mut self.tracks[0];
        if track.body.is_some() {
            return None;
        }
        if track.inbox.len() < HEADER_BYTES {
            // Whatever is wrong with the stream is found out by whoever needs it.
            let _ = track.inbox.fill(|space| set.read(track.stream, space));
        }
        let is_skipping = track.to_skip > 0;
        let header = Header::decode(&track.inbox.peek_array()?)?;
        (!is_skipping && header.epoch == self.epoch).then_some(header)
    }

    /// Whether a message for an envelope has come before it was asked for, or is next.
    pub(super) fn has_message(&mut self, set: &mut dyn StreamSet, wanted: &Envelope) -> bool {
        let is_wanted = |header: Header| is_for(&header.envelope, wanted);
        self.early.has(wanted) || self.peek(set).is_some_and(is_wanted)
    }

    /// The stream that headers come on.
    pub(super) fn first_stream(&self) -> usize {
        self.tracks[0].stream
    }

    /// Whether a stream has something to read for this round.
    fn expects(&self, index: usize) -> bool {
        if self.is_done() {
            return false;
        }
        self.tracks[index].body.is_some()
            || self.tracks[index].to_skip > 0
            || if index == 0 { self.num_unopened > 0 } else { self.next_open(index).is_some() }
    }

    /// The next open message with bytes on a stream that is not the first.
    fn next_open(&self, index: usize) -> Option<&Open> {
        let (num_streams, first) = (self.tracks.len(), self.tracks[index].next_sequence);
        self.open.iter().find(|open| {
            open.header.sequence >= first && part_bytes(open.len, num_streams, index) > 0
        })
    }

    /// One read, or one use of the inbox.
    fn pull(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
        index: usize,
    ) -> Result<(), Trouble> {
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
            None => self.early.window(sequence, run),
        };
        let track = &mut self.tracks[index];
        let num_bytes = match track.inbox.take(window) {
            0 => window.read_from(&mut From { set, stream: track.stream })?,
            taken => taken,
        };
        if num_bytes == 0 {
            return Err(Trouble::Closed);
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
    ) -> Result<(), Trouble> {
        let num_streams = self.tracks.len();
        let track = &mut self.tracks[index];
        if track.inbox.len() < HEADER_BYTES
            && track.inbox.fill(|space| set.read(track.stream, space))? == 0
        {
            return Err(Trouble::Closed);
        }
        let Some(bytes) = track.inbox.peek_array() else { return Ok(()) };
        let header = Header::decode(&bytes)
            .ok_or_else(|| Trouble::Strange("it sent bytes that are no message".to_owned()))?;
        let ahead = header.epoch.wrapping_sub(self.epoch).cast_signed();
        if ahead > 0 {
            // The peer has gone on without this rank's knowledge; why, it will hear in a moment.
            return Err(io::Error::from(io::ErrorKind::WouldBlock).into());
        }
        let _: Option<[u8; HEADER_BYTES]> = track.inbox.take_array();
        if ahead < 0 {
            let len = usize::try_from(header.length).unwrap_or(usize::MAX);
            track.to_skip = part_bytes(len, num_streams, index);
            return Ok(());
        }
        if usize::from(header.stream) != index {
            return Err(Trouble::Strange(format!(
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

    /// Decides where the next message goes.
    fn open_message(&mut self, round: &mut Round<'_>, header: Header) -> Result<(), Trouble> {
        if header.sequence != self.num_opened {
            return Err(Trouble::Strange(format!(
                "it sent message {} where message {} was expected",
                header.sequence, self.num_opened
            )));
        }
        self.num_opened += 1;
        if header.envelope.is_left_over(&round.envelope) {
            let Envelope { number, signature, .. } = header.envelope;
            return Err(Trouble::EarlierMismatch(number, signature));
        }
        let is_wanted = self.num_unopened > 0 && is_for(&header.envelope, &round.envelope);
        let (recv, len) = if is_wanted {
            let len = round.recvs[self.next_recv].1.len();
            check(&header, &round.envelope.signature, len)?;
            let recv = self.next_recv;
            let later = round.recvs.iter().skip(recv + 1).position(|(peer, _)| *peer == self.peer);
            self.next_recv = later.map_or(round.recvs.len(), |later| recv + 1 + later);
            self.num_unopened -= 1;
            (Some(recv), len)
        } else {
            (None, self.early.add(&header)?)
        };
        self.open.push_back(Open { header, len, left: len, recv });
        self.tracks[0].body = (len > 0).then_some((header.sequence, 0));
        self.close_finished(round, header.sequence);
        Ok(())
    }

    /// The header of a message on another stream than the first says what the first said.
    fn continue_message(&mut self, index: usize, header: &Header) -> Result<(), Trouble> {
        let open = self.next_open(index).expect("only then the stream is read");
        let expected = Header { stream: index as u16, ..open.header };
        if *header != expected {
            return Err(Trouble::Strange(format!(
                "it sent message {} on stream {index} where message {} was expected",
                header.sequence, expected.sequence
            )));
        }
        self.tracks[index].body = Some((header.sequence, 0));
        Ok(())
    }

    /// Goes on in another epoch: what was asked for before is not asked for any more, and what
    /// still comes of it is skipped.
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
        self.early = Early::new(self.max_early_bytes);
        (self.num_opened, self.num_unopened, self.num_unfinished) = (0, 0, 0);
        self.epoch = epoch as u16;
    }

    fn position_of(&self, sequence: u64) -> usize {
        let found = self.open.iter().position(|open| open.header.sequence == sequence);
        found.expect("a stream is at a message that is open")
    }

    /// Takes a message off the list once all its bytes have come.
    fn close_finished(&mut self, round: &mut Round<'_>, sequence: u64) {
        let at = self.position_of(sequence);
        if self.open[at].left > 0 {
            return;
        }
        let recv = self.open.remove(at).expect("found above").recv;
        if recv.is_some() {
            self.num_unfinished -= 1;
        } else if self.early.finish(sequence) {
            self.deliver(round, sequence);
        }
    }

    /// Copies a complete message that came early to the receive that claimed it.
    fn deliver(&mut self, round: &mut Round<'_>, sequence: u64) {
        let (bytes, recv) = self.early.remove(sequence);
        round.recvs[recv].1.copy_from_slice(&bytes);
        round.done_bytes += bytes.len() as u64;
        self.num_unfinished -= 1;
    }
}

impl Track {
    /// Throws away bytes of an earlier epoch.
    fn skip(&mut self, set: &mut dyn StreamSet) -> Result<(), Trouble> {
        let mut bytes = [0; 16 << 10];
        let window = &mut bytes[..self.to_skip.min(16 << 10)];
        let num_bytes = match self.inbox.take(Target::of(window)) {
            0 => set.read(self.stream, window)?,
            taken => taken,
        };
        self.to_skip -= num_bytes;
        if num_bytes == 0 { Err(Trouble::Closed) } else { Ok(()) }
    }
}

/// Whether a message that answers to the right name is also the right message.
pub(super) fn check(
    header: &Header,
    expected: &Signature,
    expected_len: usize,
) -> Result<(), Trouble> {
    let theirs = header.envelope.signature;
    if theirs != *expected {
        return Err(Trouble::Mismatch(theirs));
    }
    if header.length != expected_len as u64 {
        let (sent, call) = (header.length, expected);
        return Err(Trouble::Strange(format!(
            "it sent {sent} bytes where {expected_len} were expected, both for {call}"
        )));
    }
    Ok(())
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
