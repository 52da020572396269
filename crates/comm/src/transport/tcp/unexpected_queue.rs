//! Unexpected messages: messages that arrived before their receive was posted.
//!
//! They are buffered in memory, so each peer has a limit; exceeding it is a protocol error. A
//! matching receive *claims* a message, even while its bytes are still arriving.

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
    bytes: Vec<u8>,
    is_complete: bool,
    /// The receive of the round that claimed it.
    claimed_by: Option<usize>,
}

impl UnexpectedQueue {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { messages: VecDeque::new(), max_bytes, num_bytes: 0 }
    }

    /// Allocates a message; returns its length.
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
            bytes: vec![0; len],
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
        Target::of(&mut self.messages[at].bytes[range])
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
        self.num_bytes -= HEADER_BYTES + message.bytes.len();
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
