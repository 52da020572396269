//! Sends the messages of a round to one peer.
//!
//! Each stream has its own cursor: the current message, and the number of bytes of its header and
//! part that were sent. The streams do not wait for each other; a stream that has sent its part of
//! a message continues with the next message that has a part for it.

use std::io::{self, IoSlice, Write};

use lockstep_mesh::Rank;
use lockstep_platform::StreamSet;

use super::frame::{HEADER_BYTES, Header};
use super::stripe::{part_bytes, run};
use super::{MAX_CALL_BYTES, PeerError};
use crate::transport::Round;

/// Sending half of a link.
pub(super) struct Sender {
    peer: Rank,
    /// Index in the stream set, and cursor, of each stream.
    streams: Vec<(usize, Cursor)>,
    /// Messages sent in this epoch, those of this round included.
    num_messages: u64,
    epoch: u16,
    /// Unsent remainder of a torn message, by stream: header bytes, and number of body bytes. The
    /// receiver skips them and finds the next header behind them.
    torn: Vec<(Vec<u8>, usize)>,
}

/// Padding for the body of a torn message.
static PADDING: [u8; 16 << 10] = [0; 16 << 10];

#[derive(Clone, Copy, Default)]
struct Cursor {
    /// Index into the round's sends; `None` once the stream is done.
    message: Option<usize>,
    sequence: u64,
    /// Bytes of the header and the part that were sent.
    position: usize,
}

impl Sender {
    pub(super) fn new(peer: Rank, streams: &[usize]) -> Self {
        let streams: Vec<_> = streams.iter().map(|&stream| (stream, Cursor::default())).collect();
        let torn = vec![(Vec::new(), 0); streams.len()];
        Self { peer, streams, num_messages: 0, epoch: 0, torn }
    }

    /// Posts the messages of a round.
    pub(super) fn begin(&mut self, round: &Round<'_>) {
        let num_streams = self.streams.len();
        for (stream, (_, cursor)) in self.streams.iter_mut().enumerate() {
            let start = Cursor { message: None, sequence: self.num_messages, position: 0 };
            *cursor = next(round, self.peer, num_streams, stream, 0, start);
        }
        let to_peer = round.sends.iter().filter(|(peer, _)| *peer == self.peer);
        self.num_messages += to_peer.count() as u64;
    }

    /// Stream set indices of all streams to the peer.
    pub(super) fn streams(&self) -> impl Iterator<Item = usize> {
        self.streams.iter().map(|(stream, _)| *stream)
    }

    pub(super) fn is_done(&self) -> bool {
        self.streams.iter().all(|(_, cursor)| cursor.message.is_none())
    }

    /// Streams with more to send.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        let unfinished = self.streams.iter().filter(|(_, cursor)| cursor.message.is_some());
        unfinished.map(|(stream, _)| *stream)
    }

    /// Writes at most once to each stream without blocking; returns whether any byte was sent.
    pub(super) fn step(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
    ) -> Result<bool, PeerError> {
        let mut has_moved = false;
        for stream in 0..self.streams.len() {
            let (_, Cursor { message: Some(message), .. }) = self.streams[stream] else { continue };
            match self.push(set, round, stream, message) {
                Ok(()) => has_moved = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(has_moved)
    }

    fn push(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
        stream: usize,
        message: usize,
    ) -> io::Result<()> {
        if self.torn[stream].0.len() + self.torn[stream].1 > 0 {
            return self.pad(set, stream);
        }
        let num_streams = self.streams.len();
        let (number, cursor) = &mut self.streams[stream];
        let window = round.sends[message].1;
        let len = window.len();
        let sent = cursor.position.saturating_sub(HEADER_BYTES);
        let header = Header {
            epoch: self.epoch,
            stream: stream as u16,
            sequence: cursor.sequence,
            length: len as u64,
            envelope: round.envelope,
        };
        let header = header.encode();
        let front = &header[cursor.position.min(HEADER_BYTES)..];
        let run = run(len, num_streams, stream, sent);
        let run = run.start..run.end.min(run.start + MAX_CALL_BYTES);
        let num_bytes =
            window.part(run).write_to(&mut WithPrefix { set, stream: *number, front })?;
        cursor.position += num_bytes;
        round.done_bytes += num_bytes.saturating_sub(front.len()) as u64;
        if cursor.position == HEADER_BYTES + part_bytes(len, num_streams, stream) {
            let start = Cursor { message: None, sequence: cursor.sequence + 1, position: 0 };
            *cursor = next(round, self.peer, num_streams, stream, message + 1, start);
        }
        Ok(())
    }
}

impl Sender {
    /// Abandons the round. A message that was partly sent is completed with padding later, because
    /// the receiver counts bytes.
    pub(super) fn abandon(&mut self, round: &Round<'_>) {
        let num_streams = self.streams.len();
        for (stream, (_, cursor)) in self.streams.iter_mut().enumerate() {
            if let Some(message) = cursor.message.take()
                && cursor.position > 0
            {
                let len = round.sends[message].1.len();
                let header = Header {
                    epoch: self.epoch,
                    stream: stream as u16,
                    sequence: cursor.sequence,
                    length: len as u64,
                    envelope: round.envelope,
                };
                let front = header.encode()[cursor.position.min(HEADER_BYTES)..].to_vec();
                let sent = cursor.position.saturating_sub(HEADER_BYTES);
                self.torn[stream] = (front, part_bytes(len, num_streams, stream) - sent);
            }
        }
    }

    /// Starts an epoch, in which messages are numbered from 0.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch as u16;
        self.num_messages = 0;
    }

    fn pad(&mut self, set: &mut dyn StreamSet, stream: usize) -> io::Result<()> {
        let (front, rest) = &mut self.torn[stream];
        let padding = &PADDING[..(*rest).min(PADDING.len())];
        let num_bytes =
            set.write(self.streams[stream].0, &[IoSlice::new(front), IoSlice::new(padding)])?;
        let num_front = num_bytes.min(front.len());
        front.drain(..num_front);
        *rest -= num_bytes - num_front;
        Ok(())
    }
}

/// The first message from index `first` on that goes to `peer` and has bytes for the stream. Every
/// message, even an empty one, has a header on the first stream.
fn next(
    round: &Round<'_>,
    peer: Rank,
    num_streams: usize,
    stream: usize,
    first: usize,
    mut cursor: Cursor,
) -> Cursor {
    for (index, (to, window)) in round.sends.iter().enumerate().skip(first) {
        if *to == peer {
            if stream == 0 || part_bytes(window.len(), num_streams, stream) > 0 {
                cursor.message = Some(index);
                break;
            }
            cursor.sequence += 1;
        }
    }
    cursor
}

/// Writes a prefix and the given bytes in one call.
struct WithPrefix<'a> {
    set: &'a mut dyn StreamSet,
    stream: usize,
    front: &'a [u8],
}

impl Write for WithPrefix<'_> {
    /// Returns the number of bytes of both that were written.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.front.is_empty() {
            return self.set.write(self.stream, &[IoSlice::new(bytes)]);
        }
        self.set.write(self.stream, &[IoSlice::new(self.front), IoSlice::new(bytes)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
