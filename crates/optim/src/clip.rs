//! The global norm of the gradient, and clipping by it.
//!
//! The norm is a sum over every parameter, so its order must not depend on who holds what: squares
//! are summed in `f64` per 4,096 elements of each tensor, and those partial sums are added by
//! parameter name, then by chunk. A shard that starts at a multiple of 4,096 elements can compute
//! its chunks alone; the partial sums are gathered, never added on the way.

use crate::Slot;
use lockstep_tensor::{Cpu, reduce};

/// Elements of a tensor whose squares are summed together.
pub const CHUNK_LEN: usize = 4096;

/// Measures gradients of one layout; the memory for partial sums is made once.
#[derive(Debug)]
pub struct GlobalNorm {
    /// By name.
    slots: Vec<Slot>,
    /// The partial sums of one parameter.
    partial: Vec<f64>,
}

/// The size of a gradient and what clipping makes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The Euclidean norm over all parameters; not finite when any gradient is not.
    pub norm: f64,
    /// What every gradient is to be multiplied with: 1 where the norm is within the limit.
    pub scale: f32,
}

impl GlobalNorm {
    /// For gradients laid out as `slots` say.
    pub fn new(slots: &[Slot]) -> Self {
        let mut slots = slots.to_vec();
        slots.sort_by(|a, b| a.name.cmp(&b.name));
        let longest = slots.iter().map(|slot| slot.range.len()).max().unwrap_or(0);
        Self { slots, partial: vec![0.0; longest.div_ceil(CHUNK_LEN)] }
    }

    /// The norm of `grads`, a flat buffer per block, and the scale that brings it within `limit`
    /// (0 switches clipping off).
    pub fn clip<G: AsRef<[f32]>>(&mut self, cpu: &Cpu, grads: &[G], limit: f64) -> Clip {
        let mut sum = 0.0;
        for slot in &self.slots {
            let grad = &grads[slot.block].as_ref()[slot.range.clone()];
            let partial = &mut self.partial[..grad.len().div_ceil(CHUNK_LEN)];
            reduce::sum_squares_chunks(cpu, grad, partial);
            for chunk in partial {
                sum += *chunk;
            }
        }
        let norm = sum.sqrt();
        let scale = if limit > 0.0 && norm > limit { (limit / norm) as f32 } else { 1.0 };
        Clip { norm, scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::Isa;

    fn slot(block: usize, name: &str, range: std::ops::Range<usize>) -> Slot {
        Slot { block, name: name.to_string(), range, decay: true }
    }

    fn wavy(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 37 % 101) as f32 * 1e-3 - 0.05).collect()
    }

    #[test]
    fn the_norm_is_that_of_all_slots_and_of_nothing_between_them() {
        let cpu = Cpu::single(Isa::detect());
        let grads = [vec![3.0, 100.0, 0.0], vec![-100.0, 4.0]];
        let slots = [slot(0, "b", 0..1), slot(1, "a", 1..2)];
        let clip = GlobalNorm::new(&slots).clip(&cpu, &grads, 1.0);
        assert!((clip.norm - 5.0).abs() < 1e-12);
        assert!((clip.scale - 0.2).abs() < 1e-7);
    }

    #[test]
    fn a_norm_within_the_limit_or_without_one_leaves_the_gradient_alone() {
        let cpu = Cpu::single(Isa::detect());
        let mut norm = GlobalNorm::new(&[slot(0, "a", 0..2)]);
        for limit in [5.0, 6.0, 0.0] {
            let clip = norm.clip(&cpu, &[vec![3.0, 4.0]], limit);
            assert_eq!(clip.scale.to_bits(), 1.0_f32.to_bits());
        }
    }

    #[test]
    fn the_norm_does_not_depend_on_how_tensors_lie_in_blocks() {
        let cpu = Cpu::single(Isa::detect());
        let (a, b) = (wavy(CHUNK_LEN + 77), wavy(3 * CHUNK_LEN));
        let joined = [[b.clone(), a.clone()].concat()];
        let end = a.len() + b.len();
        let slots = [slot(0, "b", 0..b.len()), slot(0, "a", b.len()..end)];
        let one = GlobalNorm::new(&slots).clip(&cpu, &joined, 1.0);
        let slots = [slot(0, "a", 0..a.len()), slot(1, "b", 0..b.len())];
        let two = GlobalNorm::new(&slots).clip(&cpu, &[a, b], 1.0);
        assert_eq!(one.norm.to_bits(), two.norm.to_bits());
    }

    #[test]
    fn a_gradient_that_is_not_finite_gives_a_norm_that_is_not() {
        let cpu = Cpu::single(Isa::detect());
        for bad in [f32::NAN, f32::INFINITY] {
            let clip = GlobalNorm::new(&[slot(0, "a", 0..2)]).clip(&cpu, &[vec![1.0, bad]], 1.0);
            assert!(!clip.norm.is_finite());
        }
    }
}
