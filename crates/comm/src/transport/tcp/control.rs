//! The few words that ranks exchange beside their messages.
//!
//! Each pair has one stream that carries no messages, so that a rank which gives up can say so
//! whatever state the other streams are in. It carries two words: *gave up*, with who did so first
//! and why, and *goodbye*. A rank that leaves because it was told passes that on in place of a
//! goodbye, so that nobody takes it for the cause. A stream that ends without either tells that the
//! process has died.

use std::io::{self, IoSlice};

use lockstep_mesh::Rank;
use lockstep_platform::StreamSet;

use super::Trouble;

const GAVE_UP: u8 = 1;
const GOODBYE: u8 = 2;

/// A word is its kind, the length of its text in two bytes, a rank in four, and the text.
const FRONT_BYTES: usize = 7;

/// The longest reason; the rest is cut off.
const MAX_TEXT_BYTES: usize = 1024;

/// One peer's control stream.
pub(super) struct Control {
    /// The number in the set.
    stream: usize,
    received: Vec<u8>,
    has_left: bool,
}

impl Control {
    pub(super) fn new(stream: usize) -> Self {
        Self { stream, received: Vec::with_capacity(FRONT_BYTES + MAX_TEXT_BYTES), has_left: false }
    }

    /// The number in the set, while there is something to listen for.
    pub(super) fn stream(&self) -> Option<usize> {
        (!self.has_left).then_some(self.stream)
    }

    /// Whether the peer said goodbye.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Tells the peer that `by` gives up; if the stream is full or broken, it will find out.
    pub(super) fn give_up(&self, set: &mut dyn StreamSet, by: Rank, reason: &str) {
        let _ = set.write(self.stream, &[IoSlice::new(&giving_up(by, reason))]);
    }

    /// Tells the peer that this rank leaves because it is done.
    pub(super) fn say_goodbye(&self, set: &mut dyn StreamSet) {
        let _ = set.write(self.stream, &[IoSlice::new(&[GOODBYE, 0, 0, 0, 0, 0, 0])]);
    }

    /// Hears what the peer has said; who gave up and why if somebody did.
    pub(super) fn listen(
        &mut self,
        set: &mut dyn StreamSet,
    ) -> Result<Option<(Rank, String)>, Trouble> {
        while !self.has_left {
            if let Some(word) = parse(&self.received)? {
                match word {
                    Word::Goodbye => self.has_left = true,
                    Word::GaveUp(by, reason) => return Ok(Some((by, reason))),
                }
                continue;
            }
            let len = self.received.len();
            self.received.resize(FRONT_BYTES + MAX_TEXT_BYTES, 0);
            let result = set.read(self.stream, &mut self.received[len..]);
            self.received.truncate(len + result.as_ref().map_or(0, |num_bytes| *num_bytes));
            match result {
                Ok(0) => return Err(Trouble::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }
}

/// What is said when a rank gives up.
pub(super) fn giving_up(by: Rank, reason: &str) -> Vec<u8> {
    let text = &reason[..reason.floor_char_boundary(MAX_TEXT_BYTES)];
    let [low, high] = (text.len() as u16).to_le_bytes();
    let by = u32::try_from(by.0).unwrap_or(u32::MAX).to_le_bytes();
    [&[GAVE_UP, low, high], &by[..], text.as_bytes()].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Goodbye,
    GaveUp(Rank, String),
}

/// The word that the bytes begin with, once they are all there. Nothing follows either word.
fn parse(bytes: &[u8]) -> Result<Option<Word>, Trouble> {
    let Some(&[kind, low, high, a, b, c, d]) = bytes.first_chunk() else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes([low, high]));
    match kind {
        GOODBYE if len == 0 => Ok(Some(Word::Goodbye)),
        GAVE_UP if len <= MAX_TEXT_BYTES => {
            let Some(text) = bytes.get(FRONT_BYTES..FRONT_BYTES + len) else { return Ok(None) };
            let by = Rank(u32::from_le_bytes([a, b, c, d]) as usize);
            Ok(Some(Word::GaveUp(by, String::from_utf8_lossy(text).into_owned())))
        }
        _ => Err(Trouble::Strange("it sent an unknown word on its control stream".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_understood_once_they_are_whole() {
        let bytes = giving_up(Rank(300), "no");
        for len in 0..bytes.len() {
            assert!(matches!(parse(&bytes[..len]), Ok(None)));
        }
        let word = Word::GaveUp(Rank(300), "no".to_owned());
        assert!(matches!(parse(&bytes), Ok(Some(found)) if found == word));
        assert!(matches!(parse(&[GOODBYE, 0, 0, 0, 0, 0, 0]), Ok(Some(Word::Goodbye))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_word_or_a_beginning_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..FRONT_BYTES + MAX_TEXT_BYTES),
        ) {
            // The buffer is as long as the longest word, so an incomplete word has room to grow.
            if let Ok(None) = parse(&bytes) {
                prop_assert!(bytes.len() < FRONT_BYTES + MAX_TEXT_BYTES);
            }
        }
    }
}
