//! Symbolic sums as hash-consed trees: equal sums have equal numbers, so comparison is cheap.

use std::collections::BTreeMap;

use crate::contributions::Contribution;
use crate::sum_tree::SumTree;

/// Number of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Symbol(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Expression {
    Contribution(Contribution),
    Sum(Symbol, Symbol),
}

/// All sums of a proof.
#[derive(Default)]
pub(super) struct Symbols {
    expressions: Vec<Expression>,
    numbers: BTreeMap<Expression, Symbol>,
    /// Number of leaves of each sum. A wrong schedule can double a sum in every round; the count
    /// rejects it before the tree is expanded.
    num_leaves: Vec<usize>,
}

impl Symbols {
    /// Contribution of a rank.
    pub(super) fn contribution(&mut self, contribution: Contribution) -> Symbol {
        self.number(Expression::Contribution(contribution), 1)
    }

    /// Left sum plus right sum.
    pub(super) fn sum(&mut self, left: Symbol, right: Symbol) -> Symbol {
        let num_leaves = self.num_leaves(left).saturating_add(self.num_leaves(right));
        self.number(Expression::Sum(left, right), num_leaves)
    }

    /// Number of leaves of a sum, with multiplicity.
    pub(super) fn num_leaves(&self, symbol: Symbol) -> usize {
        self.num_leaves[symbol.0]
    }

    /// Expanded tree of a sum.
    pub(super) fn tree(&self, symbol: Symbol) -> SumTree<Contribution> {
        match self.expressions[symbol.0] {
            Expression::Contribution(contribution) => SumTree::Leaf(contribution),
            Expression::Sum(left, right) => SumTree::sum(self.tree(left), self.tree(right)),
        }
    }

    fn number(&mut self, expression: Expression, num_leaves: usize) -> Symbol {
        let next = Symbol(self.expressions.len());
        let symbol = *self.numbers.entry(expression).or_insert(next);
        if symbol == next {
            self.expressions.push(expression);
            self.num_leaves.push(num_leaves);
        }
        symbol
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sums_are_one_symbol_and_other_orders_are_others() {
        let mut symbols = Symbols::default();
        let [a, b, c] = [0, 1, 2].map(|rank| symbols.contribution(Contribution { rank, index: 0 }));
        let left = symbols.sum(a, b);
        let first = symbols.sum(left, c);
        let repeated = symbols.sum(a, b);
        assert_eq!(symbols.sum(repeated, c), first);
        let right = symbols.sum(b, c);
        assert_ne!(symbols.sum(a, right), first);
        assert_eq!(symbols.tree(first).to_string(), "(0+1)+2");
        assert_eq!(symbols.num_leaves(first), 3);
    }
}
