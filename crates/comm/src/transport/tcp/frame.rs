//! The header in front of a message's bytes, on each stream that carries some of them.
//!
//! A header is 64 bytes, all numbers little-endian. It repeats everything that the receiver
//! expects, so that a wrong message is detected before any of its bytes is stored. The receiver
//! does not trust it: the length is compared with the expected one, or with a limit, before any
//! allocation.

use super::peer_error::PeerError;
use crate::signature::Signature;
use crate::transport::Envelope;

/// Length of a header.
pub(super) const HEADER_BYTES: usize = 64;

/// First bytes of every header; includes the version of the format.
const MAGIC: [u8; 4] = *b"LkS2";

/// Header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Low bits of the epoch.
    pub(super) epoch: u16,
    /// Stream of the pair, counted from 0.
    pub(super) stream: u16,
    /// Message from this peer, counted from 0.
    pub(super) sequence: u64,
    /// Length of the whole message, on all streams together.
    pub(super) length: u64,
    pub(super) envelope: Envelope,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let Envelope { group, number, signature } = self.envelope;
        let [a, b, c] = signature.pack();
        let first = u64::from(u32::from_le_bytes(MAGIC))
            | u64::from(self.stream) << 32
            | u64::from(self.epoch) << 48;
        let fields = [first, self.sequence, self.length, group, number, a, b, c];
        let mut bytes = [0; HEADER_BYTES];
        let (places, _) = bytes.as_chunks_mut::<8>();
        for (place, word) in places.iter_mut().zip(fields) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Reads a header; `None` without the magic bytes.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (fields, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(fields[index]);
        if bytes[..MAGIC.len()] != MAGIC {
            return None;
        }
        let signature = Signature::unpack([word(5), word(6), word(7)]);
        let envelope = Envelope { group: word(3), number: word(4), signature };
        let (stream, epoch) = ((word(0) >> 32) as u16, (word(0) >> 48) as u16);
        Some(Self { epoch, stream, sequence: word(1), length: word(2), envelope })
    }
}

impl Header {
    /// Checks that a message that matches by envelope also has the expected signature and length.
    pub(super) fn check(&self, expected: &Signature, expected_len: usize) -> Result<(), PeerError> {
        let theirs = self.envelope.signature;
        if theirs != *expected {
            return Err(PeerError::Mismatch(theirs));
        }
        if self.length != expected_len as u64 {
            let (sent, call) = (self.length, expected);
            return Err(PeerError::Protocol(format!(
                "it sent {sent} bytes where {expected_len} were expected, both for {call}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_survives_encoding(
            epoch: u16, stream: u16, sequence: u64, length: u64,
            group: u64, number: u64, fields: [u64; 3],
        ) {
            let envelope = Envelope { group, number, signature: Signature::unpack(fields) };
            let header = Header { epoch, stream, sequence, length, envelope };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
        }

        #[test]
        fn bytes_without_the_magic_are_no_header(
            mut bytes: [u8; HEADER_BYTES],
            flip in 0_usize..32,
        ) {
            bytes[..4].copy_from_slice(&MAGIC);
            prop_assert!(Header::decode(&bytes).is_some());
            bytes[flip / 8] ^= 1 << (flip % 8);
            prop_assert_eq!(Header::decode(&bytes), None);
        }
    }
}
