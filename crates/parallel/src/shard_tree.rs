//! Reduction tree over the leaves of one gradient shard, fed pass by pass (ZeRO-2 and 3).
//!
//! A pass brings one leaf from each rank. The leaves are added by the tree over leaf numbers, with
//! each other and with sums of earlier passes, and only sums that wait for a sibling are kept. Two,
//! four or eight ranks leave one sum after every pass, and at most log2(passes) wait; an odd number
//! of ranks leaves a few more.

use crate::buffer::Floats;
use crate::leaves::Subtree;
use crate::wire_precision;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Result as DeviceResult, View, ViewMut};
use lockstep_tensor::gemm::Precision;

/// Sums of one shard over all leaves.
#[derive(Debug)]
pub struct ShardTree {
    num_leaves: usize,
    len: usize,
    /// Slots for waiting sums.
    kept: Floats,
    waiting: Vec<(Subtree, Place)>,
    next_leaf: usize,
    /// Precision to which sums are rounded; leaves arrive rounded.
    wire: Precision,
}

/// Location of a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// This slot of the kept ones.
    Kept(usize),
    /// This piece of the current pass.
    Piece(usize),
}

impl ShardTree {
    /// An empty tree for a shard of `len` elements; `kept` has [`Self::num_kept`] times as many.
    pub fn new(len: usize, num_leaves: usize, kept: Floats) -> Self {
        let wire = Precision::F32;
        Self { num_leaves, len, kept, waiting: Vec::new(), next_leaf: 0, wire }
    }

    /// Rounds sums to the wire precision; see [`crate::wire_precision`].
    pub fn rounded_to(self, wire: Precision) -> Self {
        Self { wire, ..self }
    }

    /// Largest number of sums that wait between passes.
    pub fn num_kept(num_leaves: usize, num_workers: usize) -> usize {
        let (mut waiting, mut most) = (Vec::new(), 0);
        for first in (0..num_leaves).step_by(num_workers) {
            let leaves = first..num_leaves.min(first + num_workers);
            merge(&mut waiting, first, leaves.len(), |_, _| {});
            most = most.max(waiting.len());
        }
        most
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        self.kept.len()
    }

    /// Discards all sums, for the next step.
    pub fn restart(&mut self) {
        self.waiting.clear();
        self.next_leaf = 0;
    }

    /// Adds a pass: one piece per leaf, contiguous, in ascending leaf order.
    pub fn absorb(&mut self, cpu: &Cpu, pieces: &mut [f32], num_pieces: usize) {
        assert_eq!(pieces.len(), num_pieces * self.len, "whole pieces");
        merge(&mut self.waiting, self.next_leaf, num_pieces, |left, right| {
            let (left, right) = two(&mut self.kept, pieces, self.len, left, right);
            wire_precision::add(cpu, self.wire, left, right);
        });
        self.next_leaf += num_pieces;
        // Move the remaining pieces to free slots.
        let is_kept = |slot, waiting: &[(Subtree, Place)]| {
            waiting.iter().any(|(_, place)| *place == Place::Kept(slot))
        };
        for index in 0..self.waiting.len() {
            if let (_, Place::Piece(piece)) = self.waiting[index] {
                let free = (0..self.waiting.len()).find(|&slot| !is_kept(slot, &self.waiting));
                let free = free.expect("a slot for every sum that waits");
                let piece = &pieces[piece * self.len..][..self.len];
                self.kept[free * self.len..][..self.len].copy_from_slice(piece);
                self.waiting[index].1 = Place::Kept(free);
            }
        }
    }

    /// Sum over all leaves, once it is complete.
    pub fn root(&self) -> &[f32] {
        let start = self.root_slot() * self.len;
        &self.kept[start..start + self.len]
    }

    /// Sum over all leaves, on the device.
    pub fn root_view(&self) -> DeviceResult<View<'_>> {
        let start = self.root_slot() * self.len;
        Ok(self.kept.view()?.range(start..start + self.len))
    }

    /// Mutable sum over all leaves, on the device.
    pub fn root_view_mut(&mut self) -> DeviceResult<ViewMut<'_>> {
        let start = self.root_slot() * self.len;
        Ok(self.kept.view_mut()?.range(start..start + self.len))
    }

    /// Mutable sum over all leaves.
    pub fn root_mut(&mut self) -> &mut [f32] {
        let start = self.root_slot() * self.len;
        &mut self.kept[start..start + self.len]
    }

    fn root_slot(&self) -> usize {
        let whole = Subtree { first_leaf: 0, num_leaves: self.num_leaves };
        match self.waiting[..] {
            [(subtree, Place::Kept(slot))] if subtree == whole => slot,
            _ => panic!("the tree is complete"),
        }
    }
}

