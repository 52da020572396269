//! Dropout of attention probabilities: a mask that is a function of the global element alone.
//!
//! The probability of (sample, head, query, key) is element `((sample * heads + head) * tokens +
//! query) * tokens + key`, whichever worker, lane or tile computes it, forward or backward, where
//! head and heads are those of the whole model. It is kept when its random number is at least `rate
//! * 2^32`, and then divided by `1 - rate`.

use super::tile::Tile;
use super::{PER_ROW, Shape, TILE};
use crate::dropout::DropoutMask;
use crate::random::Key;
use crate::simd::{VECTOR_LEN, Simd};

/// Which probabilities to drop.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// A key for this step and layer.
    pub key: Key,
    /// Share of probabilities that become zero; at least 0, below 1.
    pub rate: f32,
    /// Global index of the first sequence.
    pub first_sample: u64,
    /// Which heads of the model these are.
    pub heads: Heads,
}

/// Where the heads of a call lie among those of the model. A call may run several slices of heads,
/// as if each were more sequences: first all sequences with the first slice, then with the next.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Number of heads that the model has.
    pub num: usize,
    /// The first head of the first slice.
    pub first: usize,
    /// Sequences that one slice has.
    pub sequences: usize,
}

impl Heads {
    /// All heads of the model, in one slice.
    pub const fn all(shape: &Shape) -> Self {
        Self { num: shape.heads, first: 0, sequences: shape.sequences }
    }
}

impl Dropout {
    /// The mask of one head of one sequence.
    pub(super) fn of_head(&self, shape: &Shape, sequence: usize, head: usize) -> HeadMask {
        let mask = DropoutMask { key: self.key, rate: self.rate };
        let tokens = shape.tokens as u64;
        let Heads { num, first, sequences } = self.heads;
        let (slice, sequence) = (sequence / sequences, sequence % sequences);
        let head = first + slice * shape.heads + head;
        let sample = self.first_sample + sequence as u64;
        HeadMask {
            key: self.key,
            threshold: mask.threshold(),
            kept: mask.scale(),
            first_element: (sample * num as u64 + head as u64) * tokens * tokens,
            tokens,
        }
    }
}

/// The mask of one head of one sequence.
#[derive(Clone, Copy)]
pub(super) struct HeadMask {
    key: Key,
    threshold: u32,
    kept: f32,
    first_element: u64,
    tokens: u64,
}

impl HeadMask {
    /// Writes the factors of one tile, keys in rows: zero, or what a kept one is multiplied by.
    ///
    /// The tile's first query and first key are the positions given; what the causal mask hides
    /// gets some factor, too.
    #[inline(always)]
    pub(super) fn fill<S: Simd>(
        &self,
        s: S,
        (first_query, first_key): (usize, usize),
        tile: &Tile,
        factors: &mut [f32],
    ) {
        let (factors, _) = factors.as_chunks_mut::<VECTOR_LEN>();
        for column in tile.vectors() {
            let [_, visible] = tile.rows(column);
            let mut by_query = [[0.0; TILE]; VECTOR_LEN];
            for (i, factors) in by_query.iter_mut().enumerate() {
                let query = (first_query + column + i) as u64;
                self.of_keys(self.first_element + query * self.tokens + first_key as u64, factors);
            }
            for key in (0..visible).step_by(VECTOR_LEN) {
                let mut square = [s.zero(); VECTOR_LEN];
                for (vector, factors) in square.iter_mut().zip(&by_query) {
                    *vector = s.load_partial(&factors[key..key + VECTOR_LEN]);
                }
                let square = s.transpose(square);
                for (i, &vector) in square.iter().enumerate() {
                    s.store(vector, &mut factors[(key + i) * PER_ROW + column / VECTOR_LEN]);
                }
            }
        }
    }

    /// The factors of 64 elements in a row.
    #[inline(always)]
    fn of_keys(&self, first_element: u64, factors: &mut [f32; TILE]) {
        // Sixteen blocks are enough if the first element begins one; else the next is met as well.
        const BLOCKS: usize = TILE / 4;
        let mut in_order = [0.0; TILE + 4];
        let words = self.key.blocks::<BLOCKS>(first_element / 4);
        for block in 0..BLOCKS {
            for word in 0..4 {
                in_order[4 * block + word] = self.of_word(words[word][block]);
            }
        }
        let offset = (first_element % 4) as usize;
        if offset > 0 {
            let next = self.key.block(first_element / 4 + BLOCKS as u64);
            in_order[TILE..].copy_from_slice(&next.map(|word| self.of_word(word)));
        }
        factors.copy_from_slice(&in_order[offset..][..TILE]);
    }

    #[inline(always)]
    fn of_word(&self, word: u32) -> f32 {
        if word >= self.threshold { self.kept } else { 0.0 }
    }
}
