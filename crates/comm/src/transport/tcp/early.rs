//! Messages that came before somebody asked for them.
//!
//! They are kept in memory, so there is a limit to how many bytes of them one peer may cause; a
//! peer that sends more is in breach of the protocol. A receive that asks for such a message
//! *claims* it, also when its bytes are still coming.

use std::collections::VecDeque;
use std::ops::Range;

use lockstep_platform::Target;

use super::frame::{HEADER_BYTES, Header};
use super::receiving::check;
use super::{Trouble, is_for};
use crate::signature::Signature;
use crate::transport::Envelope;

/// One peer's early messages, in the order sent.
pub(super) struct Early {
    messages: VecDeque<EarlyMessage>,
    max_bytes: usize,
    /// Bytes of all messages, counting their headers too, since empty ones take room as well.
    num_bytes: usize,
}

pub(super) struct EarlyMessage {
    pub(super) sequence: u64,
    header: Header,
    bytes: Vec<u8>,
    is_complete: bool,
    /// Which receive of the round wants it.
    claimed_by: Option<usize>,
}

impl Early {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { messages: VecDeque::new(), max_bytes, num_bytes: 0 }
    }

    /// Makes room for a message; returns its length.
    pub(super) fn add(&mut self, header: &Header) -> Result<usize, Trouble> {
        let len = usize::try_from(header.length).unwrap_or(usize::MAX);
        let total = self.num_bytes.saturating_add(HEADER_BYTES).saturating_add(len);
        if total > self.max_bytes {
            return Err(Trouble::Strange(format!(
                "it sent {} bytes that nobody asked for yet, with {} waiting already; at most {} \
                 may wait",
                header.length, self.num_bytes, self.max_bytes
            )));
        }
        self.num_bytes = total;
        self.messages.push_back(EarlyMessage {
            sequence: header.sequence,
            header: *header,
            bytes: vec![0; len],
            is_complete: false,
            claimed_by: None,
        });
        Ok(len)
    }

    /// Whether a message for an envelope waits.
    pub(super) fn has(&self, envelope: &Envelope) -> bool {
        self.messages.iter().any(|message| is_for(&message.header.envelope, envelope))
    }

    /// The first message for an envelope that no receive has claimed, now claimed by `recv`.
    pub(super) fn claim(&mut self, envelope: &Envelope, recv: usize) -> Option<&EarlyMessage> {
        let message = self.messages.iter_mut().find(|message| {
            message.claimed_by.is_none() && is_for(&message.header.envelope, envelope)
        })?;
        message.claimed_by = Some(recv);
        Some(message)
    }

    /// What the first message of a later call in the same group is for.
    pub(super) fn call_ahead_of(&self, wanted: &Envelope) -> Option<Signature> {
        let ahead = |message: &&EarlyMessage| message.header.envelope.is_ahead(wanted);
        self.messages.iter().find(ahead).map(|message| message.header.envelope.signature)
    }

    /// Where bytes of a message go.
    pub(super) fn window(&mut self, sequence: u64, range: Range<usize>) -> Target<'_, u8> {
        let at = self.position(sequence);
        Target::of(&mut self.messages[at].bytes[range])
    }

    /// Says that all bytes of a message have come; returns whether somebody has claimed it.
    pub(super) fn finish(&mut self, sequence: u64) -> bool {
        let at = self.position(sequence);
        let message = &mut self.messages[at];
        message.is_complete = true;
        message.claimed_by.is_some()
    }

    /// Takes a claimed message's bytes out, with the receive that claimed it.
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

impl EarlyMessage {
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Whether it is what a receive expects.
    pub(super) fn check(&self, envelope: &Envelope, len: usize) -> Result<(), Trouble> {
        check(&self.header, &envelope.signature, len)
    }
}
