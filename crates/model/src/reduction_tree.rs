//! Reduction tree: the sum over shards as one binary tree over their indices.
//!
//! The left side of every node is the largest power of two of shards that leaves a nonempty right
//! side: `(0 + 1) + (2 + 3)`, `(0 + 1) + 2`. A rank with a whole node of the tree computes its sum
//! locally; collectives compute the rest of the tree.
//!
//! Each addend is computed when it is needed. The right side of a node needs its own memory, unless
//! it is one addend that can be *added* to the left side while it is computed and is still rounded
//! to one number first: a product whose sum stays in registers until it is finished.

use lockstep_tensor::device::{Device, Result, ViewMut};
use lockstep_tensor::gemm::Write;
use std::ops::Range;

/// Sets `out` to the sum of the addends `shards`; `compute` sets or adds one of them. `spare` has
/// space for [`num_spare`] of them.
pub(crate) fn sum(
    device: &dyn Device,
    shards: Range<usize>,
    fuses: bool,
    mut out: ViewMut<'_>,
    mut spare: ViewMut<'_>,
    compute: &mut dyn FnMut(usize, ViewMut<'_>, Write) -> Result<()>,
) -> Result<()> {
    if shards.len() == 1 {
        return compute(shards.start, out, Write::Set);
    }
    let middle = shards.start + shards.len().next_power_of_two() / 2;
    sum(device, shards.start..middle, fuses, out.reborrow(), spare.reborrow(), compute)?;
    let right = middle..shards.end;
    if fuses && right.len() == 1 {
        return compute(right.start, out, Write::Add);
    }
    let (mut addend, spare) = spare.split_at(out.len());
    sum(device, right, fuses, addend.reborrow(), spare, compute)?;
    device.add_assign(out, addend.as_view())
}

/// Number of addends that [`sum`] stores besides the sum itself.
pub(crate) const fn num_spare(num_shards: usize, fuses: bool) -> usize {
    if num_shards <= 1 || (fuses && num_shards == 2) {
        return 0;
    }
    let left = num_shards.next_power_of_two() / 2;
    let right = num_shards - left;
    let of_left = num_spare(left, fuses);
    if fuses && right == 1 {
        return of_left;
    }
    let of_right = 1 + num_spare(right, fuses);
    if of_left > of_right { of_left } else { of_right }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::{Cpu, Isa};

    /// One, and numbers that vanish when added to it singly, but not in pairs.
    fn addend(shard: usize) -> f32 {
        if shard == 0 { 1.0 } else { 5e-8 + shard as f32 * 1e-10 }
    }

    fn by_tree(shards: Range<usize>, fuses: bool) -> f32 {
        let mut out = [f32::NAN];
        let mut spare = vec![f32::NAN; num_spare(shards.len(), fuses)];
        let (device, spare) = (Cpu::single(Isa::detect()), ViewMut::of(&mut spare));
        let mut compute = |shard: usize, out: ViewMut<'_>, write| {
            let [out] = out.into_slice::<f32>()? else { panic!("one element") };
            match write {
                Write::Set => *out = addend(shard),
                Write::Add => *out += addend(shard),
            }
            Ok(())
        };
        sum(&device, shards, fuses, ViewMut::of(&mut out), spare, &mut compute).unwrap();
        out[0]
    }

    #[test]
    fn fused_and_unfused_sums_have_the_order_of_the_tree() {
        let a = addend;
        for fuses in [false, true] {
            let same = |shards, expected: f32| {
                assert_eq!(by_tree(shards, fuses).to_bits(), expected.to_bits());
            };
            same(0..1, a(0));
            same(0..2, a(0) + a(1));
            same(0..3, (a(0) + a(1)) + a(2));
            same(4..8, (a(4) + a(5)) + (a(6) + a(7)));
            same(0..6, ((a(0) + a(1)) + (a(2) + a(3))) + (a(4) + a(5)));
            same(0..8, by_tree(0..4, fuses) + by_tree(4..8, fuses));
        }
        assert_ne!(by_tree(0..4, true).to_bits(), (((a(0) + a(1)) + a(2)) + a(3)).to_bits());
    }
}
