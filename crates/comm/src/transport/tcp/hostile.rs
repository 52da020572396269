//! Fuzz target: feeds arbitrary bytes to the receiver of messages.

use std::io::{self, ErrorKind, IoSlice};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Interest, Listener, Stream, StreamSet, Target};

use super::frame::Header;
use super::receiver::Receiver;
use crate::Dtype;
use crate::signature::Signature;
use crate::transport::{Envelope, Round};

/// Limit of the unexpected queue.
const MAX_UNEXPECTED_BYTES: usize = 64 << 10;

/// Length of each expected message.
const LEN: usize = 300;

/// A valid message as it travels on the first stream.
pub(crate) fn message() -> Vec<u8> {
    let (sequence, length) = (0, LEN as u64);
    let header = Header { epoch: 0, stream: 0, sequence, length, envelope: envelope() };
    [&header.encode()[..], &[7; LEN]].concat()
}

fn envelope() -> Envelope {
    Envelope { group: 1, number: 2, signature: Signature::message(Dtype::U8, LEN) }
}

/// Receives two messages from two streams that deliver these bytes in pieces of this length;
/// returns whether both arrived.
pub(crate) fn receive(streams: [&[u8]; 2], piece: usize) -> bool {
    let mut script = Script { streams, piece: piece.max(1) };
    let mut receiver = Receiver::new(Rank(1), &[0, 1], MAX_UNEXPECTED_BYTES);
    let (mut one, mut other) = ([0; LEN], [0; LEN]);
    let recvs = [(Rank(1), Target::of(&mut one)), (Rank(1), Target::of(&mut other))];
    let mut round =
        Round { envelope: envelope(), sends: &[], recvs: &recvs, done_bytes: 0, arrived: &|_| {} };
    let mut result = receiver.begin(&mut round).map(|()| true);
    while matches!(result, Ok(true)) && !receiver.is_done() {
        result = receiver.step(&mut script, &mut round);
    }
    result.is_ok() && receiver.is_done()
}

/// Streams with fixed contents.
struct Script<'a> {
    streams: [&'a [u8]; 2],
    piece: usize,
}

impl StreamSet for Script<'_> {
    fn read(&mut self, stream: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = &mut self.streams[stream];
        let len = buffer.len().min(rest.len()).min(self.piece);
        let (now, later) = rest.split_at(len);
        buffer[..len].copy_from_slice(now);
        *rest = later;
        Ok(len)
    }

    fn write(&mut self, _stream: usize, _pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(ErrorKind::BrokenPipe.into())
    }

    fn wait(&mut self, _listener: Option<&dyn Listener>, _timeout: Duration) -> io::Result<bool> {
        Ok(true)
    }

    fn is_ready(&self, _stream: usize) -> bool {
        true
    }

    fn watch(&mut self, _stream: usize, _interest: Interest) {}

    fn add(&mut self, _stream: Box<dyn Stream>) -> usize {
        unreachable!("a receiver adds no streams")
    }

    fn remove(&mut self, _stream: usize) -> Box<dyn Stream> {
        unreachable!("a receiver removes no streams")
    }
}
