//! Contributions of each rank to a reduction.
//!
//! Usually one vector per rank: rank i is leaf i. When the number of workers does not divide the
//! leaves into aligned blocks, a rank holds a run of leaves that is no node of the canonical tree,
//! so it contributes the *maximal aligned blocks* of its run as separate vectors. Three workers
//! over eight leaves hold [0,3) [3,6) [6,8) and contribute {[0,2) [2,3)}, {[3,4) [4,6)}, {[6,8)};
//! the sum then has the same tree, and the same bits, as on one worker or on eight.

use std::fmt;
use std::ops::Range;

use crate::sum_tree::{SumTree, halves};

/// One vector that a rank contributes: its input number `index`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Contribution {
    /// Contributing rank.
    pub rank: usize,
    /// Index of the rank's input.
    pub index: usize,
}

/// All contributions to a reduction: for each rank the leaves that each of its inputs covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contributions {
    num_leaves: usize,
    by_rank: Vec<Vec<Range<usize>>>,
}

impl Contributions {
    /// Rank i contributes leaf i.
    pub fn one_each(num_ranks: usize) -> Self {
        assert!(num_ranks > 0, "a group has at least one rank");
        let leaf = |rank| Range { start: rank, end: rank + 1 };
        Self { num_leaves: num_ranks, by_rank: (0..num_ranks).map(|r| vec![leaf(r)]).collect() }
    }

    /// Rank i holds the leaves `shares[i]`; together the shares are 0, 1, 2 … without a gap.
    pub fn of_leaves(shares: &[Range<usize>]) -> Self {
        let num_leaves = shares.iter().fold(0, |next, share| {
            assert!(share.start == next, "leaf {next} is missing or held twice");
            assert!(!share.is_empty(), "a rank without leaves has nothing to add");
            share.end
        });
        assert!(num_leaves > 0, "a sum has at least one leaf");
        let by_rank = shares.iter().map(|share| blocks(0..num_leaves, share)).collect();
        Self { num_leaves, by_rank }
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.by_rank.len()
    }

    /// Number of leaves of the sum.
    pub fn num_leaves(&self) -> usize {
        self.num_leaves
    }

    /// Number of inputs of `rank`.
    pub fn num_inputs(&self, rank: usize) -> usize {
        self.by_rank[rank].len()
    }

    /// Leaves summed in each input of `rank`.
    pub fn blocks(&self, rank: usize) -> &[Range<usize>] {
        &self.by_rank[rank]
    }

    /// All contributions, rank by rank.
    pub fn all(&self) -> Vec<Contribution> {
        let of_rank =
            |rank| (0..self.num_inputs(rank)).map(move |index| Contribution { rank, index });
        (0..self.num_ranks()).flat_map(of_rank).collect()
    }

    /// Whether every rank has a single input.
    pub fn is_one_each(&self) -> bool {
        self.by_rank.iter().all(|inputs| inputs.len() == 1)
    }

    /// Canonical order of the sum.
    pub fn tree(&self) -> SumTree<Contribution> {
        let leaves_of = |contribution: &Contribution| {
            self.by_rank[contribution.rank][contribution.index].clone()
        };
        let blocks: Vec<_> = self.all().into_iter().map(|a| (leaves_of(&a), a)).collect();
        SumTree::over_blocks(self.num_leaves, &blocks)
    }
}

/// Largest nodes of the canonical tree below `node` that lie inside `share`.
fn blocks(node: Range<usize>, share: &Range<usize>) -> Vec<Range<usize>> {
    if share.start <= node.start && node.end <= share.end {
        return vec![node];
    }
    if node.end <= share.start || share.end <= node.start {
        return Vec::new();
    }
    let (left, right) = halves(&node).expect("a leaf lies inside a share or outside of it");
    let mut found = blocks(left, share);
    found.extend(blocks(right, share));
    found
}

impl fmt::Display for Contribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(f, "{}", self.rank),
            index => write!(f, "{}.{index}", self.rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_each_is_the_canonical_tree_over_ranks() {
        let contributions = Contributions::one_each(6);
        assert_eq!(contributions.tree().to_string(), SumTree::canonical(6).to_string());
        assert!(contributions.is_one_each());
    }

    #[test]
    fn three_workers_contribute_the_aligned_blocks_of_eight_leaves() {
        let contributions = Contributions::of_leaves(&[0..3, 3..6, 6..8]);
        assert_eq!(contributions.blocks(0), [0..2, 2..3]);
        assert_eq!(contributions.blocks(1), [3..4, 4..6]);
        assert_eq!(contributions.blocks(2), std::slice::from_ref(&(6..8)));
        assert_eq!(contributions.tree().to_string(), "(0+(0.1+1))+(1.1+2)");
    }

    #[test]
    fn any_split_of_the_leaves_spells_out_the_same_tree() {
        for num_leaves in 1..=16_usize {
            let reference = SumTree::canonical(num_leaves).to_string();
            for first in 1..num_leaves {
                for second in first + 1..num_leaves {
                    let contributions =
                        Contributions::of_leaves(&[0..first, first..second, second..num_leaves]);
                    // Each contribution is written as the canonical sum of its own leaves.
                    let spelled = spell(&contributions);
                    assert_eq!(spelled, reference, "{num_leaves} leaves cut at {first}, {second}");
                }
            }
        }
    }

    fn spell(contributions: &Contributions) -> String {
        fn expand(node: Range<usize>) -> SumTree<usize> {
            match halves(&node) {
                Some((left, right)) => SumTree::sum(expand(left), expand(right)),
                None => SumTree::Leaf(node.start),
            }
        }
        fn splice(tree: &SumTree<Contribution>, contributions: &Contributions) -> SumTree<usize> {
            match tree {
                SumTree::Leaf(a) => expand(contributions.blocks(a.rank)[a.index].clone()),
                SumTree::Sum(l, r) => {
                    SumTree::sum(splice(l, contributions), splice(r, contributions))
                }
            }
        }
        splice(&contributions.tree(), contributions).to_string()
    }
}
