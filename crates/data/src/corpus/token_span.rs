//! A range of a token stream, with the ends of its documents.

use std::borrow::Cow;
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

    /// Whether windows are cut from the stream wherever they end: packed documents, but not
    /// conversations, which stay whole.
    pub(crate) fn is_cut_anywhere(&self, cut: Documents) -> bool {
        match cut {
            Documents::Packed => true,
            Documents::Masked => self.mask.is_none(),
            Documents::Padded => false,
        }
    }

    /// Sets the first position of the document of each input of a window, counted from the start of
    /// the window. Padding is one more document.
    pub(crate) fn fill_documents(&self, window: Option<Window>, documents: &mut [u32]) {
        let (start, num_inputs) = window.map_or((0, 0), |w| (w.start, w.num_targets));
        let (inputs, padding) = documents.split_at_mut(num_inputs);
        let mut next = self.ends.partition_point(|&end| end as usize <= start);
        let mut first = 0;
        for (position, document) in inputs.iter_mut().enumerate() {
            while self.ends.get(next).is_some_and(|&end| end as usize <= start + position) {
                (first, next) = (position, next + 1);
            }
            *document = first as u32;
        }
        padding.fill(num_inputs as u32);
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
            cut if !self.is_cut_anywhere(cut) => {
                num_padded_windows(context, self.range(), &self.ends_of(cut, context))
            }
            _ if self.len() <= context => 0,
            _ => Sampler::packed(0, context, self.range(), order).num_windows(),
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
        if self.is_cut_anywhere(cut) {
            return Sampler::packed(seed, context, self.range(), order);
        }
        let ends = self.ends_of(cut, context);
        Sampler::padded(seed, context, self.range(), &ends, order).in_groups(self.group as u64)
    }

    /// Ends of what begins a window: a document, or with a document mask consecutive documents, as
    /// many as a window holds whole (next fit, Johnson 1973).
    fn ends_of(&self, cut: Documents, context: usize) -> Cow<'_, [u64]> {
        if cut != Documents::Masked {
            return Cow::Borrowed(&self.ends);
        }
        let ends = self.ends.iter().copied();
        let ends =
            ends.filter(|end| (self.range.start + 1..=self.range.end).contains(&(*end as usize)));
        let (mut shared, mut start) = (Vec::new(), self.range.start);
        let mut last = start;
        for end in ends.map(|end| end as usize) {
            // The last token of a window is a target only.
            if end > start + context + 1 && last > start {
                shared.push(last as u64);
                start = last;
            }
            last = end;
        }
        shared.push(last as u64);
        Cow::Owned(shared)
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
            if part == 0 || self.is_cut_anywhere(cut) {
                return even;
            }
            self.document_end(even).min(self.range.end)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Documents of 3, 4, 0, 2, 9 and 1 tokens.
    fn span(is_chat: bool) -> TokenSpan {
        let mut span = TokenSpan::of_bytes((0..19).collect(), &[3, 7, 7, 9, 18, 19]);
        if is_chat {
            let mut mask = LossMask::default();
            (0..19).for_each(|token| mask.push(![0, 3, 7, 9, 18].contains(&token)));
            span.mask = Some(Arc::new(mask));
        }
        span
    }

    fn windows(span: &TokenSpan, context: usize) -> Vec<(usize, usize)> {
        let sampler = span.sampler(0, context, Documents::Masked, Order::Sequential);
        let num_windows = span.num_windows(context, Documents::Masked, Order::Sequential);
        assert_eq!(sampler.num_windows(), num_windows);
        let windows = (0..num_windows).map(|index| sampler.locate(index));
        windows.map(|window| (window.start, window.num_targets)).collect()
    }

    #[test]
    fn windows_of_text_are_those_of_packed_documents_and_know_their_documents() {
        let span = span(false);
        assert_eq!(windows(&span, 6), [(0, 6), (6, 6), (12, 6)]);
        let documents = |start| {
            let mut documents = [9; 6];
            let window = Window { epoch: 0, index: 0, start, num_targets: 6 };
            span.fill_documents(Some(window), &mut documents);
            documents
        };
        assert_eq!(documents(0), [0, 0, 0, 3, 3, 3]);
        assert_eq!(documents(6), [0, 1, 1, 3, 3, 3]);
        assert_eq!(documents(7), [0, 0, 2, 2, 2, 2]);
        assert_eq!(documents(12), [0, 0, 0, 0, 0, 0]);
        assert_eq!(documents(13), [0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn conversations_share_a_window_while_it_holds_them_whole() {
        let span = span(true);
        // A window has one token more than the context: the last one is a target only.
        assert_eq!(windows(&span, 8), [(0, 8), (9, 8), (18, 0)][..2]);
        assert_eq!(windows(&span, 9), [(0, 8), (9, 9)]);
        assert_eq!(windows(&span, 18), [(0, 18)]);
        let window = Window { epoch: 0, index: 0, start: 0, num_targets: 8 };
        let mut documents = [7; 10];
        span.fill_documents(Some(window), &mut documents);
        assert_eq!(documents, [0, 0, 0, 3, 3, 3, 3, 7, 8, 8], "padding is one more document");
        span.fill_documents(None, &mut documents);
        assert_eq!(documents, [0; 10]);
        assert_eq!(span.num_targets(window), 6, "no first token of a conversation is a target");
    }
}
