//! Gradient sums in an order fixed by the recipe: micro-batches, leaves, reduction tree.
//!
//! The micro-batches of a step form G consecutive groups of equal size, the *leaves*. A leaf starts
//! from zero and adds its micro-batches in ascending order; leaves are added by one binary tree
//! over leaf *numbers*: ((0+1)+(2+3))+((4+5)+(6+7)). The order does not mention ranks. A rank that
//! runs some leaves in ascending order can add every subtree that lies wholly inside them and
//! contribute the rest as separate addends, so one rank, eight, or five give the same bits.
//!
//! Leaves finish in ascending order, so the waiting sums behave like the ones of a binary counter:
//! leaf 0; then 0+1; then 0+1 and 2; then all of 0 to 3; ... A finished leaf is merged with every
//! aligned neighbor of its size in one pass over memory. At most log2(G) sums wait while a leaf is
//! filled. Each bucket has its own tree, so that its reduction can start while earlier blocks are
//! still in backward.

use crate::buffer::Floats;
use crate::wire_precision;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Result as DeviceResult, View, ViewMut};
use lockstep_tensor::gemm::{Precision, Write};
use std::ops::Range;

/// Division of micro-batches into leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// Number of leaves G of the global batch, a power of two.
    pub num_leaves: usize,
    /// Consecutive micro-batches of each leaf.
    pub microbatches_per_leaf: usize,
}

/// An aligned group of consecutive leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// First leaf; a multiple of `num_leaves`.
    pub first_leaf: usize,
    /// Number of leaves, a power of two.
    pub num_leaves: usize,
}

impl Subtree {
    /// Whether `self` and `next` are the two halves of one subtree.
    pub(crate) const fn pairs_with(self, next: Self) -> bool {
        self.num_leaves == next.num_leaves && self.first_leaf.is_multiple_of(2 * self.num_leaves)
    }

    pub(crate) const fn twice(self) -> Self {
        Self { first_leaf: self.first_leaf, num_leaves: 2 * self.num_leaves }
    }
}

/// Gradient sums of one bucket over a rank's leaves.
#[derive(Debug)]
pub struct LeafTree {
    leaves: Leaves,
    /// Leaves of this rank.
    mine: Range<usize>,
    /// Length of one sum.
    len: usize,
    /// Sum i of `waiting` is the i-th range of `len` elements; the range behind the last is the
    /// leaf being filled. They are contiguous because collectives take them so.
    data: Floats,
    /// Finished sums, in ascending leaf order.
    waiting: Vec<Subtree>,
    /// Micro-batches already in the leaf being filled.
    num_microbatches: usize,
    /// Whether a micro-batch is adding to the leaf being filled.
    is_open: bool,
    /// Precision to which leaves and sums are rounded.
    wire: Precision,
}

/// Elements merged by one task.
const MERGE_PART: usize = 16 * 1024;
/// Elements summed at a time, in the first-level cache.
const MERGE_TILE: usize = 512;

impl LeafTree {
    /// An empty tree for gradients of `len` elements over the leaves `mine`; `data` has
    /// [`Self::num_buffers`] times as many.
    pub fn new(len: usize, leaves: Leaves, mine: Range<usize>, data: Floats) -> Self {
        assert!(leaves.num_leaves.is_power_of_two(), "the tree is binary");
        assert!(leaves.microbatches_per_leaf > 0, "a leaf has micro-batches");
        assert!(mine.end <= leaves.num_leaves && !mine.is_empty(), "leaves of this batch");
        let num_buffers = Self::num_buffers(mine.clone());
        assert_eq!(data.len(), num_buffers * len, "room for every sum");
        let waiting = Vec::with_capacity(num_buffers);
        let wire = Precision::F32;
        Self { leaves, mine, len, data, waiting, num_microbatches: 0, is_open: false, wire }
    }

    /// Rounds leaves and sums to the wire precision; see [`crate::wire_precision`].
    pub fn rounded_to(self, wire: Precision) -> Self {
        Self { wire, ..self }
    }

