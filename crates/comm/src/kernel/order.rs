//! The order of a sum as steps on a stack of levels.
//!
//! Walking a tree for every sixteen elements would cost more than the additions. So the tree is
//! compiled once to steps: load a source into a level, add a source to a level, add the level above
//! to a level. Canonical sums of 256 sources need eight levels.

use lockstep_schedule::SumTree;

/// Number of levels of a kernel.
pub(super) const MAX_LEVELS: usize = 8;

/// One step; the first number is the level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderStep {
    /// `level = source`.
    Load(usize, usize),
    /// `level = level + source`.
    AddSource(usize, usize),
    /// `level = level + (level above)`.
    AddAbove(usize),
}

/// A tree of sources and its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub(super) tree: SumTree<usize>,
    pub(super) steps: Vec<OrderStep>,
}

impl Order {
    /// The order of `tree`, whose leaves are numbers of sources.
    pub(crate) fn new(tree: SumTree<usize>) -> Self {
        let mut steps = Vec::new();
        compile(&tree, 0, &mut steps);
        Self { tree, steps }
    }
}

fn compile(node: &SumTree<usize>, level: usize, steps: &mut Vec<OrderStep>) {
    assert!(level < MAX_LEVELS, "a sum nested deeper than any algorithm makes it");
    match node {
        SumTree::Leaf(source) => steps.push(OrderStep::Load(level, *source)),
        SumTree::Sum(left, right) => {
            compile(left, level, steps);
            if let SumTree::Leaf(source) = **right {
                steps.push(OrderStep::AddSource(level, source));
            } else {
                compile(right, level + 1, steps);
                steps.push(OrderStep::AddAbove(level));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_sources_need_two_levels() {
        use OrderStep::{AddAbove, AddSource, Load};
        let order = Order::new(SumTree::canonical(4));
        let expected = [Load(0, 0), AddSource(0, 1), Load(1, 2), AddSource(1, 3), AddAbove(0)];
        assert_eq!(order.steps, expected);
    }

    #[test]
    fn the_levels_suffice_for_256_sources() {
        assert_eq!(Order::new(SumTree::canonical(256)).steps.len(), 256 + 127);
    }
}
