//! A stretch of tokens that sequences are cut from, and where its documents end.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use lockstep_config::{Documents, Order};

use super::tokens::Tokens;
use crate::error::DataError;
use crate::sampler::{Sampler, num_padded_windows};

/// Tokens that are looked at together.
const PORTION_TOKENS: usize = 1 << 14;

/// A part of a token stream. Positions are those of the whole stream. Cheap to clone.
#[derive(Clone)]
pub struct Stretch {
    pub(super) tokens: Arc<Tokens>,
    pub(super) range: Range<usize>,
    /// Where each document of the whole stream ends.
    pub(super) ends: Arc<[u64]>,
}

impl Stretch {
    /// How many tokens it has.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Its place in the whole stream.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Writes the tokens from position `start` of the whole stream on.
    pub fn copy(&self, start: usize, out: &mut [u32]) -> Result<(), DataError> {
        let end = start + out.len();
        assert!(self.range.start <= start && end <= self.range.end, "tokens of this stretch");
        self.tokens.copy(start, out)
    }

    /// Shows all its tokens to somebody, in portions and in order.
    pub(crate) fn visit(&self, each: impl FnMut(&[u32])) -> Result<(), DataError> {
        self.visit_portions(PORTION_TOKENS, each)
    }

    /// The same, with portions of this length.
    pub(crate) fn visit_portions(
        &self,
        portion_tokens: usize,
        mut each: impl FnMut(&[u32]),
    ) -> Result<(), DataError> {
        let mut portion = vec![0; portion_tokens.min(self.len())];
        let mut start = self.range.start;
        while start < self.range.end {
            let count = portion.len().min(self.range.end - start);
            self.copy(start, &mut portion[..count])?;
            each(&portion[..count]);
            start += count;
        }
        Ok(())
    }

    /// All its tokens; for short stretches.
    pub fn to_vec(&self) -> Result<Vec<u32>, DataError> {
        let mut tokens = vec![0; self.len()];
        self.copy(self.range.start, &mut tokens)?;
        Ok(tokens)
    }

    /// How many sequences it gives in an epoch.
    pub(crate) fn num_windows(&self, context: usize, cut: Documents, order: Order) -> u64 {
        match cut {
            Documents::Packed if self.len() <= context => 0,
            Documents::Packed => Sampler::packed(0, context, self.range(), order).num_windows(),
            Documents::Padded => num_padded_windows(context, self.range(), &self.ends),
        }
    }

    /// The sampler over it; there must be a window.
    pub(crate) fn sampler(
        &self,
        seed: u64,
        context: usize,
        cut: Documents,
        order: Order,
    ) -> Sampler {
        match cut {
            Documents::Packed => Sampler::packed(seed, context, self.range(), order),
            Documents::Padded => Sampler::padded(seed, context, self.range(), &self.ends, order),
        }
    }

    /// Cuts it into `num_parts`, as even as can be; padded ones between documents.
    pub(crate) fn parts(&self, num_parts: usize, cut: Documents) -> Vec<Self> {
        let edge = |part: usize| {
            let even =
                self.range.start + (self.len() as u128 * part as u128 / num_parts as u128) as usize;
            match cut {
                Documents::Packed => even,
                Documents::Padded if part == 0 => even,
                Documents::Padded => self.document_end(even).min(self.range.end),
            }
        };
        let part = |part| Self { range: edge(part)..edge(part + 1), ..self.clone() };
        (0..num_parts).map(part).collect()
    }

    /// The first end of a document at or behind a position; the end of the stream where there is
    /// none.
    fn document_end(&self, position: usize) -> usize {
        let index = self.ends.partition_point(|&end| (end as usize) < position);
        self.ends.get(index).map_or(self.range.end, |&end| end as usize)
    }
}

#[cfg(test)]
impl Stretch {
    /// Bytes in memory, with documents that end there.
    pub(crate) fn of_bytes(bytes: Vec<u8>, ends: &[u64]) -> Self {
        let range = 0..bytes.len();
        let tokens = Tokens::Whole(super::tokens::Run::Bytes(bytes));
        Self { tokens: Arc::new(tokens), range, ends: ends.into() }
    }
}

/// The content stays out of debug output: it is megabytes long.
impl fmt::Debug for Stretch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stretch({:?})", self.range)
    }
}
