//! Text as a repeatable stream of tokens, one piece at a time.
//!
//! Byte tokens are the text itself, with a line break between documents. Other tokenizers end every
//! document with their end-of-document token, if they have one. Only the current piece is in
//! memory, so a worker can search a text larger than its memory.

use std::path::Path;

use lockstep_platform::World;
use memchr::memmem;

use crate::bundled;
use crate::documents::{BUNDLED, Documents, Piece, ReadOptions};
use crate::error::DataError;
use crate::tokenizer::Tokenizer;

/// Location of a text, and its tokenizer.
pub(super) struct Text<'a> {
    pub(super) source: &'a str,
    /// Field or column of the text.
    pub(super) field: &'a str,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) world: &'a World,
}

/// Next part of a text.
pub(super) enum Part<'a> {
    /// Byte tokens.
    Bytes(&'a [u8]),
    /// Tokens.
    Tokens(&'a [u32]),
    /// End of a document.
    End,
}

impl Text<'_> {
    /// Passes the whole text to `take`; returns its length in bytes.
    pub(super) fn visit(&self, take: &mut dyn FnMut(Part<'_>)) -> Result<u64, DataError> {
        let end = self.tokenizer.end_of_document();
        if self.tokenizer.is_bytes() && self.source == BUNDLED && end.is_none() {
            let text = bundled::text();
            visit_chapters(&text, take);
            return Ok(text.len() as u64);
        }
        let field = self.field.to_owned();
        let options = ReadOptions { field, ..ReadOptions::default() };
        let mut documents = Documents::open(Path::new(self.source), &options, self.world)?;
        if self.tokenizer.is_bytes() {
            visit_bytes(&mut documents, end, take)
        } else {
            self.visit_tokens(&mut documents, take)
        }
    }

    fn visit_tokens(
        &self,
        documents: &mut Documents,
        take: &mut dyn FnMut(Part<'_>),
    ) -> Result<u64, DataError> {
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let mut num_bytes = 0;
        while let Some(piece) = documents.next_into(&mut text)? {
            num_bytes += text.len() as u64;
            tokens.clear();
            self.tokenizer.encode(&text, &mut tokens)?;
            if piece == Piece::Last {
                tokens.extend(self.tokenizer.end_of_document());
            }
            take(Part::Tokens(&tokens));
            if piece == Piece::Last {
                take(Part::End);
            }
        }
        Ok(num_bytes)
    }
}

/// Separates documents by a line break, or by the configured byte.
fn visit_bytes(
    documents: &mut Documents,
    end: Option<u32>,
    take: &mut dyn FnMut(Part<'_>),
) -> Result<u64, DataError> {
    let mut text = String::new();
    let end = end.map_or(b'\n', |end| end as u8);
    let mut num_bytes = 0;
    let mut has_ended = false;
    while let Some(piece) = documents.next_into(&mut text)? {
        if has_ended {
            num_bytes += 1;
            take(Part::Bytes(&[end]));
            take(Part::End);
        }
        num_bytes += text.len() as u64;
        take(Part::Bytes(text.as_bytes()));
        has_ended = piece == Piece::Last;
    }
    if has_ended {
        take(Part::End);
    }
    Ok(num_bytes)
}

/// The bundled corpus, whose chapters are separated by empty lines.
fn visit_chapters(text: &[u8], take: &mut dyn FnMut(Part<'_>)) {
    let mut rest = text;
    while !rest.is_empty() {
        let end = memmem::find(rest, b"\n\n").map_or(rest.len(), |at| at + 2);
        let (chapter, after) = rest.split_at(end);
        take(Part::Bytes(chapter));
        take(Part::End);
        rest = after;
    }
}