    /// Number of sums once every leaf is finished.
    pub fn num_sums(mine: Range<usize>) -> usize {
        let mut waiting = Vec::new();
        mine.for_each(|leaf| push(&mut waiting, leaf));
        waiting.len()
    }

    /// Largest number of sums at a time, the leaf being filled included.
    pub fn num_buffers(mine: Range<usize>) -> usize {
        let mut waiting = Vec::new();
        let mut most = 0;
        for leaf in mine {
            most = most.max(waiting.len() + 1);
            push(&mut waiting, leaf);
        }
        most
    }

    /// Elements of one sum.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the bucket has no trainable parameters.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        Self::num_buffers(self.mine.clone()) * self.len
    }

    /// Discards all sums, for the next step.
    pub fn restart(&mut self) {
        self.waiting.clear();
        self.num_microbatches = 0;
        self.is_open = false;
    }

    /// Completes the tree with zero sums.
    pub fn abandon(&mut self) {
        self.restart();
        self.mine.clone().for_each(|leaf| push(&mut self.waiting, leaf));
        self.data[..self.waiting.len() * self.len].fill(0.0);
    }

    /// Buffer to which the current micro-batch adds its gradients. When that micro-batch opens a
    /// leaf, the buffer is zeroed on a CPU, and undefined on an accelerator: gradients are set.
    pub fn microbatch_buffer(&mut self, cpu: &Cpu) -> DeviceResult<(ViewMut<'_>, Write)> {
        assert!(!self.is_complete(), "every leaf of this rank is finished");
        let start = self.waiting.len() * self.len;
        let is_undefined = self.data.is_on_accelerator() && self.num_microbatches == 0;
        let (device, data) = self.data.on_device(cpu)?;
        let mut buffer = data.range(start..start + self.len);
        if is_undefined {
            return Ok((buffer, Write::Set));
        }
        if !self.is_open && self.num_microbatches == 0 {
            device.fill(buffer.reborrow(), 0.0)?;
        }
        self.is_open = true;
        Ok((buffer, Write::Add))
    }

    /// The leaf being filled, if the current micro-batch is its last: its gradient alone.
    pub fn completed_leaf(&self) -> DeviceResult<Option<View<'_>>> {
        if self.num_microbatches + 1 < self.leaves.microbatches_per_leaf {
            return Ok(None);
        }
        let start = self.waiting.len() * self.len;
        Ok(Some(self.data.view()?.range(start..start + self.len)))
    }

    /// Marks the current micro-batch as added; the last micro-batch of a leaf merges it into the
    /// tree. Returns whether that was the last leaf.
    pub fn finish_microbatch(&mut self, cpu: &Cpu) -> DeviceResult<bool> {
        assert!(!self.is_complete(), "every leaf of this rank is finished");
        self.is_open = false;
        self.num_microbatches += 1;
        if self.num_microbatches < self.leaves.microbatches_per_leaf {
            return Ok(false);
        }
        self.num_microbatches = 0;
        let leaf_buffer = self.waiting.len();
        let leaf = self.mine.start + self.num_finished();
        push(&mut self.waiting, leaf);
        let target = self.waiting.len() - 1;
        let (start, middle) = (target * self.len, (target + 1) * self.len);
        let end = (leaf_buffer + 1) * self.len;
        if self.data.is_on_accelerator() && self.wire == Precision::F32 {
            let (device, data) = self.data.on_device(cpu)?;
            merge_on(device, data.range(start..end), self.len)?;
        } else {
            let (target, addends) = self.data[start..end].split_at_mut(middle - start);
            match self.wire {
                Precision::F32 => merge(cpu, target, addends),
                wire => merge_rounded(cpu, wire, target, addends),
            }
        }
        Ok(self.is_complete())
    }

    /// Whether every leaf of this rank is in the sums.
    pub fn is_complete(&self) -> bool {
        self.num_finished() == self.mine.len()
    }

    /// Sums of this rank, one per maximal aligned group of its leaves.
    pub fn sums(&self) -> impl Iterator<Item = (Subtree, &[f32])> {
        let sum = |(index, &subtree)| (subtree, &self.data[index * self.len..][..self.len]);
        self.waiting.iter().enumerate().map(sum)
    }

    /// Sums of this rank, concatenated.
    pub fn all_sums(&self) -> &[f32] {
        &self.data[..self.waiting.len() * self.len]
    }

    /// Lends the sums of a complete tree to a collective that writes the total over the first;
    /// [`Self::give_back`] returns them. Also returns the number of elements that are sums.
    pub fn lend(&mut self) -> (Floats, usize) {
        assert!(self.is_complete(), "the tree is complete");
        (std::mem::take(&mut self.data), self.waiting.len() * self.len)
    }

    /// Takes back the buffer of [`Self::lend`].
    pub fn give_back(&mut self, data: Floats) {
        self.data = data;
    }

    /// First sum: the total over all leaves, once it has been reduced.
    pub fn root(&self) -> &[f32] {
        assert!(self.is_complete(), "the tree is complete");
        &self.data[..self.len]
    }

    /// First sum, on the device.
    pub fn root_view(&self) -> DeviceResult<View<'_>> {
        assert!(self.is_complete(), "the tree is complete");
        Ok(self.data.view()?.range(0..self.len))
    }

    /// Mutable first sum, on the device.
    pub fn root_view_mut(&mut self) -> DeviceResult<ViewMut<'_>> {
        assert!(self.is_complete(), "the tree is complete");
        Ok(self.data.view_mut()?.range(0..self.len))
    }

    /// Mutable first sum.
    pub fn root_mut(&mut self) -> &mut [f32] {
        assert!(self.is_complete(), "the tree is complete");
        &mut self.data[..self.len]
    }

    fn num_finished(&self) -> usize {
        self.waiting.iter().map(|subtree| subtree.num_leaves).sum()
    }
}

