//! What stands in front of a message's bytes on each stream that carries some of them.
//!
//! A header is 64 bytes, all numbers little-endian. It repeats everything the receiver already
//! expects, so that a message which is not the expected one is noticed before a byte of it is put
//! anywhere. Nothing in it is trusted: the length is compared with the expected one, or with a
//! limit, and is never a reason to allocate on its own.

use crate::signature::Signature;
use crate::transport::Envelope;

/// Length of a header.
pub(super) const HEADER_BYTES: usize = 64;

/// Starts every header, and with it a version of the format.
const MAGIC: [u8; 4] = *b"LkS2";

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// Which of the groups of ranks it belongs to that were formed one after the other; the low
    /// part of the number.
    pub(super) epoch: u16,
    /// Which stream of the pair, counted from 0.
    pub(super) stream: u16,
    /// Which message from this peer, counted from 0.
    pub(super) sequence: u64,
    /// How long the whole message is, on all streams together.
    pub(super) length: u64,
    pub(super) envelope: Envelope,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let Envelope { group, number, signature } = self.envelope;
        let [a, b, c] = signature.to_words();
        let first = u64::from(u32::from_le_bytes(MAGIC))
            | u64::from(self.stream) << 32
            | u64::from(self.epoch) << 48;
        let words = [first, self.sequence, self.length, group, number, a, b, c];
        let mut bytes = [0; HEADER_BYTES];
        let (places, _) = bytes.as_chunks_mut::<8>();
        for (place, word) in places.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        bytes
    }

    /// Reads a header; nothing if the bytes are none.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |index: usize| u64::from_le_bytes(words[index]);
        if bytes[..MAGIC.len()] != MAGIC {
            return None;
        }
        let signature = Signature::from_words([word(5), word(6), word(7)]);
        let envelope = Envelope { group: word(3), number: word(4), signature };
        let (stream, epoch) = ((word(0) >> 32) as u16, (word(0) >> 48) as u16);
        Some(Self { epoch, stream, sequence: word(1), length: word(2), envelope })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_survives_the_way(
            epoch: u16, stream: u16, sequence: u64, length: u64,
            group: u64, number: u64, words: [u64; 3],
        ) {
            let envelope = Envelope { group, number, signature: Signature::from_words(words) };
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
