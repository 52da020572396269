//! Token storage: mapped files, or compact vectors in memory, whole or in spans.
//!
//! A byte corpus takes the memory of its text, a sub-word corpus two bytes per token, four if the
//! vocabulary exceeds 65,536. [`Tokens::copy`] widens batches to `u32` and hides the storage from
//! the rest of the crate.

use std::ops::Range;

use crate::error::DataError;
use crate::shards::ShardSet;

/// Tokens in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Run {
    /// Tokens below 256.
    Bytes(Vec<u8>),
    /// Tokens below 65,536.
    Narrow(Vec<u16>),
    /// Any token.
    Wide(Vec<u32>),
}

impl Run {
    /// Empty vector for tokens of a vocabulary.
    pub(crate) fn for_vocab(vocab: usize) -> Self {
        match vocab {
            0..=0x100 => Self::Bytes(Vec::new()),
            0x101..=0x1_0000 => Self::Narrow(Vec::new()),
            _ => Self::Wide(Vec::new()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(tokens) => tokens.len(),
            Self::Narrow(tokens) => tokens.len(),
            Self::Wide(tokens) => tokens.len(),
        }
    }

    /// Reserves memory for exactly `num_tokens` more tokens.
    pub(crate) fn reserve(&mut self, num_tokens: usize) {
        match self {
            Self::Bytes(tokens) => tokens.reserve_exact(num_tokens),
            Self::Narrow(tokens) => tokens.reserve_exact(num_tokens),
            Self::Wide(tokens) => tokens.reserve_exact(num_tokens),
        }
    }

    /// Releases unused memory.
    pub(crate) fn shrink(&mut self) {
        match self {
            Self::Bytes(tokens) => tokens.shrink_to_fit(),
            Self::Narrow(tokens) => tokens.shrink_to_fit(),
            Self::Wide(tokens) => tokens.shrink_to_fit(),
        }
    }

    /// Appends tokens of the vocabulary.
    pub(crate) fn extend(&mut self, more: &[u32]) {
        match self {
            Self::Bytes(tokens) => tokens.extend(more.iter().map(|&token| token as u8)),
            Self::Narrow(tokens) => tokens.extend(more.iter().map(|&token| token as u16)),
            Self::Wide(tokens) => tokens.extend_from_slice(more),
        }
    }

    /// Appends bytes as tokens.
    pub(crate) fn extend_bytes(&mut self, more: &[u8]) {
        match self {
            Self::Bytes(tokens) => tokens.extend_from_slice(more),
            Self::Narrow(tokens) => tokens.extend(more.iter().map(|&byte| u16::from(byte))),
            Self::Wide(tokens) => tokens.extend(more.iter().map(|&byte| u32::from(byte))),
        }
    }

    fn copy(&self, start: usize, out: &mut [u32]) {
        let range = start..start + out.len();
        match self {
            Self::Bytes(tokens) => widen(&tokens[range], out),
            Self::Narrow(tokens) => widen(&tokens[range], out),
            Self::Wide(tokens) => out.copy_from_slice(&tokens[range]),
        }
    }

    fn num_bytes(&self) -> usize {
        match self {
            Self::Bytes(tokens) => tokens.capacity(),
            Self::Narrow(tokens) => 2 * tokens.capacity(),
            Self::Wide(tokens) => 4 * tokens.capacity(),
        }
    }
}

fn widen<T: Copy + Into<u32>>(tokens: &[T], out: &mut [u32]) {
    for (out, &token) in out.iter_mut().zip(tokens) {
        *out = token.into();
    }
}

/// Tokens of a corpus, or the spans that this worker holds.
#[derive(Debug)]
pub(crate) enum Tokens {
    /// The whole stream.
    Whole(Run),
    /// Spans in ascending order, each with its first position.
    Parts(Vec<(usize, Run)>),
    /// The whole stream, in mapped files.
    Shards(ShardSet),
}

impl Tokens {
    /// Copies tokens, starting at position `start`, which must be held here.
    pub(crate) fn copy(&self, start: usize, out: &mut [u32]) -> Result<(), DataError> {
        match self {
            Self::Whole(run) => run.copy(start, out),
            Self::Shards(set) => set.copy(start as u64, out)?,
            Self::Parts(parts) => {
                let index = parts.partition_point(|(first, _)| *first <= start);
                let (first, run) = &parts[index.checked_sub(1).expect("a part that is held here")];
                run.copy(start - first, out);
            }
        }
        Ok(())
    }

