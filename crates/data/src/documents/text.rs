//! Plain text: a file is one document, or several with a separator.
//!
//! The file is read in portions slightly longer than a piece, so that a cut position or a separator
//! across it is always in the buffer. UTF-8 is validated per portion; a character across two
//! portions waits for its second half.

use super::Format;
use super::error::DocumentError;
use super::input::Input;
use super::pieces::{PIECE_BYTES, Piece, Whole, cut};
use crate::error::DataError;

/// Number of bytes read beyond a piece.
const AHEAD_BYTES: usize = 1 << 12;

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

/// Reader of a plain text.
pub(crate) struct TextFile {
    input: Input,
    separator: Option<String>,
    /// Bytes read but not yet returned: valid text up to `valid`, then at most part of a character.
    pending: Vec<u8>,
    valid: usize,
    /// Position of `pending` in the text.
    offset: u64,
    has_begun: bool,
    has_ended: bool,
}

impl TextFile {
    pub(crate) fn new(input: Input, separator: Option<String>) -> Self {
        let separator = separator.filter(|separator| !separator.is_empty());
        let (pending, valid, offset) = (Vec::new(), 0, 0);
        Self { input, separator, pending, valid, offset, has_begun: false, has_ended: false }
    }

    /// Reads until the buffer holds more than a piece, or the rest of the file.
    fn fill(&mut self) -> Result<(), DataError> {
        let separator_bytes = self.separator.as_ref().map_or(0, String::len);
        let enough = PIECE_BYTES + AHEAD_BYTES + separator_bytes;
        if self.has_ended || self.pending.len() >= enough {
            return Ok(());
        }
        let num_missing = enough - self.pending.len();
        self.has_ended = self.input.read(num_missing, &mut self.pending)? < num_missing;
        if !self.has_begun {
            self.has_begun = true;
            self.offset += strip_mark(&mut self.pending, &self.input)? as u64;
        }
        self.valid = match std::str::from_utf8(&self.pending) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() && !self.has_ended => error.valid_up_to(),
            Err(error) => return Err(self.not_utf8(error.valid_up_to())),
        };
        Ok(())
    }

    fn not_utf8(&self, place: usize) -> DataError {
        let offset_bytes = self.offset as usize + place;
        DataError::NotUtf8 { path: self.input.path().to_owned(), offset_bytes }
    }

    /// Length of the next piece, its position in the document, and the bytes to skip after it.
    fn next_piece(&self, text: &str) -> (usize, Piece, usize) {
        let is_rest = self.has_ended && text.len() <= PIECE_BYTES;
        let length = if is_rest { text.len() } else { cut(text, PIECE_BYTES) };
        if let Some(separator) = &self.separator
            && let Some(place) = text.find(separator.as_str())
            && place <= length
        {
            return (place, Piece::Last, separator.len());
        }
        (length, if is_rest { Piece::Last } else { Piece::Part }, 0)
    }
}

impl Format for TextFile {
    fn next_into(&mut self, text: &mut String) -> Result<Option<Piece>, DataError> {
        text.clear();
        loop {
            self.fill()?;
            if self.pending.is_empty() {
                return Ok(None);
            }
            let valid = std::str::from_utf8(&self.pending[..self.valid]);
            let valid = valid.expect("it was proven when it was read");
            let (length, piece, left_out) = self.next_piece(valid);
            text.push_str(&valid[..length]);
            let used = length + left_out;
            self.pending.drain(..used);
            self.valid -= used;
            self.offset += used as u64;
            if !text.is_empty() {
                return Ok(Some(piece));
            }
        }
    }

    fn position_bytes(&self) -> u64 {
        self.input.position_bytes()
    }
}

/// Documents of a plain text, one by one: each piece is one, so a long text is many.
pub(super) struct TextRows(pub(super) TextFile);

impl Whole for TextRows {
    fn next_whole(&mut self, text: &mut String) -> Result<bool, DataError> {
        Ok(self.0.next_into(text)?.is_some())
    }

    fn skip(&mut self, count: u64) -> Result<u64, DataError> {
        let mut text = String::new();
        for skipped in 0..count {
            if self.0.next_into(&mut text)?.is_none() {
                return Ok(skipped);
            }
        }
        Ok(count)
    }

    fn position_bytes(&self) -> u64 {
        self.0.position_bytes()
    }
}

/// Strips a UTF-8 byte order mark and refuses that of UTF-16. Returns the number of stripped bytes.
pub(super) fn strip_mark(start: &mut Vec<u8>, input: &Input) -> Result<usize, DataError> {
    if UTF16_MARKS.iter().any(|mark| start.starts_with(mark)) {
        return Err(DocumentError::Utf16 { path: input.path().to_owned() }.into());
    }
    if !start.starts_with(UTF8_MARK) {
        return Ok(0);
    }
    start.drain(..UTF8_MARK.len());
    Ok(UTF8_MARK.len())
}
