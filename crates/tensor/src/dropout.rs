//! Dropout (Srivastava et al. 2014): zeroes a random fraction of the elements and scales up the
//! rest, so that the mean is unchanged.
//!
//! No mask is stored. Word `e % 4` of Philox block `e / 4` under the mask's key decides whether
//! element `e` is kept, so the backward pass, a recomputation or another rank with part of the
//! tensor computes the same mask.

use crate::Cpu;
use crate::random::Key;
use crate::simd::{Kernel, Simd, VECTOR_LEN};

/// Dropout mask: a function of the key and the global element index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutMask {
    /// Random stream; callers mix in what makes it unique (step, layer, place).
    pub key: Key,
    /// Fraction that is zeroed, at least 0 and less than 1.
    pub rate: f32,
}

impl DropoutMask {
    /// Threshold of the random word from which an element is kept.
    #[inline]
    pub fn threshold(&self) -> u32 {
        assert!((0.0..1.0).contains(&self.rate), "dropout rate {} is not in [0, 1)", self.rate);
        // 2^32 fits an f64 exactly, and a rate below 1 keeps the product below it.
        (f64::from(self.rate) * 4_294_967_296.0) as u32
    }

    /// Factor on kept elements.
    #[inline]
    pub fn scale(&self) -> f32 {
        1.0 / (1.0 - self.rate)
    }

    /// Whether an element is kept. Slow, for one element; [`apply`] computes many at once.
    pub fn keeps(&self, element: u64) -> bool {
        self.key.block(element / 4)[(element % 4) as usize] >= self.threshold()
    }
}

/// Zeroes and scales `x` in place; its first element has the global index `first_element`.
///
/// Applying the mask to the gradient is the backward pass. Rate 0 changes nothing.
pub fn apply(cpu: &Cpu, mask: &DropoutMask, first_element: u64, x: &mut [f32]) {
    let (threshold, scale) = (mask.threshold(), mask.scale());
    if threshold == 0 {
        return;
    }
    cpu.for_each_part(x, TASK, |i, x| {
        let first = first_element + (i * TASK) as u64;
        cpu.run(Apply { key: mask.key, threshold, scale, first, x });
    });
}

/// Elements in one task.
pub(crate) const TASK: usize = 16_384;

/// Elements whose random words are computed at once: four from each of sixteen blocks.
const GROUP: usize = 4 * VECTOR_LEN;

struct Apply<'a> {
    key: Key,
    threshold: u32,
    scale: f32,
    first: u64,
    x: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        // Up to three elements before the first whole block, then whole blocks.
        let started = (self.first % 4) as usize;
        let head_len = ((4 - started) % 4).min(self.x.len());
        let (head, body) = self.x.split_at_mut(head_len);
        let block = self.key.block(self.first / 4);
        keep(head, &block[started..], self.threshold, self.scale);
        let first_block = self.first.div_ceil(4);
        for (i, x) in (0u64..).zip(body.chunks_mut(GROUP)) {
            let [a, b, c, d] = self.key.blocks::<VECTOR_LEN>(first_block + i * VECTOR_LEN as u64);
            let mut random_bits = [[0; 4]; VECTOR_LEN];
            for i in 0..VECTOR_LEN {
                random_bits[i] = [a[i], b[i], c[i], d[i]];
            }
            keep(x, &random_bits.as_flattened()[..x.len()], self.threshold, self.scale);
        }
    }
}

/// Scales the elements whose word is not below the threshold and zeroes the others.
#[inline(always)]
fn keep(x: &mut [f32], random_bits: &[u32], threshold: u32, scale: f32) {
    for (x, bits) in x.iter_mut().zip(random_bits) {
        *x = if *bits >= threshold { *x * scale } else { 0.0 };
    }
}
