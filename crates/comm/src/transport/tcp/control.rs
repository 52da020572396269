//! The few words that ranks exchange beside their messages.
//!
//! Each pair has one stream that carries no messages, so that a rank which gives up can say so
//! whatever state the other streams are in. It carries two words: *gave up*, with a reason, and
//! *goodbye*. A stream that ends without a goodbye tells that the process has died.

use std::io::{self, IoSlice};

use lockstep_platform::StreamSet;

use super::Trouble;

const GAVE_UP: u8 = 1;
const GOODBYE: u8 = 2;

/// A word is its kind, the length of its text in two bytes, and the text.
const FRONT_BYTES: usize = 3;

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

    /// Tells the peer that this rank gives up; if the stream is full or broken, it will find out.
    pub(super) fn give_up(&self, set: &mut dyn StreamSet, reason: &str) {
        let _ = set.write(self.stream, &[IoSlice::new(&giving_up(reason))]);
    }

    /// Tells the peer that this rank leaves because it is done.
    pub(super) fn say_goodbye(&self, set: &mut dyn StreamSet) {
        let _ = set.write(self.stream, &[IoSlice::new(&[GOODBYE, 0, 0])]);
    }

    /// Hears what the peer has said; a reason if it gave up.
    pub(super) fn listen(&mut self, set: &mut dyn StreamSet) -> Result<Option<String>, Trouble> {
        while !self.has_left {
            if let Some(word) = parse(&self.received)? {
                match word {
                    Word::Goodbye => self.has_left = true,
                    Word::GaveUp(reason) => return Ok(Some(reason)),
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

/// The word of a rank that gives up.
pub(super) fn giving_up(reason: &str) -> Vec<u8> {
    let text = &reason[..reason.floor_char_boundary(MAX_TEXT_BYTES)];
    let [low, high] = (text.len() as u16).to_le_bytes();
    [&[GAVE_UP, low, high], text.as_bytes()].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Goodbye,
    GaveUp(String),
}

/// The word that the bytes begin with, once they are all there. Nothing follows either word.
fn parse(bytes: &[u8]) -> Result<Option<Word>, Trouble> {
    let Some(&[kind, low, high]) = bytes.first_chunk() else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes([low, high]));
    match kind {
        GOODBYE if len == 0 => Ok(Some(Word::Goodbye)),
        GAVE_UP if len <= MAX_TEXT_BYTES => {
            let text = bytes.get(FRONT_BYTES..FRONT_BYTES + len);
            Ok(text.map(|text| Word::GaveUp(String::from_utf8_lossy(text).into_owned())))
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
        let bytes = giving_up("no");
        for len in 0..bytes.len() {
            assert!(matches!(parse(&bytes[..len]), Ok(None)));
        }
        assert!(matches!(parse(&bytes), Ok(Some(Word::GaveUp(reason))) if reason == "no"));
        assert!(matches!(parse(&[GOODBYE, 0, 0]), Ok(Some(Word::Goodbye))));
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
