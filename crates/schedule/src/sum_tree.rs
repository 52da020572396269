//! Order of a sum, as a tree: floating-point addition is not associative, so the order is part of
//! the result.
//!
//! The nodes of the *canonical* tree over leaves 0 … n-1 are the aligned blocks of two, four, eight
//! … leaves: `((0+1)+(2+3))+((4+5)+(6+7))`. When n is no power of two, blocks end at n:
//! `((0+1)+(2+3))+4`. A worker that holds a whole aligned block can sum it locally and contribute
//! one vector; the total has the same bits wherever the leaves live.

use std::fmt;
use std::ops::Range;

/// Sum of `T`s with its order: every node adds its left side to its right side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SumTree<T> {
    /// One operand.
    Leaf(T),
    /// Left sum plus right sum.
    Sum(Box<Self>, Box<Self>),
}

impl SumTree<usize> {
    /// Canonical tree over leaves 0 … `num_leaves - 1`.
    pub fn canonical(num_leaves: usize) -> Self {
        assert!(num_leaves > 0, "a sum has at least one contribution");
        let leaves: Vec<(Range<usize>, usize)> = (0..num_leaves).map(|i| (i..i + 1, i)).collect();
        Self::over_blocks(num_leaves, &leaves)
    }
}

impl<T: Clone> SumTree<T> {
    /// Canonical tree over `num_leaves` leaves, given as blocks that are summed already.
    ///
    /// Every block must be a node of the canonical tree ([`is_canonical_block`]). Leaves that no
    /// block covers are omitted.
    pub fn over_blocks(num_leaves: usize, blocks: &[(Range<usize>, T)]) -> Self {
        let tree = Self::between(0..num_leaves, blocks);
        tree.expect("a sum has at least one contribution")
    }

    fn between(node: Range<usize>, blocks: &[(Range<usize>, T)]) -> Option<Self> {
        if let Some((_, block)) = blocks.iter().find(|(range, _)| *range == node) {
            return Some(Self::Leaf(block.clone()));
        }
        let inside =
            |(range, _): &&(Range<usize>, T)| range.start < node.end && node.start < range.end;
        let blocks: Vec<_> = blocks.iter().filter(inside).cloned().collect();
        let (left, right) = halves(&node)?;
        match (Self::between(left, &blocks), Self::between(right, &blocks)) {
            (Some(left), Some(right)) => Some(Self::sum(left, right)),
            (one, other) => one.or(other),
        }
    }
}

impl<T> SumTree<T> {
    /// Left sum plus right sum.
    pub fn sum(left: Self, right: Self) -> Self {
        Self::Sum(Box::new(left), Box::new(right))
    }

    /// Operands from left to right.
    pub fn leaves(&self) -> Vec<&T> {
        match self {
            Self::Leaf(leaf) => vec![leaf],
            Self::Sum(left, right) => {
                let mut leaves = left.leaves();
                leaves.extend(right.leaves());
                leaves
            }
        }
    }

    /// Tree of the same shape over other operands.
    pub fn map<U>(&self, change: &mut impl FnMut(&T) -> U) -> SumTree<U> {
        match self {
            Self::Leaf(leaf) => SumTree::Leaf(change(leaf)),
            Self::Sum(left, right) => SumTree::sum(left.map(change), right.map(change)),
        }
    }
}

/// Children of an inner node of the canonical tree, split at the largest power of two that leaves a
/// right part. `None` for a leaf.
pub fn halves(node: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    (node.len() > 1).then(|| {
        let middle = node.start + node.len().next_power_of_two() / 2;
        (node.start..middle, middle..node.end)
    })
}

/// Whether `block` is a node of the canonical tree over `num_leaves` leaves: an aligned block of a
/// power of two, or its remainder at the end.
pub fn is_canonical_block(num_leaves: usize, block: &Range<usize>) -> bool {
    let mut node = 0..num_leaves;
    while node != *block {
        match halves(&node) {
            Some((left, _)) if block.end <= left.end => node = left,
            Some((_, right)) if right.start <= block.start => node = right,
            _ => return false,
        }
    }
    !block.is_empty()
}

impl<T: fmt::Display> fmt::Display for SumTree<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |f: &mut fmt::Formatter<'_>, tree: &Self| match tree {
            Self::Leaf(leaf) => leaf.fmt(f),
            Self::Sum(..) => write!(f, "({tree})"),
        };
        match self {
            Self::Leaf(leaf) => leaf.fmt(f),
            Self::Sum(left, right) => {
                side(f, left)?;
                f.write_str("+")?;
                side(f, right)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_tree_consists_of_aligned_blocks() {
        let shown = |n| SumTree::canonical(n).to_string();
        assert_eq!(shown(1), "0");
        assert_eq!(shown(3), "(0+1)+2");
        assert_eq!(shown(5), "((0+1)+(2+3))+4");
        assert_eq!(shown(6), "((0+1)+(2+3))+(4+5)");
        assert_eq!(shown(8), "((0+1)+(2+3))+((4+5)+(6+7))");
    }

    #[test]
    fn presummed_blocks_keep_their_place() {
        let blocks = [(0..4, 'a'), (4..6, 'b'), (6..8, 'c')];
        assert_eq!(SumTree::over_blocks(8, &blocks).to_string(), "a+(b+c)");
        // Three workers with leaves [0,3) [3,6) [6,8): five contributions, one tree.
        let blocks = [(0..2, 'a'), (2..3, 'b'), (3..4, 'c'), (4..6, 'd'), (6..8, 'e')];
        assert_eq!(SumTree::over_blocks(8, &blocks).to_string(), "(a+(b+c))+(d+e)");
    }

    #[test]
    fn uncovered_leaves_are_omitted() {
        let blocks = [(1..2, 1), (4..8, 4)];
        assert_eq!(SumTree::over_blocks(8, &blocks).to_string(), "1+4");
    }

    #[test]
    fn a_block_is_a_node_when_it_is_aligned_or_the_end() {
        let is_node = |range| is_canonical_block(7, &range);
        assert!(is_node(0..7) && is_node(0..4) && is_node(4..7) && is_node(4..6) && is_node(6..7));
        assert!(!is_node(0..3) && !is_node(1..3) && !is_node(2..6) && !is_node(5..7));
        assert!(!is_node(3..3) && !is_node(6..8));
    }

    #[test]
    fn mapping_keeps_the_order() {
        let doubled = SumTree::canonical(3).map(&mut |leaf| leaf * 10);
        assert_eq!(doubled.to_string(), "(0+10)+20");
        assert_eq!(doubled.leaves(), [&0, &10, &20]);
    }
}
