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
    /// By name and place in the parameter.
    slots: Vec<Slot>,
    /// The sum of squares of every chunk, in the order of the slots.
    chunks: Vec<f64>,
}

/// The size of a gradient and what clipping makes of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clip {
    /// The Euclidean norm over all parameters; not finite when any gradient is not.
    pub norm: f64,
    /// What every gradient is to be multiplied with: 1 where the norm is within the limit.
    pub scale: f32,
}

impl Clip {
    /// For gradients whose squares add up to `sum_squares`; a `limit` of 0 switches clipping off.
    pub fn new(sum_squares: f64, limit: f64) -> Self {
        let norm = sum_squares.sqrt();
        let scale = if limit > 0.0 && norm > limit { (limit / norm) as f32 } else { 1.0 };
        Self { norm, scale }
    }
}

impl GlobalNorm {
    /// For gradients laid out as `slots` say.
    pub fn new(slots: &[Slot]) -> Self {
        let mut slots = slots.to_vec();
        slots.sort_by(|a, b| (&a.name, a.first).cmp(&(&b.name, b.first)));
        let num_chunks = slots.iter().map(num_chunks).sum();
        Self { slots, chunks: vec![0.0; num_chunks] }
    }

    /// The norm and the scale that brings it within `limit`, where `grads` gives the flat buffer
    /// of each block.
    pub fn clip<'a, G: AsRef<[f32]> + ?Sized + 'a>(
        &mut self,
        cpu: &Cpu,
        grads: impl Fn(usize) -> &'a G,
        limit: f64,
    ) -> Clip {
        Clip::new(self.chunk_sums(cpu, grads).iter().sum(), limit)
    }

    /// The sum of squares of every chunk, by name of the parameter and place in it. Where workers
    /// have parts of the gradients, all of their chunks in this order add up to the norm.
    pub fn chunk_sums<'a, G: AsRef<[f32]> + ?Sized + 'a>(
        &mut self,
        cpu: &Cpu,
        grads: impl Fn(usize) -> &'a G,
    ) -> &[f64] {
        let mut rest = &mut self.chunks[..];
        for slot in &self.slots {
            let grad = &grads(slot.block).as_ref()[slot.range.clone()];
            let (own, behind) = rest.split_at_mut(num_chunks(slot));
            reduce::sum_squares_chunks(cpu, grad, own);
            rest = behind;
        }
        &self.chunks
    }

    /// What [`Self::chunk_sums`] gave last.
    pub fn last_sums(&self) -> &[f64] {
        &self.chunks
    }
}

/// How many chunks a slot has.
pub fn num_chunks(slot: &Slot) -> usize {
    slot.range.len().div_ceil(CHUNK_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::Isa;

    fn slot(block: usize, name: &str, range: std::ops::Range<usize>) -> Slot {
        Slot { block, name: name.to_string(), range, first: 0, decay: true }
    }

    fn wavy(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i * 37 % 101) as f32 * 1e-3 - 0.05).collect()
    }

    #[test]
    fn the_norm_is_that_of_all_slots_and_of_nothing_between_them() {
        let cpu = Cpu::single(Isa::detect());
        let grads = [vec![3.0, 100.0, 0.0], vec![-100.0, 4.0]];
        let slots = [slot(0, "b", 0..1), slot(1, "a", 1..2)];
        let clip = GlobalNorm::new(&slots).clip(&cpu, |block| &grads[block], 1.0);
        assert!((clip.norm - 5.0).abs() < 1e-12);
        assert!((clip.scale - 0.2).abs() < 1e-7);
    }

    #[test]
    fn a_norm_within_the_limit_or_without_one_leaves_the_gradient_alone() {
        let cpu = Cpu::single(Isa::detect());
        let mut norm = GlobalNorm::new(&[slot(0, "a", 0..2)]);
        for limit in [5.0, 6.0, 0.0] {
            let clip = norm.clip(&cpu, |_| &[3.0, 4.0], limit);
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
        let one = GlobalNorm::new(&slots).clip(&cpu, |block| &joined[block], 1.0);
        let slots = [slot(0, "a", 0..a.len()), slot(1, "b", 0..b.len())];
        let two = GlobalNorm::new(&slots).clip(&cpu, |block| [&a, &b][block], 1.0);
        assert_eq!(one.norm.to_bits(), two.norm.to_bits());
    }

    #[test]
    fn a_gradient_that_is_not_finite_gives_a_norm_that_is_not() {
        let cpu = Cpu::single(Isa::detect());
        for bad in [f32::NAN, f32::INFINITY] {
            let grads = [1.0, bad];
            let clip = GlobalNorm::new(&[slot(0, "a", 0..2)]).clip(&cpu, |_| &grads, 1.0);
            assert!(!clip.norm.is_finite());
        }
    }
}
