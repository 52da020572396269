//! Double binary tree all-reduce (Sanders, Speck and Träff 2009): two trees, each for half of the
//! vector.
//!
//! In a binary tree half of the ranks are leaves that send and receive once, while inner ranks
//! serve two children. Two trees over the same ranks, arranged so that every rank is a leaf in at
//! least one of them, share the load: a rank sends and receives at most twice the vector, however
//! many ranks there are, and the depth stays logarithmic. Split into segments, the vector is
//! pipelined through all levels: it takes at most 4 log₂ n + 2(segments - 1) rounds.
//!
//! The trees are the in-order binary trees over 1 … n: odd numbers are leaves, a number divisible
//! by 2^h has height h. The second tree is mirrored (n even) or shifted by one rank (n odd), which
//! swaps odd and even.
//!
//! *Order of the sum:* own plus left child, then plus right child, at every node, with the lower
//! rank on the left: not canonical from three ranks on.

use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::{Buffer, Side};
use crate::op::Op;
use crate::schedule::Schedule;

/// All-reduce with `segments` segments per half of the vector.
pub fn all_reduce(num_ranks: usize, segments: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    for tree in 0..2 {
        let tree = InOrderTree::new(num_ranks, tree);
        for segment in 0..segments {
            let chunk = Chunks::one(tree.number * segments + segment);
            tree.add_up(&mut builder, segment, chunk);
            tree.spread(&mut builder, segment, chunk);
        }
    }
    if num_ranks == 1 {
        let all = Chunks::all(2 * segments);
        builder.copy(0, 0, all, Buffer::Output.on(0), Buffer::INPUT.on(0));
    }
    builder.finish(Op::AllReduce, Algorithm::DoubleTree { segments }, 2 * segments)
}

/// One of the two trees. Nodes are labelled 1 … n in order from left to right.
struct InOrderTree {
    number: usize,
    num_ranks: usize,
    /// Height of each label; entry 0 is unused.
    heights: Vec<usize>,
    root: usize,
}

impl InOrderTree {
    fn new(num_ranks: usize, number: usize) -> Self {
        let root = (1..=num_ranks).find(|&label| parent(label, num_ranks).is_none());
        let root = root.expect("a tree with at least one rank has a root");
        let mut tree = Self { number, num_ranks, heights: vec![0; num_ranks + 1], root };
        tree.measure(root);
        tree
    }

    /// Reduces a segment to the root. Every level has two slots, one per child, because both are
    /// added to the same partial sum.
    fn add_up(&self, builder: &mut Builder, segment: usize, chunk: Chunks) {
        for label in 1..=self.num_ranks {
            let mut own = Buffer::INPUT;
            for child in self.children(label) {
                let is_left = child < label;
                let slot = 2 * (segment + self.heights[label]) + usize::from(!is_left);
                let is_leaf = self.heights[child] == 0;
                let from = if is_leaf { Buffer::INPUT } else { Buffer::Output };
                let (from, into) = (from.on(self.rank(child)), Buffer::Output.on(self.rank(label)));
                let received = if from.rank < into.rank { Side::Left } else { Side::Right };
                builder.message_sum(slot, chunk, from, into, own, received);
                own = Buffer::Output;
            }
        }
    }

    /// Broadcasts the sum of a segment, to both children at once.
    fn spread(&self, builder: &mut Builder, segment: usize, chunk: Chunks) {
        for label in 1..=self.num_ranks {
            let slot = 2 * (segment + self.heights[self.root] + 1 + self.depth(label));
            for child in self.children(label) {
                let from = Buffer::Output.on(self.rank(label));
                builder.message(slot, chunk, from, Buffer::Output.on(self.rank(child)));
            }
        }
    }

    /// Rank at a label.
    fn rank(&self, label: usize) -> usize {
        match self.number {
            0 => label - 1,
            _ if self.num_ranks.is_multiple_of(2) => self.num_ranks - label,
            _ => label % self.num_ranks,
        }
    }

    /// Children from left to right.
    fn children(&self, label: usize) -> Vec<usize> {
        (1..=self.num_ranks).filter(|&child| parent(child, self.num_ranks) == Some(label)).collect()
    }

    fn depth(&self, label: usize) -> usize {
        parent(label, self.num_ranks).map_or(0, |up| 1 + self.depth(up))
    }

    fn measure(&mut self, label: usize) -> usize {
        let below = self.children(label).into_iter().map(|child| self.measure(child) + 1).max();
        self.heights[label] = below.unwrap_or(0);
        self.heights[label]
    }
}

/// Parent label: the lowest set bit moves one place up. Where that label is beyond n, the bit is
/// cleared instead, which leads to the next higher level that exists.
fn parent(label: usize, num_ranks: usize) -> Option<usize> {
    let bit = label & label.wrapping_neg();
    let below = label ^ bit;
    let up = below | (bit << 1);
    if up <= num_ranks { Some(up) } else { (below > 0).then_some(below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_is_a_leaf_in_one_tree_at_least() {
        for num_ranks in 1..=33 {
            let trees = [InOrderTree::new(num_ranks, 0), InOrderTree::new(num_ranks, 1)];
            for rank in 0..num_ranks {
                let is_leaf = |tree: &InOrderTree| {
                    let label = (1..=num_ranks).find(|&label| tree.rank(label) == rank).unwrap();
                    tree.heights[label] == 0
                };
                assert!(trees.iter().any(is_leaf), "rank {rank} of {num_ranks}");
            }
        }
    }

    #[test]
    fn the_trees_are_binary_and_of_logarithmic_height() {
        for num_ranks in 1..=33_usize {
            let tree = InOrderTree::new(num_ranks, 0);
            for label in 1..=num_ranks {
                let children = tree.children(label);
                let left = children.iter().filter(|&&child| child < label).count();
                assert!(left <= 1 && children.len() - left <= 1, "{label} of {num_ranks}");
            }
            assert!(tree.heights[tree.root] <= num_ranks.ilog2() as usize);
        }
    }
}