/// Adds leaves to the waiting sums; `add` adds the second of two sums to the first.
fn merge(
    waiting: &mut Vec<(Subtree, Place)>,
    first_leaf: usize,
    num_pieces: usize,
    mut add: impl FnMut(Place, Place),
) {
    for piece in 0..num_pieces {
        let leaf = Subtree { first_leaf: first_leaf + piece, num_leaves: 1 };
        let mut sum = (leaf, Place::Piece(piece));
        while let Some(left) = waiting.pop_if(|(left, _)| left.pairs_with(sum.0)) {
            add(left.1, sum.1);
            sum = (left.0.twice(), left.1);
        }
        waiting.push(sum);
    }
}

/// The left sum to add to, and the right one to add.
fn two<'a>(
    kept: &'a mut [f32],
    pieces: &'a mut [f32],
    len: usize,
    left: Place,
    right: Place,
) -> (&'a mut [f32], &'a [f32]) {
    let range = |index: usize| index * len..(index + 1) * len;
    match (left, right) {
        (Place::Kept(left), Place::Piece(right)) => (&mut kept[range(left)], &pieces[range(right)]),
        (Place::Piece(left), Place::Kept(right)) => (&mut pieces[range(left)], &kept[range(right)]),
        (Place::Kept(left), Place::Kept(right)) => pair(kept, range(left), range(right)),
        (Place::Piece(left), Place::Piece(right)) => pair(pieces, range(left), range(right)),
    }
}

fn pair(
    data: &mut [f32],
    left: std::ops::Range<usize>,
    right: std::ops::Range<usize>,
) -> (&mut [f32], &[f32]) {
    let [left, right] = data.get_disjoint_mut([left, right]).expect("two sums have two places");
    (left, right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::Isa;
    use lockstep_tensor::random::Key;

    const LEN: usize = 33;

    fn leaf(leaf: usize) -> Vec<f32> {
        let key = Key::new(5, "leaf").with(leaf as u64);
        (0..LEN).map(|i| key.normal(i as u64)).collect()
    }

    fn by_definition(leaves: std::ops::Range<usize>) -> Vec<f32> {
        if leaves.len() == 1 {
            return leaf(leaves.start);
        }
        let middle = leaves.start + leaves.len() / 2;
        let (left, right) =
            (by_definition(leaves.start..middle), by_definition(middle..leaves.end));
        left.iter().zip(&right).map(|(left, right)| left + right).collect()
    }

    #[test]
    fn passes_of_any_width_give_the_sum_of_the_definition() {
        let cpu = Cpu::single(Isa::detect());
        for num_leaves in [1, 2, 4, 8] {
            for num_workers in 1..=num_leaves {
                let num_kept = ShardTree::num_kept(num_leaves, num_workers);
                let kept = Floats::zeros(None, LEN * num_kept).unwrap();
                let mut tree = ShardTree::new(LEN, num_leaves, kept);
                for _ in 0..2 {
                    tree.restart();
                    for first in (0..num_leaves).step_by(num_workers) {
                        let pass = first..num_leaves.min(first + num_workers);
                        let mut pieces: Vec<f32> = pass.clone().flat_map(leaf).collect();
                        tree.absorb(&cpu, &mut pieces, pass.len());
                    }
                    let bits = |sum: &[f32]| sum.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    let expected = by_definition(0..num_leaves);
                    assert_eq!(bits(tree.root()), bits(&expected), "{num_workers}");
                }
            }
        }
    }

    #[test]
    fn powers_of_two_keep_few_sums() {
        assert_eq!(ShardTree::num_kept(8, 8), 1);
        assert_eq!(ShardTree::num_kept(8, 4), 1);
        assert_eq!(ShardTree::num_kept(8, 2), 2);
        assert_eq!(ShardTree::num_kept(8, 1), 3);
        assert_eq!(ShardTree::num_kept(8, 3), 2);
        assert_eq!(ShardTree::num_kept(8, 7), 3);
    }

    #[test]
    #[should_panic(expected = "the tree is complete")]
    fn a_sum_with_a_leaf_missing_is_a_bug() {
        let kept = Floats::zeros(None, LEN).unwrap();
        assert!(ShardTree::new(LEN, 4, kept).root().is_empty());
    }
}
