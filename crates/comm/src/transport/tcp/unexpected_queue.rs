//! Unexpected messages: messages that arrived before their receive was posted.
//!
//! They are buffered in memory, so each peer has a limit; exceeding it is a protocol error. Memory
//! grows with the bytes that arrive, whatever length a header states. A matching receive *claims* a
//! message, even while its bytes are still arriving.

use std::collections::VecDeque;
use std::ops::Range;

use lockstep_platform::Target;

use super::frame::{HEADER_BYTES, Header};
use super::peer_error::PeerError;
use crate::signature::Signature;
use crate::transport::Envelope;

/// Unexpected messages of one peer, in the order sent.
pub(super) struct UnexpectedQueue {
    messages: VecDeque<UnexpectedMessage>,
    max_bytes: usize,
    /// Bytes of all messages with their headers: empty messages take memory too.
    num_bytes: usize,
}

pub(super) struct UnexpectedMessage {
    pub(super) sequence: u64,
    header: Header,
    len: usize,
    /// The message up to the last byte that arrived or that a read may bring.
    bytes: Vec<u8>,
    is_complete: bool,
    /// The receive of the round that claimed it.
    claimed_by: Option<usize>,
}

impl UnexpectedQueue {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { messages: VecDeque::new(), max_bytes, num_bytes: 0 }
    }

    /// Adds a message; returns its length.
    pub(super) fn add(&mut self, header: &Header) -> Result<usize, PeerError> {
        let len = usize::try_from(header.length).unwrap_or(usize::MAX);
        let total = self.num_bytes.saturating_add(HEADER_BYTES).saturating_add(len);
        if total > self.max_bytes {
            return Err(PeerError::Protocol(format!(
                "it sent {} bytes before any receive was posted, with {} buffered already; at most \
                 {} may be buffered",
                header.length, self.num_bytes, self.max_bytes
            )));
        }
        self.num_bytes = total;
        self.messages.push_back(UnexpectedMessage {
            sequence: header.sequence,
            header: *header,
            len,
            bytes: Vec::new(),
            is_complete: false,
            claimed_by: None,
        });
        Ok(len)
    }

    /// Whether a message that matches an envelope is queued.
    pub(super) fn has(&self, envelope: &Envelope) -> bool {
        self.messages.iter().any(|message| message.header.envelope.matches(envelope))
    }

    /// Claims the first unclaimed message that matches an envelope for receive `recv`.
    pub(super) fn claim(&mut self, envelope: &Envelope, recv: usize) -> Option<&UnexpectedMessage> {
        let message = self.messages.iter_mut().find(|message| {
            message.claimed_by.is_none() && message.header.envelope.matches(envelope)
        })?;
        message.claimed_by = Some(recv);
        Some(message)
    }

    /// Signature of the first queued message of a later call in the same group.
    pub(super) fn call_ahead_of(&self, expected: &Envelope) -> Option<Signature> {
        let ahead = |message: &&UnexpectedMessage| message.header.envelope.is_ahead(expected);
        self.messages.iter().find(ahead).map(|message| message.header.envelope.signature)
    }

    /// Memory for bytes of a message.
    pub(super) fn window(&mut self, sequence: u64, range: Range<usize>) -> Target<'_, u8> {
        let at = self.position(sequence);
        let UnexpectedMessage { bytes, len, .. } = &mut self.messages[at];
        if range.end > bytes.capacity() {
            let capacity = (2 * bytes.capacity()).clamp(range.end, *len);
            bytes.reserve_exact(capacity - bytes.len());
        }
        if range.end > bytes.len() {
            bytes.resize(range.end, 0);
        }
        Target::of(&mut bytes[range])
    }

    /// Marks a message as complete; returns whether a receive has claimed it.
    pub(super) fn finish(&mut self, sequence: u64) -> bool {
        let at = self.position(sequence);
        let message = &mut self.messages[at];
        message.is_complete = true;
        message.claimed_by.is_some()
    }

    /// Removes a claimed message; returns its bytes and the receive that claimed it.
    pub(super) fn remove(&mut self, sequence: u64) -> (Vec<u8>, usize) {
        let at = self.position(sequence);
        let message = self.messages.remove(at).expect("found before");
        self.num_bytes -= HEADER_BYTES + message.len;
        let recv = message.claimed_by.expect("only claimed messages are taken");
        (message.bytes, recv)
    }

    fn position(&self, sequence: u64) -> usize {
        let found = self.messages.iter().position(|message| message.sequence == sequence);
        found.expect("the message was added")
    }
}

impl UnexpectedMessage {
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Checks signature and length against a receive.
    pub(super) fn check(&self, envelope: &Envelope, len: usize) -> Result<(), PeerError> {
        self.header.check(&envelope.signature, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Dtype;

    #[test]
    fn memory_grows_with_arrived_bytes_and_not_with_the_stated_length() {
        const LEN: usize = 1 << 29;
        let signature = Signature::message(Dtype::U8, LEN);
        let envelope = Envelope { group: 1, number: 2, signature };
        let header = Header { epoch: 0, stream: 0, sequence: 0, length: LEN as u64, envelope };
        let mut queue = UnexpectedQueue::new(1 << 30);
        assert_eq!(queue.add(&header).expect("it is below the limit"), LEN);
        assert_eq!(queue.messages[0].bytes.capacity(), 0);
        for end in [100, 4000, 100_000] {
            queue.window(0, end - 100..end).fill(7);
            let capacity = queue.messages[0].bytes.capacity();
            assert!((end..=2 * end).contains(&capacity), "{capacity} for {end}");
        }
        // The limit still counts stated lengths: a second such message is too much.
        assert!(queue.add(&Header { sequence: 1, ..header }).is_err());
    }

    #[test]
    fn a_message_that_arrives_in_pieces_from_several_streams_is_whole() {
        let signature = Signature::message(Dtype::U8, 300);
        let envelope = Envelope { group: 1, number: 2, signature };
        let header = Header { epoch: 0, stream: 0, sequence: 5, length: 300, envelope };
        let mut queue = UnexpectedQueue::new(1 << 10);
        queue.add(&header).expect("it is below the limit");
        for (range, value) in [(200..300, 3), (0..100, 1), (100..200, 2)] {
            queue.window(5, range).fill(value);
        }
        queue.claim(&envelope, 4).expect("it matches");
        assert!(queue.finish(5));
        let (bytes, recv) = queue.remove(5);
        assert_eq!((bytes, recv), ([[1; 100], [2; 100], [3; 100]].concat(), 4));
        assert_eq!(queue.num_bytes, 0);
    }
}