    /// Memory of the tokens in this process; mapped files do not count.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Shards(_) => 0,
            Self::Whole(run) => run.num_bytes(),
            Self::Parts(parts) => parts.iter().map(|(_, run)| run.num_bytes()).sum(),
        }
    }
}

/// Collects spans of a stream while it is read.
#[derive(Debug)]
pub(crate) struct SpanCollector {
    spans: Vec<Range<usize>>,
    parts: Vec<(usize, Run)>,
    position: usize,
}

impl SpanCollector {
    /// Collects these spans, in ascending order, of tokens of a vocabulary.
    pub(crate) fn new(spans: Vec<Range<usize>>, vocab: usize) -> Self {
        let empty = |range: &Range<usize>| {
            let mut run = Run::for_vocab(vocab);
            run.reserve(range.len());
            (range.start, run)
        };
        let parts = spans.iter().map(empty).collect();
        Self { spans, parts, position: 0 }
    }

    /// Takes the next tokens of the stream.
    pub(crate) fn take(&mut self, tokens: &[u32]) {
        self.visit(tokens.len(), |run, range| run.extend(&tokens[range]));
    }

    /// Takes the next bytes of a byte stream.
    pub(crate) fn take_bytes(&mut self, bytes: &[u8]) {
        self.visit(bytes.len(), |run, range| run.extend_bytes(&bytes[range]));
    }

    fn visit(&mut self, num_tokens: usize, mut keep: impl FnMut(&mut Run, Range<usize>)) {
        let here = self.position..self.position + num_tokens;
        self.position = here.end;
        let first = self.spans.partition_point(|range| range.end <= here.start);
        let parts = self.spans.iter().zip(&mut self.parts).skip(first);
        for (range, (_, run)) in parts.take_while(|(range, _)| range.start < here.end) {
            let common = range.start.max(here.start)..range.end.min(here.end);
            if !common.is_empty() {
                keep(run, common.start - here.start..common.end - here.start);
            }
        }
    }

    /// The collected spans.
    pub(crate) fn finish(self) -> Tokens {
        let whole =
            self.spans.iter().zip(&self.parts).all(|(range, (_, run))| range.len() == run.len());
        assert!(whole, "the stream passed by to its end");
        Tokens::Parts(self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_take_the_fewest_bytes_that_hold_them() {
        for (vocab, bytes) in [(256, 1), (257, 2), (65_536, 2), (65_537, 4)] {
            let mut run = Run::for_vocab(vocab);
            run.reserve(8);
            let tokens: Vec<u32> = (0..8).map(|i| vocab as u32 - 1 - i).collect();
            run.extend(&tokens);
            let mut out = [0; 8];
            let tokens_held = Tokens::Whole(run);
            tokens_held.copy(0, &mut out).unwrap();
            assert_eq!((out.as_slice(), tokens_held.held_bytes()), (&tokens[..], 8 * bytes));
        }
    }

    #[test]
    fn spans_are_collected_however_the_stream_is_cut() {
        let stream: Vec<u32> = (0..100).collect();
        for piece in [1, 3, 7, 50, 100] {
            let mut keeper = SpanCollector::new(vec![2..5, 5..6, 40..90], 300);
            stream.chunks(piece).for_each(|tokens| keeper.take(tokens));
            let kept = keeper.finish();
            for range in [2..5, 5..6, 40..90, 60..70] {
                let mut out = vec![0; range.len()];
                kept.copy(range.start, &mut out).unwrap();
                assert_eq!(out, stream[range]);
            }
            assert_eq!(kept.held_bytes(), 2 * (3 + 1 + 50));
        }
    }
}
