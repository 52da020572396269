//! A range of a token stream, with the ends of its documents.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use lockstep_config::{Documents, Order};

use super::loss_mask::LossMask;
use super::tokens::{Run, Tokens};
use crate::error::DataError;
use crate::sampler::{Sampler, Window, num_padded_windows};

/// Number of tokens copied at once.
const PORTION_TOKENS: usize = 1 << 14;

/// Part of a token stream, with positions of the whole stream. Cheap to clone.
#[derive(Clone)]
pub struct TokenSpan {
    pub(super) tokens: Arc<Tokens>,
    pub(super) range: Range<usize>,
    /// Ends of all documents of the whole stream.
    pub(super) ends: Arc<[u64]>,
    /// Tokens of the whole stream that are targets; without it all are.
    pub(super) mask: Option<Arc<LossMask>>,
    /// Documents that stay together: two of a pair, else one.
    pub(super) group: usize,
    /// Loss of each document of this span under the reference model of preferences.
    pub(super) references: Option<Arc<[f64]>>,
}

impl TokenSpan {
    /// Number of targets of a window.
    pub(crate) fn num_targets(&self, window: Window) -> usize {
        let predicted = window.start + 1..window.start + 1 + window.num_targets;
        self.mask.as_ref().map_or(window.num_targets, |mask| mask.count(predicted))
    }

    /// Whether windows are pairs of a chosen and a rejected document.
    pub(crate) fn has_pairs(&self) -> bool {
        self.group == 2
    }

    /// Loss of a window's document under the reference model; zero for padding and without one.
    pub(crate) fn reference(&self, window: Option<Window>) -> f64 {
        let references = self.references.as_deref().zip(window);
        references.map_or(0.0, |(references, window)| references[window.index as usize])
    }

    /// Whether a token of the whole stream is a target.
    pub(crate) fn is_target(&self, token: usize) -> bool {
        self.mask.as_ref().is_none_or(|mask| mask.has(token))
    }

    /// Tokens in memory, with these document ends.
    pub(crate) fn of_run(run: Run, ends: Vec<u64>) -> Self {
        let range = 0..run.len();
        Self {
            tokens: Arc::new(Tokens::Whole(run)),
            range,
            ends: ends.into(),
            mask: None,
            group: 1,
            references: None,
        }
    }

    /// Memory of the tokens of the whole stream in this process.
    pub(crate) fn held_bytes(&self) -> usize {
        self.tokens.held_bytes()
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Range in the whole stream.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Copies tokens, starting at position `start` of the whole stream.
    pub fn copy(&self, start: usize, out: &mut [u32]) -> Result<(), DataError> {
        let end = start + out.len();
        assert!(self.range.start <= start && end <= self.range.end, "tokens of this span");
        self.tokens.copy(start, out)
    }

    /// Passes all tokens to `each`, in order and in portions.
    pub(crate) fn visit(&self, each: impl FnMut(&[u32])) -> Result<(), DataError> {
        self.visit_portions(PORTION_TOKENS, each)
    }

    /// As [`Self::visit`], with portions of this length.
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

    /// All tokens; for short spans.
    pub fn to_vec(&self) -> Result<Vec<u32>, DataError> {
        let mut tokens = vec![0; self.len()];
        self.copy(self.range.start, &mut tokens)?;
        Ok(tokens)
    }

    /// Number of windows per epoch.
    pub(crate) fn num_windows(&self, context: usize, cut: Documents, order: Order) -> u64 {
        match cut {
            Documents::Packed if self.len() <= context => 0,
            Documents::Packed => Sampler::packed(0, context, self.range(), order).num_windows(),
            Documents::Padded => num_padded_windows(context, self.range(), &self.ends),
        }
    }

    /// Sampler over the span, which must hold a window.
    pub(crate) fn sampler(
        &self,
        seed: u64,
        context: usize,
        cut: Documents,
        order: Order,
    ) -> Sampler {
        match cut {
            Documents::Packed => Sampler::packed(seed, context, self.range(), order),
            Documents::Padded => Sampler::padded(seed, context, self.range(), &self.ends, order)
                .in_groups(self.group as u64),
        }
    }

    /// Number of tokens that the first `limit` evaluation windows cover.
    pub(crate) fn evaluation_len(&self, context: usize, limit: usize, cut: Documents) -> usize {
        let Some((sampler, num_sequences)) = self.evaluation_windows(context, limit, cut) else {
            return 0;
        };
        let last = sampler.locate(num_sequences as u64 - 1);
        last.start + last.num_targets + 1 - self.range.start
    }

    /// Sampler of an evaluation, and its number of windows.
    pub(crate) fn evaluation_windows(
        &self,
        context: usize,
        limit: usize,
        cut: Documents,
    ) -> Option<(Sampler, usize)> {
        let num_windows = self.num_windows(context, cut, Order::Sequential);
        if num_windows == 0 || limit == 0 {
            return None;
        }
        let sampler = self.sampler(0, context, cut, Order::Sequential);
        Some((sampler, limit.min(usize::try_from(num_windows).unwrap_or(usize::MAX))))
    }

    /// Splits into `num_parts` of nearly equal length; padded documents are not divided.
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

    /// First document end at or after a position; the end of the span if there is none.
    fn document_end(&self, position: usize) -> usize {
        let index = self.ends.partition_point(|&end| (end as usize) < position);
        self.ends.get(index).map_or(self.range.end, |&end| end as usize)
    }
}

#[cfg(test)]
impl TokenSpan {
    /// Bytes in memory, with these document ends.
    pub(crate) fn of_bytes(bytes: Vec<u8>, ends: &[u64]) -> Self {
        Self::of_run(Run::Bytes(bytes), ends.to_vec())
    }
}

/// Debug output without the content, which is megabytes long.
impl fmt::Debug for TokenSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenSpan({:?})", self.range)
    }
}
