//! Algorithms that a recipe fixes for some of its calls, instead of the cheapest.

use lockstep_config::units::Bytes;
use lockstep_config::{CollectiveAlgorithm, CollectiveOp, CollectiveRule, Recipe};

use crate::algorithm::Algorithm;
use crate::op::Op;

/// Segments of each half of a double tree.
const DOUBLE_TREE_SEGMENTS: usize = 8;

/// Fixed algorithms by operation and size; the first entry that fits applies.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AlgorithmOverrides {
    rules: Vec<CollectiveRule>,
}

impl AlgorithmOverrides {
    /// No fixed algorithm.
    pub const NONE: Self = Self { rules: Vec::new() };

    /// Fixed algorithms of a recipe.
    pub fn of_recipe(recipe: &Recipe) -> Self {
        Self { rules: recipe.parallel.collectives.clone() }
    }

    /// Operation and algorithm of every entry, with root 0 where there is a root.
    pub fn entries(&self) -> impl Iterator<Item = (Op, Algorithm)> + '_ {
        self.rules.iter().map(|rule| (op_of(rule.op), algorithm_of(rule)))
    }

    /// Index of the entry that applies to a call, and its algorithm.
    pub fn find(&self, op: Op, bytes: Bytes) -> Option<(usize, Algorithm)> {
        let op = name_of(op)?;
        let index = self.rules.iter().position(|rule| rule.applies_to(op, bytes))?;
        Some((index, algorithm_of(&self.rules[index])))
    }
}

const fn op_of(op: CollectiveOp) -> Op {
    match op {
        CollectiveOp::AllReduce => Op::AllReduce,
        CollectiveOp::ReduceScatter => Op::ReduceScatter,
        CollectiveOp::AllGather => Op::AllGather,
        CollectiveOp::Broadcast => Op::Broadcast { root: 0 },
        CollectiveOp::Reduce => Op::Reduce { root: 0 },
        CollectiveOp::AllToAll => Op::AllToAll,
    }
}

/// Operation of a recipe; none for those that recipes do not tune.
const fn name_of(op: Op) -> Option<CollectiveOp> {
    Some(match op {
        Op::AllReduce => CollectiveOp::AllReduce,
        Op::ReduceScatter => CollectiveOp::ReduceScatter,
        Op::AllGather => CollectiveOp::AllGather,
        Op::Broadcast { .. } => CollectiveOp::Broadcast,
        Op::Reduce { .. } => CollectiveOp::Reduce,
        Op::AllToAll => CollectiveOp::AllToAll,
        Op::Scatter { .. } | Op::Gather { .. } | Op::Barrier => return None,
    })
}

const fn algorithm_of(rule: &CollectiveRule) -> Algorithm {
    match rule.algorithm {
        CollectiveAlgorithm::Ring => Algorithm::Ring { channels: rule.channels },
        CollectiveAlgorithm::Tree => Algorithm::Tree,
        CollectiveAlgorithm::DoubleTree => Algorithm::DoubleTree { segments: DOUBLE_TREE_SEGMENTS },
        CollectiveAlgorithm::Butterfly => Algorithm::Butterfly,
        CollectiveAlgorithm::Rabenseifner => Algorithm::Rabenseifner,
        CollectiveAlgorithm::Halving => Algorithm::Halving,
        CollectiveAlgorithm::Doubling => Algorithm::Doubling,
        CollectiveAlgorithm::Pairwise => Algorithm::Pairwise,
        CollectiveAlgorithm::Direct => Algorithm::Direct,
        CollectiveAlgorithm::OneShot => Algorithm::OneShot,
        CollectiveAlgorithm::Hierarchical => Algorithm::Hierarchical,
        CollectiveAlgorithm::Linear => Algorithm::Linear,
        CollectiveAlgorithm::ScatterGather => Algorithm::ScatterGather,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    #[test]
    fn the_first_entry_that_fits_the_operation_and_size_applies() {
        let text = r#"[{op="all-reduce", algorithm="tree", max_bytes=4096},
            {op="all-reduce", algorithm="rabenseifner"},
            {op="all-gather", algorithm="ring", channels=4, min_bytes="1MiB"}]"#;
        let sets = vec![format!("parallel.collectives={}", text.replace('\n', ""))];
        let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("a sound recipe");
        let overrides = AlgorithmOverrides::of_recipe(&recipe);
        let of = |op, bytes| overrides.find(op, Bytes(bytes)).map(|(_, algorithm)| algorithm);
        assert_eq!(of(Op::AllReduce, 4096), Some(Algorithm::Tree));
        assert_eq!(of(Op::AllReduce, 4097), Some(Algorithm::Rabenseifner));
        assert_eq!(of(Op::AllGather, (1 << 20) - 1), None);
        assert_eq!(of(Op::AllGather, 1 << 20), Some(Algorithm::Ring { channels: 4 }));
        assert_eq!(of(Op::ReduceScatter, 1 << 20), None);
        assert_eq!(of(Op::Barrier, 0), None);
        assert_eq!(AlgorithmOverrides::NONE.find(Op::AllReduce, Bytes(1)), None);
    }
}
