//! Test data, devices and comparisons.

use lockstep_tensor::{Cpu, Isa};

/// Widths and lengths around every edge: one vector, one column block, one task.
pub(crate) const ODD_WIDTHS: [usize; 11] = [1, 2, 15, 16, 17, 33, 63, 64, 65, 200, 257];

/// Pseudorandom numbers in [-2, 2) that depend on the seed only.
pub(crate) fn numbers(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 22) as f32 - 2.0
    };
    (0..len).map(|_| next()).collect()
}

/// Pseudorandom integers below `bound`.
pub(crate) fn ids(seed: u32, len: usize, bound: usize) -> Vec<u32> {
    numbers(seed, len).iter().map(|x| ((x + 2.0) / 4.0 * bound as f32) as u32).collect()
}

/// Widens to `f64`.
pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// A device with a second thread.
#[expect(clippy::disallowed_methods, reason = "a test of threads needs threads")]
pub(crate) fn two_threads(isa: Isa) -> Cpu {
    Cpu::new(isa, 2, &|_, run| drop(std::thread::spawn(run)))
}

/// Runs `kernel` with every instruction set of this CPU and with one and two threads, demands the
/// same bits from all, and returns them.
pub(crate) fn same_bits_everywhere(kernel: impl Fn(&Cpu) -> Vec<f32>) -> Vec<f32> {
    let expected = kernel(&Cpu::single(Isa::Portable));
    for isa in Isa::available() {
        for cpu in [Cpu::single(isa), two_threads(isa)] {
            let got = kernel(&cpu);
            assert_eq!(got.len(), expected.len());
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let num_threads = cpu.num_threads();
                assert_eq!(
                    got.to_bits(),
                    expected.to_bits(),
                    "element {i}: {got:e} is not {expected:e} ({isa}, {num_threads} threads)"
                );
            }
        }
    }
    expected
}

/// Demands that `got` is `expected` up to the rounding of a sum of `num_terms` terms in `f32`.
///
/// The bound is absolute, in units of the largest expected element (at least one): terms cancel,
/// so an element near zero carries the rounding of the terms it was made of.
pub(crate) fn assert_close(got: &[f32], expected: &[f64], num_terms: usize) {
    assert_eq!(got.len(), expected.len());
    let largest = expected.iter().fold(1.0, |largest: f64, x| largest.max(x.abs()));
    let bound = f64::from(f32::EPSILON) * largest * (8.0 + (num_terms as f64).sqrt());
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        assert!(error <= bound, "element {i}: {got:e} is not {expected:e}, off by {error:e}");
    }
}

/// The gradient of `loss` at `x` by central differences.
pub(crate) fn central_differences(x: &[f32], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    // The error of the difference is h^2 and its rounding is 1e-16 / h: both are far below f32's.
    let h = 1e-5;
    let mut x = wide(x);
    let mut gradient = Vec::with_capacity(x.len());
    for i in 0..x.len() {
        let here = x[i];
        x[i] = here + h;
        let above = loss(&x);
        x[i] = here - h;
        let below = loss(&x);
        x[i] = here;
        gradient.push((above - below) / (2.0 * h));
    }
    gradient
}

/// The inner product, which turns a kernel's output and a given `d output` into a loss.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