/// Adds a finished leaf to the waiting sums and merges pairs, like a carry.
fn push(waiting: &mut Vec<Subtree>, leaf: usize) {
    let mut sum = Subtree { first_leaf: leaf, num_leaves: 1 };
    while let Some(previous) = waiting.pop_if(|previous| previous.pairs_with(sum)) {
        sum = previous.twice();
    }
    waiting.push(sum);
}

/// `target = target + (a + (b + ... (y + z)))`: the carry of the counter in one pass. The addends
/// are contiguous.
fn merge(cpu: &Cpu, target: &mut [f32], addends: &[f32]) {
    let len = target.len();
    if addends.is_empty() {
        return;
    }
    cpu.for_each_part(target, MERGE_PART, |index, part| {
        let mut sum = [0.0; MERGE_TILE];
        for (tile_index, tile) in part.chunks_mut(MERGE_TILE).enumerate() {
            let at = index * MERGE_PART + tile_index * MERGE_TILE;
            let mut addends = addends.chunks_exact(len).rev().map(|addend| &addend[at..]);
            let sum = &mut sum[..tile.len()];
            let last = addends.next().expect("there are some");
            sum.copy_from_slice(&last[..tile.len()]);
            for addend in addends {
                for (sum, &addend) in sum.iter_mut().zip(addend) {
                    *sum += addend;
                }
            }
            for (target, &sum) in tile.iter_mut().zip(&*sum) {
                *target += sum;
            }
        }
    });
}

/// The sum of [`merge`] on a device: `sums` are the target and the addends behind it, of `len`
/// elements each.
fn merge_on(device: &dyn Device, mut sums: ViewMut<'_>, len: usize) -> DeviceResult<()> {
    for index in (1..sums.len() / len).rev() {
        let (front, addend) = sums.reborrow().split_at(index * len);
        let target = front.range((index - 1) * len..index * len);
        device.add_assign(target, addend.range(0..len).into_view())?;
    }
    Ok(())
}

