//! The few words that ranks exchange beside their messages.
//!
//! Each pair has one stream that carries no messages, so that a rank which gives up can say so
//! whatever state the other streams are in. It carries three words: an *introduction*, with the
//! process and its host; a *statement* about a failure; and *goodbye*. A stream that ends without
//! a statement or a goodbye tells that the process has died.

use std::io::{self, IoSlice};

use lockstep_platform::StreamSet;

use super::Trouble;
use crate::verdict::{MAX_VERDICT_BYTES, Process, Verdict};

const STATEMENT: u8 = 1;
const GOODBYE: u8 = 2;
const INTRODUCTION: u8 = 3;

/// A word is its kind, the length of the rest in two bytes, and the rest.
const FRONT_BYTES: usize = 3;

/// The longest rest.
const MAX_REST_BYTES: usize = 1024;
const _: () = assert!(MAX_VERDICT_BYTES <= MAX_REST_BYTES);

/// The longest name of a host; what is longer is cut off.
const MAX_HOST_BYTES: usize = 128;

/// One peer's control stream.
pub(super) struct Control {
    /// The number in the set.
    stream: usize,
    received: Vec<u8>,
    has_left: bool,
    is_closed: bool,
    process: Option<Process>,
    said: Option<Verdict>,
}

impl Control {
    pub(super) fn new(stream: usize) -> Self {
        let received = Vec::with_capacity(FRONT_BYTES + MAX_REST_BYTES);
        Self { stream, received, has_left: false, is_closed: false, process: None, said: None }
    }

    /// The number in the set.
    pub(super) fn number(&self) -> usize {
        self.stream
    }

    /// The number in the set, while there is something to listen for.
    pub(super) fn stream(&self) -> Option<usize> {
        (!self.has_left && !self.is_closed).then_some(self.stream)
    }

    /// Whether the peer said goodbye.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Where the peer runs, once it has said so.
    pub(super) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// What the peer has to say about a failure in an epoch; what it said in an earlier one counts
    /// no more.
    pub(super) fn said(&self, epoch: u64) -> Option<&Verdict> {
        self.said.as_ref().filter(|said| said.epoch == epoch)
    }

    /// Says a word; if the stream is full or broken, the peer will find out.
    pub(super) fn say(&self, set: &mut dyn StreamSet, word: &[u8]) {
        let _ = set.write(self.stream, &[IoSlice::new(word)]);
    }

    /// Hears what the peer has said.
    pub(super) fn listen(&mut self, set: &mut dyn StreamSet) -> Result<(), Trouble> {
        let result = self.listen_on(set);
        self.is_closed |= result.is_err();
        result
    }

    fn listen_on(&mut self, set: &mut dyn StreamSet) -> Result<(), Trouble> {
        while !self.has_left && !self.is_closed {
            if let Some((word, len)) = parse(&self.received)? {
                self.received.drain(..len);
                match word {
                    Word::Goodbye => self.has_left = true,
                    Word::Introduction(process) => self.process = Some(process),
                    Word::Statement(verdict) => self.said = Some(verdict),
                }
                continue;
            }
            let len = self.received.len();
            self.received.resize(FRONT_BYTES + MAX_REST_BYTES, 0);
            let result = set.read(self.stream, &mut self.received[len..]);
            self.received.truncate(len + result.as_ref().map_or(0, |num_bytes| *num_bytes));
            match result {
                Ok(0) => return Err(Trouble::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// What is said about a failure.
pub(super) fn statement(verdict: &Verdict) -> Vec<u8> {
    word(STATEMENT, &verdict.encode())
}

/// What is said first.
pub(super) fn introduction(id: u32, host: &str) -> Vec<u8> {
    let host = &host[..host.floor_char_boundary(MAX_HOST_BYTES)];
    word(INTRODUCTION, &[&id.to_le_bytes(), host.as_bytes()].concat())
}

/// What is said last.
pub(super) fn goodbye() -> Vec<u8> {
    word(GOODBYE, &[])
}

fn word(kind: u8, rest: &[u8]) -> Vec<u8> {
    let [low, high] = (rest.len() as u16).to_le_bytes();
    [&[kind, low, high], rest].concat()
}

#[derive(Debug, PartialEq, Eq)]
enum Word {
    Introduction(Process),
    Statement(Verdict),
    Goodbye,
}

/// The word that the bytes begin with and its length, once they are all there.
fn parse(bytes: &[u8]) -> Result<Option<(Word, usize)>, Trouble> {
    let strange = || Trouble::Strange("it sent an unknown word on its control stream".to_owned());
    let Some(&[kind, low, high]) = bytes.first_chunk() else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes([low, high]));
    if len > MAX_REST_BYTES {
        return Err(strange());
    }
    let Some(rest) = bytes.get(FRONT_BYTES..FRONT_BYTES + len) else { return Ok(None) };
    let word = match (kind, rest.split_first_chunk()) {
        (GOODBYE, None) => Some(Word::Goodbye),
        (STATEMENT, _) => Verdict::decode(rest).map(Word::Statement),
        (INTRODUCTION, Some((id, host))) if host.len() <= MAX_HOST_BYTES => {
            let host = String::from_utf8_lossy(host).into_owned();
            Some(Word::Introduction(Process { host, id: u32::from_le_bytes(*id) }))
        }
        _ => None,
    };
    word.map(|word| Some((word, FRONT_BYTES + len))).ok_or_else(strange)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_understood_once_they_are_whole() {
        let bytes = introduction(300, "no");
        for len in 0..bytes.len() {
            assert!(matches!(parse(&bytes[..len]), Ok(None)));
        }
        let word = Word::Introduction(Process { host: "no".to_owned(), id: 300 });
        let both = [bytes.clone(), goodbye()].concat();
        assert!(
            matches!(parse(&both), Ok(Some((found, len))) if found == word && len == bytes.len())
        );
        assert!(matches!(parse(&both[bytes.len()..]), Ok(Some((Word::Goodbye, 3)))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_word_or_a_beginning_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..FRONT_BYTES + MAX_REST_BYTES),
        ) {
            // The buffer is as long as the longest word, so an incomplete word has room to grow.
            if let Ok(None) = parse(&bytes) {
                prop_assert!(bytes.len() < FRONT_BYTES + MAX_REST_BYTES);
            }
        }
    }
}
