//! Dropout of attention probabilities: a mask that is a function of the global element alone.
//!
//! The probability of (sample, head, query, key) is element `((sample * heads + head) * tokens +
//! query) * tokens + key`, for every rank, micro-batch and tile, forward and backward, where head
//! and heads are those of the whole model. It is kept when its random number is at least `rate
//! * 2^32`, and then divided by `1 - rate`.

use super::tile::Tile;
use super::{PER_ROW, Shape, TILE};
use crate::dropout::DropoutMask;
use crate::random::Key;
use crate::simd::{Simd, VECTOR_LEN};

/// Dropout of attention probabilities.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Random stream of this step and layer.
    pub key: Key,
    /// Fraction of probabilities that become zero; at least 0, below 1.
    pub rate: f32,
    /// Global index of the first sequence.
    pub first_sample: u64,
    /// Heads of the model in this call.
    pub heads: Heads,
}

/// Heads of a call among those of the model. A call may run several tensor-parallel shards of heads
/// as additional sequences: first all sequences with the first shard, then with the next.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Number of heads of the model.
    pub num: usize,
    /// First head of the first shard.
    pub first: usize,
    /// Sequences of one shard.
    pub sequences: usize,
}

impl Heads {
    /// All heads of the model, in one shard.
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
        let (shard, sequence) = (sequence / sequences, sequence % sequences);
        let head = first + shard * shape.heads + head;
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
    /// Writes the factors of one tile, keys in rows: zero, or the factor of a kept one.
    ///
    /// `first` holds the positions of the tile's first query and first key; masked elements get a
    /// factor, too.
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
        // Sixteen blocks suffice if the first element begins one; else one more.
        const BLOCKS: usize = TILE / 4;
        let mut in_order = [0.0; TILE + 4];
        let random_bits = self.key.blocks::<BLOCKS>(first_element / 4);
        for block in 0..BLOCKS {
            for word in 0..4 {
                in_order[4 * block + word] = self.factor(random_bits[word][block]);
            }
        }
        let offset = (first_element % 4) as usize;
        if offset > 0 {
            let next = self.key.block(first_element / 4 + BLOCKS as u64);
            in_order[TILE..].copy_from_slice(&next.map(|word| self.factor(word)));
        }
        factors.copy_from_slice(&in_order[offset..][..TILE]);
    }

    #[inline(always)]
    fn factor(&self, word: u32) -> f32 {
        if word >= self.threshold { self.kept } else { 0.0 }
    }
}