/// Merges with every sum rounded, and first the leaf itself: the last addend, or the target where
/// there are none.
fn merge_rounded(cpu: &Cpu, wire: Precision, target: &mut [f32], addends: &mut [f32]) {
    let len = target.len();
    let num_addends = addends.len() / len;
    if num_addends == 0 {
        return wire_precision::round(cpu, wire, target);
    }
    wire_precision::round(cpu, wire, &mut addends[(num_addends - 1) * len..]);
    for index in (1..num_addends).rev() {
        let (left, right) = addends.split_at_mut(index * len);
        wire_precision::add(cpu, wire, &mut left[(index - 1) * len..], &right[..len]);
    }
    wire_precision::add(cpu, wire, target, &addends[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::Isa;
    use lockstep_tensor::random::Key;

    /// Longer than one task, and not a whole number of tiles.
    const LEN: usize = MERGE_PART + MERGE_TILE + 3;

    fn microbatch_gradient(microbatch: usize) -> Vec<f32> {
        let key = Key::new(3, "gradient").with(microbatch as u64);
        (0..LEN).map(|i| key.normal(i as u64)).collect()
    }

    fn added(mut left: Vec<f32>, right: &[f32]) -> Vec<f32> {
        left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
        left
    }

    /// Definition: a leaf from zero, micro-batches ascending.
    fn leaf_by_definition(leaves: Leaves, leaf: usize) -> Vec<f32> {
        let microbatches =
            leaf * leaves.microbatches_per_leaf..(leaf + 1) * leaves.microbatches_per_leaf;
        microbatches
            .fold(vec![0.0; LEN], |sum, microbatch| added(sum, &microbatch_gradient(microbatch)))
    }

    /// Definition: halves of a range of leaves, added.
    fn tree_by_definition(leaves: Leaves, range: Range<usize>) -> Vec<f32> {
        if range.len() == 1 {
            return leaf_by_definition(leaves, range.start);
        }
        let middle = range.start + range.len() / 2;
        let right = tree_by_definition(leaves, middle..range.end);
        added(tree_by_definition(leaves, range.start..middle), &right)
    }

    fn filled(cpu: &Cpu, leaves: Leaves, mine: Range<usize>) -> LeafTree {
        let data = Floats::zeros(None, LEN * LeafTree::num_buffers(mine.clone())).unwrap();
        let mut tree = LeafTree::new(LEN, leaves, mine.clone(), data);
        fill(cpu, &mut tree, mine, leaves);
        tree
    }

    fn fill(cpu: &Cpu, tree: &mut LeafTree, mine: Range<usize>, leaves: Leaves) {
        for microbatch in
            mine.start * leaves.microbatches_per_leaf..mine.end * leaves.microbatches_per_leaf
        {
            let gradient = microbatch_gradient(microbatch);
            let buffer = tree.microbatch_buffer(cpu).unwrap().0.into_slice::<f32>().unwrap();
            buffer.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g);
            tree.finish_microbatch(cpu).unwrap();
        }
    }

    /// Bitwise equality; a failure names the first element that differs.
    fn assert_same(left: &[f32], right: &[f32], what: impl std::fmt::Debug) {
        assert_eq!(left.len(), right.len(), "{what:?}");
        let differs = left.iter().zip(right).position(|(l, r)| l.to_bits() != r.to_bits());
        assert!(differs.is_none(), "{what:?}: element {differs:?} differs");
    }

    #[test]
    fn eight_leaves_are_added_as_the_formula_says() {
        let cpu = Cpu::single(Isa::detect());
        let leaves = Leaves { num_leaves: 8, microbatches_per_leaf: 1 };
        let tree = filled(&cpu, leaves, 0..8);
        let g: Vec<_> = (0..8).map(microbatch_gradient).collect();
        let expected: Vec<f32> = (0..LEN)
            .map(|i| {
                let g = |leaf: usize| 0.0 + g[leaf][i];
                ((g(0) + g(1)) + (g(2) + g(3))) + ((g(4) + g(5)) + (g(6) + g(7)))
            })
            .collect();
        assert_same(tree.root(), &expected, leaves);
    }

    #[test]
    fn any_number_of_leaves_and_microbatches_gives_the_sum_of_the_definition() {
        let cpu = Cpu::single(Isa::detect());
        for num_leaves in [1, 2, 4, 8] {
            for microbatches_per_leaf in [1, 2, 3] {
                let leaves = Leaves { num_leaves, microbatches_per_leaf };
                let tree = filled(&cpu, leaves, 0..num_leaves);
                let expected = tree_by_definition(leaves, 0..num_leaves);
                assert_same(tree.root(), &expected, leaves);
            }
        }
    }

    #[test]
    fn sums_of_any_workers_combine_to_the_same_bits() {
        fn combine(sums: &[(Subtree, Vec<f32>)], target: Subtree) -> Vec<f32> {
            if let Some((_, sum)) = sums.iter().find(|(subtree, _)| *subtree == target) {
                return sum.clone();
            }
            let half = target.num_leaves / 2;
            let left = Subtree { num_leaves: half, ..target };
            let right = Subtree { first_leaf: target.first_leaf + half, num_leaves: half };
            added(combine(sums, left), &combine(sums, right))
        }
        let cpu = Cpu::single(Isa::detect());
        let leaves = Leaves { num_leaves: 8, microbatches_per_leaf: 1 };
        let expected = filled(&cpu, leaves, 0..8);
        for num_workers in 1..=8 {
            let mut sums = Vec::new();
            for worker in 0..num_workers {
                let mine = worker * 8 / num_workers..(worker + 1) * 8 / num_workers;
                let tree = filled(&cpu, leaves, mine);
                sums.extend(tree.sums().map(|(subtree, sum)| (subtree, sum.to_vec())));
            }
            let total = combine(&sums, Subtree { first_leaf: 0, num_leaves: 8 });
            assert_same(&total, expected.root(), num_workers);
        }
    }

    #[test]
    fn three_ranks_contribute_their_maximal_aligned_sums() {
        let cpu = Cpu::single(Isa::detect());
        let leaves = Leaves { num_leaves: 8, microbatches_per_leaf: 1 };
        let sums_of = |mine| {
            let tree = filled(&cpu, leaves, mine);
            tree.sums().map(|(s, _)| (s.first_leaf, s.num_leaves)).collect::<Vec<_>>()
        };
        assert_eq!(sums_of(0..3), [(0, 2), (2, 1)]);
        assert_eq!(sums_of(3..6), [(3, 1), (4, 2)]);
        assert_eq!(sums_of(6..8), [(6, 2)]);
    }

    #[test]
    fn a_tree_is_reused_without_a_trace_and_holds_few_buffers() {
        let cpu = Cpu::single(Isa::detect());
        let leaves = Leaves { num_leaves: 8, microbatches_per_leaf: 2 };
        let mut tree = filled(&cpu, leaves, 0..8);
        let first = tree.root().to_vec();
        assert_eq!(tree.data.len(), 4 * LEN, "log2(8) sums wait while a leaf is filled");
        tree.restart();
        assert!(!tree.is_complete());
        fill(&cpu, &mut tree, 0..8, leaves);
        assert_same(tree.root(), &first, "the second use");
    }

    #[test]
    #[should_panic(expected = "every leaf of this rank is finished")]
    fn a_microbatch_too_many_is_a_bug() {
        let cpu = Cpu::single(Isa::detect());
        let mut tree = filled(&cpu, Leaves { num_leaves: 2, microbatches_per_leaf: 1 }, 0..2);
        let _ = tree.microbatch_buffer(&cpu);
    }

    #[test]
    #[should_panic(expected = "the tree is complete")]
    fn a_sum_with_a_leaf_missing_is_a_bug() {
        let cpu = Cpu::single(Isa::detect());
        let leaves = Leaves { num_leaves: 4, microbatches_per_leaf: 1 };
        let mut tree = LeafTree::new(LEN, leaves, 0..4, Floats::zeros(None, 3 * LEN).unwrap());
        fill(&cpu, &mut tree, 0..3, leaves);
        assert!(tree.root().len() == LEN);
    }
}
