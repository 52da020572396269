//! Where a long text may be cut.
//!
//! Encoding takes memory in proportion to the text it is given, a hundred bytes for each byte, so
//! a book is encoded in pieces. Byte-level tokenizers first split a text into words with the
//! space in front, and never merge across such a split; cut between a letter and the space before
//! another letter, the pieces therefore give the tokens of the whole. (Of the tokenizers that do
//! more, those that write a mark at the start of every text write one more for each piece.)

use crate::documents::Format;
use crate::error::DataError;

/// The length beyond which a text is cut.
pub const PIECE_BYTES: usize = 1 << 16;

/// How far back from the limit a good place is looked for.
const SEARCH_BYTES: usize = 1 << 13;

/// What a piece of text is to its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// More of the document follows.
    Part,
    /// The document ends with it; a short one is nothing else.
    Last,
}

/// The length of the first piece of a text that is longer than `limit`: at most `limit` bytes, and
/// at least one character.
pub(crate) fn cut(text: &str, limit: usize) -> usize {
    let bytes = text.as_bytes();
    let letter = |index: usize| bytes.get(index).is_some_and(u8::is_ascii_alphabetic);
    let space = |index: usize| bytes.get(index).is_some_and(|&byte| byte == b' ');
    let floor = limit.saturating_sub(SEARCH_BYTES).max(1);
    let mut places = (floor..=limit).rev();
    if let Some(place) = places.find(|&at| letter(at - 1) && space(at) && letter(at + 1)) {
        return place;
    }
    // Not words with spaces between: any space, then any character. Tokens may differ here.
    let mut places = (floor..=limit).rev();
    let any_space = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_whitespace);
    if let Some(place) = places.find(|&at| any_space(at) && !any_space(at - 1)) {
        return place;
    }
    let longest = text.floor_char_boundary(limit);
    if longest > 0 { longest } else { text.ceil_char_boundary(1) }
}

/// A format that has its documents in memory one by one.
pub(crate) trait Whole: Send {
    /// Replaces `text` by the next document.
    fn next_whole(&mut self, text: &mut String) -> Result<bool, DataError>;
    /// How many bytes of the file have been read, as they lie on the disk.
    fn position_bytes(&self) -> u64;
}

/// Gives the documents of such a format in pieces.
pub(crate) struct Held<W> {
    format: W,
    document: String,
    /// How much of the document was given.
    given: usize,
}

impl<W> Held<W> {
    pub(crate) fn new(format: W) -> Self {
        Self { format, document: String::new(), given: 0 }
    }
}

impl<W: Whole> Format for Held<W> {
    fn next_into(&mut self, text: &mut String) -> Result<Option<Piece>, DataError> {
        text.clear();
        while self.given == self.document.len() {
            self.given = 0;
            self.document.clear();
            // A document of unusual size does not keep its memory for the rest of the corpus.
            self.document.shrink_to(4 * PIECE_BYTES);
            if !self.format.next_whole(&mut self.document)? {
                return Ok(None);
            }
        }
        let rest = &self.document[self.given..];
        let length = if rest.len() > PIECE_BYTES { cut(rest, PIECE_BYTES) } else { rest.len() };
        text.push_str(&rest[..length]);
        self.given += length;
        Ok(Some(if self.given == self.document.len() { Piece::Last } else { Piece::Part }))
    }

    fn position_bytes(&self) -> u64 {
        self.format.position_bytes()
    }
}
