//! Cutting long documents into pieces.
//!
//! Encoding needs about a hundred bytes of memory per byte of text, so long documents are encoded
//! in pieces. Byte-level tokenizers first split a text into words with their leading space and
//! never merge across such a split. A cut between a letter and a space followed by a letter
//! therefore keeps the tokens of the whole. (Tokenizers that mark the start of every text add one
//! mark per piece.)

use crate::documents::Format;
use crate::error::DataError;

/// Length from which a text is cut.
pub const PIECE_BYTES: usize = 1 << 16;

/// Distance from the limit within which a word boundary is searched.
const SEARCH_BYTES: usize = 1 << 13;

/// Position of a piece in its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// More of the document follows.
    Part,
    /// Last piece of the document, or the only one.
    Last,
}

/// Length of the first piece of a text longer than `limit`: at most `limit` bytes and at least one
/// character.
pub(crate) fn cut(text: &str, limit: usize) -> usize {
    let bytes = text.as_bytes();
    let letter = |index: usize| bytes.get(index).is_some_and(u8::is_ascii_alphabetic);
    let space = |index: usize| bytes.get(index).is_some_and(|&byte| byte == b' ');
    let floor = limit.saturating_sub(SEARCH_BYTES).max(1);
    let mut places = (floor..=limit).rev();
    if let Some(place) = places.find(|&at| letter(at - 1) && space(at) && letter(at + 1)) {
        return place;
    }
    // Without word boundaries, cut at any space, then at any character; tokens may differ.
    let mut places = (floor..=limit).rev();
    let any_space = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_whitespace);
    if let Some(place) = places.find(|&at| any_space(at) && !any_space(at - 1)) {
        return place;
    }
    let longest = text.floor_char_boundary(limit);
    if longest > 0 { longest } else { text.ceil_char_boundary(1) }
}

/// Format whose documents are in memory one by one. Rows without text count as documents here, so
/// that a row can be skipped without its text.
pub(crate) trait Whole: Send {
    /// Appends the text of the next row to `text`, which is empty; false at the end.
    fn next_whole(&mut self, text: &mut String) -> Result<bool, DataError>;
    /// Skips up to `count` rows without decoding them; returns their number, fewer at the end.
    fn skip(&mut self, count: u64) -> Result<u64, DataError>;
    /// Number of bytes read from disk.
    fn position_bytes(&self) -> u64;
    /// Place of the last document in the file, as "line 1"; empty where documents have none.
    fn place(&self) -> String {
        String::new()
    }
}

/// Cuts the documents of such a format into pieces.
pub(crate) struct Held<W> {
    format: W,
    document: String,
    /// Number of bytes returned so far.
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
            // Release the memory of an unusually long document.
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

    fn place(&self) -> String {
        self.format.place()
    }
}
