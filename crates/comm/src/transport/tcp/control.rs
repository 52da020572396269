//! Control messages between two ranks.
//!
//! Each pair has one stream without data messages, so that a failing rank can report its failure
//! whatever state the other streams are in. It carries three kinds of messages: an *introduction*
//! with the process and its host, a failure *report*, and *goodbye*. A stream that ends without a
//! report or a goodbye means that the process died.

use std::io::{self, IoSlice};

use lockstep_platform::StreamSet;

use super::PeerError;
use crate::verdict::{MAX_VERDICT_BYTES, Process, Verdict};

const REPORT: u8 = 1;
const GOODBYE: u8 = 2;
const INTRODUCTION: u8 = 3;

/// A message starts with its kind and the length of its body in two bytes.
const PREFIX_BYTES: usize = 3;

/// Longest body.
const MAX_BODY_BYTES: usize = 1024;
const _: () = assert!(MAX_VERDICT_BYTES <= MAX_BODY_BYTES);

/// Longest host name; longer ones are truncated.
const MAX_HOST_BYTES: usize = 128;

/// One peer's control stream.
pub(super) struct Control {
    /// Index in the stream set.
    stream: usize,
    received: Vec<u8>,
    has_left: bool,
    is_closed: bool,
    process: Option<Process>,
    report: Option<Verdict>,
}

impl Control {
    pub(super) fn new(stream: usize) -> Self {
        let received = Vec::with_capacity(PREFIX_BYTES + MAX_BODY_BYTES);
        Self { stream, received, has_left: false, is_closed: false, process: None, report: None }
    }

    /// Index in the stream set.
    pub(super) fn number(&self) -> usize {
        self.stream
    }

    /// Index in the stream set while the peer may still send; `None` after goodbye or the end.
    pub(super) fn stream(&self) -> Option<usize> {
        (!self.has_left && !self.is_closed).then_some(self.stream)
    }

    /// Whether the peer sent goodbye.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// The peer's process, once introduced.
    pub(super) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// The peer's failure report of this epoch; reports of earlier epochs are ignored.
    pub(super) fn report(&self, epoch: u64) -> Option<&Verdict> {
        self.report.as_ref().filter(|report| report.epoch == epoch)
    }

    /// Sends a message. A full or broken stream is ignored: the peer detects the failure itself.
    pub(super) fn send(&self, set: &mut dyn StreamSet, message: &[u8]) {
        let _ = set.write(self.stream, &[IoSlice::new(message)]);
    }

    /// Reads the peer's messages without blocking.
    pub(super) fn poll(&mut self, set: &mut dyn StreamSet) -> Result<(), PeerError> {
        let result = self.poll_stream(set);
        self.is_closed |= result.is_err();
        result
    }

    fn poll_stream(&mut self, set: &mut dyn StreamSet) -> Result<(), PeerError> {
        while !self.has_left && !self.is_closed {
            if let Some((message, len)) = parse(&self.received)? {
                self.received.drain(..len);
                match message {
                    ControlMessage::Goodbye => self.has_left = true,
                    ControlMessage::Introduction(process) => self.process = Some(process),
                    ControlMessage::Report(verdict) => self.report = Some(verdict),
                }
                continue;
            }
            let len = self.received.len();
            self.received.resize(PREFIX_BYTES + MAX_BODY_BYTES, 0);
            let result = set.read(self.stream, &mut self.received[len..]);
            self.received.truncate(len + result.as_ref().map_or(0, |num_bytes| *num_bytes));
            match result {
                Ok(0) => return Err(PeerError::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A failure report.
pub(super) fn encode_report(verdict: &Verdict) -> Vec<u8> {
    message(REPORT, &verdict.encode())
}

/// The first message of a stream.
pub(super) fn encode_introduction(id: u32, host: &str) -> Vec<u8> {
    let host = &host[..host.floor_char_boundary(MAX_HOST_BYTES)];
    message(INTRODUCTION, &[&id.to_le_bytes(), host.as_bytes()].concat())
}

/// The last message of a stream.
pub(super) fn encode_goodbye() -> Vec<u8> {
    message(GOODBYE, &[])
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let [low, high] = (body.len() as u16).to_le_bytes();
    [&[kind, low, high], body].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum ControlMessage {
    Introduction(Process),
    Report(Verdict),
    Goodbye,
}

/// The first message in the bytes and its length; `None` while it is incomplete.
fn parse(bytes: &[u8]) -> Result<Option<(ControlMessage, usize)>, PeerError> {
    let protocol_error =
        || PeerError::Protocol("it sent an unknown message on its control stream".to_owned());
    let Some(&[kind, low, high]) = bytes.first_chunk() else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes([low, high]));
    if len > MAX_BODY_BYTES {
        return Err(protocol_error());
    }
    let Some(body) = bytes.get(PREFIX_BYTES..PREFIX_BYTES + len) else { return Ok(None) };
    let message = match (kind, body.split_first_chunk()) {
        (GOODBYE, None) => Some(ControlMessage::Goodbye),
        (REPORT, _) => Verdict::decode(body).map(ControlMessage::Report),
        (INTRODUCTION, Some((id, host))) if host.len() <= MAX_HOST_BYTES => {
            let host = String::from_utf8_lossy(host).into_owned();
            Some(ControlMessage::Introduction(Process { host, id: u32::from_le_bytes(*id) }))
        }
        _ => None,
    };
    message.map(|message| Some((message, PREFIX_BYTES + len))).ok_or_else(protocol_error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_parse_once_they_are_complete() {
        let bytes = encode_introduction(300, "no");
        for len in 0..bytes.len() {
            assert!(matches!(parse(&bytes[..len]), Ok(None)));
        }
        let message = ControlMessage::Introduction(Process { host: "no".to_owned(), id: 300 });
        let both = [bytes.clone(), encode_goodbye()].concat();
        assert!(
            matches!(parse(&both), Ok(Some((found, len))) if found == message && len == bytes.len())
        );
        assert!(matches!(parse(&both[bytes.len()..]), Ok(Some((ControlMessage::Goodbye, 3)))));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_are_incomplete_or_are_rejected(
            bytes in prop::collection::vec(any::<u8>(), 0..PREFIX_BYTES + MAX_BODY_BYTES),
        ) {
            // The buffer holds the longest message, so an incomplete one has room to grow.
            if let Ok(None) = parse(&bytes) {
                prop_assert!(bytes.len() < PREFIX_BYTES + MAX_BODY_BYTES);
            }
        }
    }
}
