//! Peak FLOP rate of the machine: loops of fused multiply-adds that touch no memory.
//!
//! The fraction of this peak that training reaches is its hardware FLOP utilization. The caller
//! measures the time.

use crate::Cpu;
use crate::gemm::tiles::Engine;
use crate::simd::{Kernel, Simd, VECTOR_LEN};
use std::sync::atomic::{AtomicU64, Ordering};

/// Independent chains, enough to hide the latency of two units on every instruction set.
const CHAINS: usize = 12;

/// Runs `num_rounds` rounds on every thread and returns the floating-point operations done.
pub fn fma_burst(cpu: &Cpu, num_rounds: usize) -> f64 {
    let num_threads = cpu.num_threads();
    cpu.for_each(num_threads, |_| {
        let sum = cpu.run(Burst { num_rounds });
        assert!(sum.is_finite(), "the chains stay bounded");
    });
    2.0 * (num_threads * num_rounds * CHAINS * VECTOR_LEN) as f64
}

/// Runs `num_rounds` rounds of products of bf16 tiles on every thread, if the CPU has matrix units,
/// and returns the floating-point operations done.
pub fn tile_burst(cpu: &Cpu, num_rounds: usize) -> Option<f64> {
    let num_threads = cpu.num_threads();
    let flops = AtomicU64::new(0);
    cpu.for_each(num_threads, |_| {
        // Relaxed is enough: a sum of whole numbers.
        flops.fetch_add(cpu.run_tiles(TileBurst { num_rounds }), Ordering::Relaxed);
    });
    cpu.has_matrix_units().then(|| flops.into_inner() as f64)
}

struct TileBurst {
    num_rounds: usize,
}

impl Kernel for TileBurst {
    type Out = u64;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        Engine::new(s).burst(self.num_rounds)
    }
}

struct Burst {
    num_rounds: usize,
}

impl Kernel for Burst {
    type Out = f32;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (factor, term) = (s.splat(0.999), s.splat(0.001));
        let mut chains = [s.zero(); CHAINS];
        for _ in 0..self.num_rounds {
            for chain in &mut chains {
                *chain = s.fma(*chain, factor, term);
            }
        }
        let mut total = s.zero();
        for chain in chains {
            total = s.add(total, chain);
        }
        s.reduce_add(total)
    }
}
