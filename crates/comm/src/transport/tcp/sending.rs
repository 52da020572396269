//! The messages of a round that go to one peer.
//!
//! Each stream has a cursor of its own: the message it is at, and how many bytes of header and
//! part it has taken. The streams do not wait for each other; a stream that is done with its part
//! of a message goes on to the next message that has a part for it.

use std::io::{self, IoSlice, Write};

use lockstep_mesh::Rank;
use lockstep_platform::StreamSet;

use super::frame::{HEADER_BYTES, Header};
use super::stripe::{part_bytes, run};
use super::{MAX_CALL_BYTES, Trouble};
use crate::transport::Round;

/// One peer's outgoing half.
pub(super) struct Sender {
    peer: Rank,
    /// Numbers in the set, and how far each stream is.
    streams: Vec<(usize, Cursor)>,
    /// Messages ever sent, those of this round included.
    num_messages: u64,
    epoch: u16,
    /// By stream, what is owed of a message that was broken off: the rest of its header, and how
    /// many bytes after that. The receiver skips them, and finds the next header behind.
    debts: Vec<(Vec<u8>, usize)>,
}

/// Bytes that stand for those of a message that was broken off.
static PADDING: [u8; 16 << 10] = [0; 16 << 10];

#[derive(Clone, Copy, Default)]
struct Cursor {
    /// An index into the round's sends; nothing when the stream has no more to do.
    message: Option<usize>,
    sequence: u64,
    /// Bytes of the header and the part that have left.
    position: usize,
}

impl Sender {
    pub(super) fn new(peer: Rank, streams: &[usize]) -> Self {
        let streams: Vec<_> = streams.iter().map(|&stream| (stream, Cursor::default())).collect();
        let debts = vec![(Vec::new(), 0); streams.len()];
        Self { peer, streams, num_messages: 0, epoch: 0, debts }
    }

    /// Takes up the messages of a round.
    pub(super) fn begin(&mut self, round: &Round<'_>) {
        let num_streams = self.streams.len();
        for (stream, (_, cursor)) in self.streams.iter_mut().enumerate() {
            let start = Cursor { message: None, sequence: self.num_messages, position: 0 };
            *cursor = next(round, self.peer, num_streams, stream, 0, start);
        }
        let to_peer = round.sends.iter().filter(|(peer, _)| *peer == self.peer);
        self.num_messages += to_peer.count() as u64;
    }

    /// The numbers of all streams to the peer.
    pub(super) fn streams(&self) -> impl Iterator<Item = usize> {
        self.streams.iter().map(|(stream, _)| *stream)
    }

    pub(super) fn is_done(&self) -> bool {
        self.streams.iter().all(|(_, cursor)| cursor.message.is_none())
    }

    /// The streams that have more to send.
    pub(super) fn waiting(&self) -> impl Iterator<Item = usize> {
        let unfinished = self.streams.iter().filter(|(_, cursor)| cursor.message.is_some());
        unfinished.map(|(stream, _)| *stream)
    }

    /// Sends what there is room for, at most one write a stream; returns whether any left.
    pub(super) fn step(
        &mut self,
        set: &mut dyn StreamSet,
        round: &mut Round<'_>,
    ) -> Result<bool, Trouble> {
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
        if self.debts[stream].0.len() + self.debts[stream].1 > 0 {
            return self.pay(set, stream);
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
        let num_bytes = window.part(run).write_to(&mut Behind { set, stream: *number, front })?;
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
    /// Gives up the round: nothing more of it leaves. What has begun must be ended some day,
    /// because the receiver counts bytes.
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
                self.debts[stream] = (front, part_bytes(len, num_streams, stream) - sent);
            }
        }
    }

    /// Goes on in another epoch, in which messages are counted from 0 again.
    pub(super) fn begin_epoch(&mut self, epoch: u64) {
        self.epoch = epoch as u16;
        self.num_messages = 0;
    }

    fn pay(&mut self, set: &mut dyn StreamSet, stream: usize) -> io::Result<()> {
        let (front, rest) = &mut self.debts[stream];
        let padding = &PADDING[..(*rest).min(PADDING.len())];
        let num_bytes =
            set.write(self.streams[stream].0, &[IoSlice::new(front), IoSlice::new(padding)])?;
        let num_front = num_bytes.min(front.len());
        front.drain(..num_front);
        *rest -= num_bytes - num_front;
        Ok(())
    }
}

/// The first message from index `first` on that goes to `peer` and has bytes for the stream; every
/// message has its header on the first stream, even if there is nothing else to it.
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

/// Writes what it is given behind something else, in one call.
struct Behind<'a> {
    set: &'a mut dyn StreamSet,
    stream: usize,
    front: &'a [u8],
}

impl Write for Behind<'_> {
    /// Returns how many bytes of both left together.
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
