//! Runs of chunks, and the rule that splits a vector into parts.
//!
//! A schedule refers to chunks 0, 1, 2 … of a vector and never to elements. The length of a chunk
//! is decided when the schedule runs: part `i` of `count` elements in `n` parts is `[i * count / n,
//! (i + 1) * count / n)`. Parts differ by one element at most, and some are empty when there are
//! fewer elements than parts. One schedule therefore serves every size.

use std::fmt;
use std::ops::Range;

/// Run of consecutive chunks: `start`, `start + 1`, … `end - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunks {
    /// First chunk.
    pub start: usize,
    /// Chunk after the last.
    pub end: usize,
}

impl Chunks {
    /// No chunks: the payload of a message that only synchronizes.
    pub const NONE: Self = Self { start: 0, end: 0 };

    /// One chunk.
    pub const fn one(chunk: usize) -> Self {
        Self { start: chunk, end: chunk + 1 }
    }

    /// Chunks 0, 1, … `num_chunks - 1`.
    pub const fn all(num_chunks: usize) -> Self {
        Self { start: 0, end: num_chunks }
    }

    /// Number of chunks.
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Whether the run is empty.
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether every chunk of `other` is in the run.
    pub const fn contains(self, other: Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }

    /// Chunks in order.
    pub fn iter(self) -> Range<usize> {
        self.start..self.end
    }

    /// Part `index` of the run when it is split into `num_parts`.
    pub fn part(self, num_parts: usize, index: usize) -> Self {
        let at = |index| self.start + boundary(self.len(), num_parts, index);
        Self { start: at(index), end: at(index + 1) }
    }

    /// All `num_parts` parts of the run.
    pub fn split(self, num_parts: usize) -> Vec<Self> {
        (0..num_parts).map(|index| self.part(num_parts, index)).collect()
    }

    /// Merges adjacent runs: `[0] [1] [3]` becomes `[0..2) [3]`.
    pub fn join(mut runs: Vec<Self>) -> Vec<Self> {
        runs.sort_unstable();
        runs.into_iter().fold(Vec::new(), |mut joined: Vec<Self>, run| {
            match joined.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => joined.push(run),
            }
            joined
        })
    }
}

/// Start of part `index` of `count` elements in `num_parts` parts: `index * count / num_parts`,
/// computed without overflow.
pub fn boundary(count: usize, num_parts: usize, index: usize) -> usize {
    let (whole, rest) = (count / num_parts, count % num_parts);
    index * whole + index * rest / num_parts
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.len() {
            0 => f.write_str("[]"),
            1 => write!(f, "[{}]", self.start),
            _ => write!(f, "[{}..{})", self.start, self.end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_run_once_and_differ_by_one_at_most() {
        for count in 0..40 {
            for num_parts in 1..12 {
                let parts = Chunks::all(count).split(num_parts);
                let lens: Vec<usize> = parts.iter().map(|part| part.len()).collect();
                assert_eq!(lens.iter().sum::<usize>(), count);
                assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1);
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            }
        }
    }

    #[test]
    fn the_boundary_is_the_plain_quotient_and_does_not_overflow() {
        for count in [0, 1, 7, 1000] {
            for index in 0..=9 {
                assert_eq!(boundary(count, 9, index), index * count / 9);
            }
        }
        assert_eq!(boundary(usize::MAX, 64, 64), usize::MAX);
    }

    #[test]
    fn joining_keeps_gaps() {
        let runs = vec![Chunks::one(3), Chunks::one(1), Chunks::one(0)];
        let joined = Chunks::join(runs);
        assert_eq!(joined, [Chunks { start: 0, end: 2 }, Chunks::one(3)]);
        assert_eq!(joined[0].to_string() + &joined[1].to_string(), "[0..2)[3]");
    }
}
