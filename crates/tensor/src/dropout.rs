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
const TASK: usize = 16_384;

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

#[cfg(test)]
mod tests {
    use super::{Cpu, DropoutMask, Key, TASK, apply};
    use crate::Isa;

    fn mask(rate: f32) -> DropoutMask {
        DropoutMask { key: Key::new(1, "dropout").with(2), rate }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may start its own threads")]
    fn the_mask_depends_on_the_element_index_only() {
        let mask = mask(0.3);
        for isa in Isa::available() {
            let threads = Cpu::new(isa, 2, &|_, run| {
                std::thread::spawn(run);
            });
            for cpu in [Cpu::single(isa), threads] {
                for (first, len) in
                    [(0, 0), (0, 1), (1, 1), (1, 2), (2, 3), (3, 17), (6, 63), (5, 2 * TASK + 77)]
                {
                    let x: Vec<f32> = (0..len).map(|i| i as f32 + 1.0).collect();
                    let mut y = x.clone();
                    apply(&cpu, &mask, first, &mut y);
                    for ((e, x), y) in (first..).zip(x).zip(y) {
                        let expected = if mask.keeps(e) { x * mask.scale() } else { 0.0 };
                        assert_eq!(y.to_bits(), expected.to_bits(), "{isa} element {e}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_kept_fraction_is_one_minus_the_rate_and_the_mean_is_unchanged() {
        let cpu = Cpu::single(Isa::detect());
        let n = 400_000;
        for rate in [0.001, 0.1, 0.5, 0.9] {
            let mut x = vec![1.0; n];
            apply(&cpu, &mask(rate), 1_000_003, &mut x);
            let kept = x.iter().filter(|&&x| x > 0.0).count() as f32 / n as f32;
            let standard_error = (rate * (1.0 - rate) / n as f32).sqrt();
            assert!((kept - (1.0 - rate)).abs() < 4.0 * standard_error, "rate {rate}: {kept}");
            let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
            assert!((mean - 1.0).abs() < 4.0 * f64::from(standard_error / (1.0 - rate)));
        }
    }

    #[test]
    fn rate_zero_changes_no_bit() {
        let mut x = [1.5, -0.0, f32::INFINITY, 1e-40];
        apply(&Cpu::single(Isa::detect()), &mask(0.0), 3, &mut x);
        assert_eq!(x.map(f32::to_bits), [1.5, -0.0, f32::INFINITY, 1e-40].map(f32::to_bits));
    }

    #[test]
    fn a_dropped_infinity_is_zero_not_nan() {
        let mask = mask(0.5);
        let dropped = (0..100).find(|&e| !mask.keeps(e)).unwrap();
        let mut x = [f32::INFINITY];
        apply(&Cpu::single(Isa::detect()), &mask, dropped, &mut x);
        assert_eq!(x[0].to_bits(), 0);
    }

    #[test]
    fn another_key_drops_other_elements() {
        let (a, b) = (mask(0.5), DropoutMask { key: mask(0.5).key.with(1), rate: 0.5 });
        let agreeing = (0..10_000).filter(|&e| a.keeps(e) == b.keeps(e)).count();
        assert!((4_800..5_200).contains(&agreeing), "{agreeing} of 10000 agree");
    }

    #[test]
    #[should_panic(expected = "dropout rate 1 is not in [0, 1)")]
    fn a_rate_of_one_is_refused() {
        apply(&Cpu::single(Isa::detect()), &mask(1.0), 0, &mut [1.0]);
    }
}
