//! Collective algorithms, one per file; each is a pure function from a group to a [`Schedule`].
//!
//! | operation | algorithms |
//! |---|---|
//! | all-reduce, short | butterfly, tree, one-shot |
//! | all-reduce, long | ring, double tree, Rabenseifner, pairwise, direct, hierarchical |
//! | reduce-scatter | ring, halving, pairwise, direct |
//! | all-gather | ring, doubling, pairwise, direct |
//! | broadcast | tree, linear, scatter and gather, direct |
//! | reduce | tree, scatter and gather, direct |
//! | scatter, gather | tree, linear, direct |
//! | all-to-all | pairwise, direct |
//! | barrier | dissemination, direct |
//!
//! [`build`] dispatches an operation and an algorithm; [`select`] selects the algorithm.

pub mod ring;

pub mod double_tree;
pub mod tree;

pub mod butterfly;
mod power_of_two;
pub mod rabenseifner;

pub mod doubling;
pub mod linear;
pub mod pairwise;
pub mod scatter_gather;

pub mod direct;
pub mod dissemination;
pub mod hierarchical;
pub mod sparse;

pub mod overrides;
pub mod select;

use std::borrow::Cow;

use lockstep_config::Blame;

use crate::algorithm::Algorithm;
use crate::contributions::Contributions;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::topology::Topology;

/// Ranks that a schedule is built for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Contributions to the sum, which also give the number of ranks.
    pub contributions: Contributions,
    /// Topology of the ranks, if known.
    pub topology: Option<Topology>,
    /// Ring order; empty for rank order.
    pub ring: Vec<usize>,
}

/// Reason that a schedule cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The algorithm does not implement the operation.
    #[error("{algorithm} is no algorithm for {op}; try {}", listed(algorithms(*.op)))]
    WrongOperation {
        /// Requested algorithm.
        algorithm: Algorithm,
        /// Requested operation.
        op: Op,
    },
    /// The algorithm needs a power of two of ranks.
    #[error("{algorithm} needs a power of two of ranks, and there are {num_ranks}; try pairwise")]
    NotAPowerOfTwo {
        /// Requested algorithm.
        algorithm: Algorithm,
        /// Number of ranks.
        num_ranks: usize,
    },
    /// No channels or no segments.
    #[error("{algorithm} would move nothing; try 1 or more")]
    NoParts {
        /// Requested algorithm.
        algorithm: Algorithm,
    },
    /// The algorithm takes one vector per rank, and some rank contributes several.
    #[error("{algorithm} adds one vector of each rank; with several try direct or pairwise")]
    SeveralContributions {
        /// Requested algorithm.
        algorithm: Algorithm,
    },
    /// The topology is missing, or belongs to other ranks.
    #[error("there is no topology that names each of the {num_ranks} ranks once")]
    NoTopology {
        /// Number of ranks.
        num_ranks: usize,
    },
    /// The root is not in the group.
    #[error("{op}: there are {num_ranks} ranks, counted from 0")]
    NoSuchRoot {
        /// Requested operation.
        op: Op,
        /// Number of ranks.
        num_ranks: usize,
    },
}

impl BuildError {
    /// Blame: the user chose the algorithm.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }
}

impl GroupSpec {
    /// `num_ranks` ranks with one vector each.
    pub fn new(num_ranks: usize) -> Self {
        Self { contributions: Contributions::one_each(num_ranks), topology: None, ring: Vec::new() }
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.contributions.num_ranks()
    }

    /// Ring order.
    fn ring(&self) -> Cow<'_, [usize]> {
        if self.ring.is_empty() {
            return Cow::Owned((0..self.num_ranks()).collect());
        }
        Cow::Borrowed(&self.ring)
    }
}

/// Algorithms of an operation, with their default parameters.
pub fn algorithms(op: Op) -> &'static [Algorithm] {
    use Algorithm::{
        Butterfly, Direct, Dissemination, Doubling, Halving, Hierarchical, Linear, OneShot,
        Pairwise, Rabenseifner, ScatterGather, Tree,
    };
    const RING: Algorithm = Algorithm::RING;
    const BIDIRECTIONAL_RING: Algorithm = Algorithm::Ring { channels: 2 };
    const DOUBLE_TREE: Algorithm = Algorithm::DoubleTree { segments: 8 };
    match op {
        Op::AllReduce => &[
            OneShot,
            Direct,
            Butterfly,
            Tree,
            Rabenseifner,
            Pairwise,
            RING,
            BIDIRECTIONAL_RING,
            DOUBLE_TREE,
            Hierarchical,
        ],
        Op::ReduceScatter => &[Direct, Halving, Pairwise, RING, BIDIRECTIONAL_RING],
        Op::AllGather => &[Direct, Doubling, Pairwise, RING, BIDIRECTIONAL_RING],
        Op::Broadcast { .. } => &[Direct, Tree, Linear, ScatterGather],
        Op::Reduce { .. } => &[Direct, Tree, ScatterGather],
        Op::Scatter { .. } | Op::Gather { .. } => &[Direct, Tree, Linear],
        Op::AllToAll => &[Direct, Pairwise],
        Op::Barrier => &[Direct, Dissemination],
    }
}

/// Builds the schedule of an operation by an algorithm.
pub fn build(op: Op, algorithm: Algorithm, group: &GroupSpec) -> Result<Schedule, BuildError> {
    let (n, contributions) = (group.num_ranks(), &group.contributions);
    if group.topology.as_ref().is_some_and(|topology| !topology.covers(n)) {
        return Err(BuildError::NoTopology { num_ranks: n });
    }
    if op.root().is_some_and(|root| root >= n) {
        return Err(BuildError::NoSuchRoot { op, num_ranks: n });
    }
    let takes_several =
        [Algorithm::Direct, Algorithm::OneShot, Algorithm::Pairwise, Algorithm::ScatterGather];
    if op.is_sum() && !contributions.is_one_each() && !takes_several.contains(&algorithm) {
        return Err(BuildError::SeveralContributions { algorithm });
    }
    if let Algorithm::Ring { channels: 0 } | Algorithm::DoubleTree { segments: 0 } = algorithm {
        return Err(BuildError::NoParts { algorithm });
    }
    if algorithm == Algorithm::Halving && !n.is_power_of_two() {
        return Err(BuildError::NotAPowerOfTwo { algorithm, num_ranks: n });
    }
    Ok(match (op, algorithm) {
        (Op::AllReduce, Algorithm::Ring { channels }) => ring::all_reduce(&group.ring(), channels),
        (Op::AllReduce, Algorithm::Tree) => tree::all_reduce(n),
        (Op::AllReduce, Algorithm::DoubleTree { segments }) => double_tree::all_reduce(n, segments),
        (Op::AllReduce, Algorithm::Butterfly) => butterfly::all_reduce(n),
        (Op::AllReduce, Algorithm::Rabenseifner) => rabenseifner::all_reduce(n),
        (Op::AllReduce, Algorithm::Pairwise) => pairwise::all_reduce(contributions),
        (Op::AllReduce, Algorithm::Direct) => direct::all_reduce(contributions),
        (Op::AllReduce, Algorithm::OneShot) => direct::one_shot(contributions),
        (Op::AllReduce, Algorithm::Hierarchical) => match &group.topology {
            Some(topology) => hierarchical::all_reduce(topology),
            None => return Err(BuildError::NoTopology { num_ranks: n }),
        },
        (Op::ReduceScatter, Algorithm::Ring { channels }) => {
            ring::reduce_scatter(&group.ring(), channels)
        }
        (Op::ReduceScatter, Algorithm::Halving) => rabenseifner::reduce_scatter(n),
        (Op::ReduceScatter, Algorithm::Pairwise) => pairwise::reduce_scatter(contributions),
        (Op::ReduceScatter, Algorithm::Direct) => direct::reduce_scatter(contributions),
        (Op::AllGather, Algorithm::Ring { channels }) => ring::all_gather(&group.ring(), channels),
        (Op::AllGather, Algorithm::Doubling) => doubling::all_gather(n),
        (Op::AllGather, Algorithm::Pairwise) => pairwise::all_gather(n),
        (Op::AllGather, Algorithm::Direct) => direct::all_gather(n),
        (Op::Broadcast { root }, Algorithm::Tree) => tree::broadcast(n, root),
        (Op::Broadcast { root }, Algorithm::Linear) => linear::broadcast(n, root),
        (Op::Broadcast { root }, Algorithm::ScatterGather) => scatter_gather::broadcast(n, root),
        (Op::Broadcast { root }, Algorithm::Direct) => direct::broadcast(n, root),
        (Op::Reduce { root }, Algorithm::Tree) => tree::reduce(n, root),
        (Op::Reduce { root }, Algorithm::ScatterGather) => {
            scatter_gather::reduce(contributions, root)
        }
        (Op::Reduce { root }, Algorithm::Direct) => direct::reduce(contributions, root),
        (Op::Scatter { root }, Algorithm::Tree) => tree::scatter(n, root),
        (Op::Scatter { root }, Algorithm::Linear) => linear::scatter(n, root),
        (Op::Scatter { root }, Algorithm::Direct) => direct::scatter(n, root),
        (Op::Gather { root }, Algorithm::Tree) => tree::gather(n, root),
        (Op::Gather { root }, Algorithm::Linear) => linear::gather(n, root),
        (Op::Gather { root }, Algorithm::Direct) => direct::gather(n, root),
        (Op::AllToAll, Algorithm::Pairwise) => pairwise::all_to_all(n),
        (Op::AllToAll, Algorithm::Direct) => direct::all_to_all(n),
        (Op::Barrier, Algorithm::Dissemination) => dissemination::barrier(n),
        (Op::Barrier, Algorithm::Direct) => direct::barrier(n),
        _ => return Err(BuildError::WrongOperation { algorithm, op }),
    })
}

fn listed(algorithms: &[Algorithm]) -> String {
    let names: Vec<String> = algorithms.iter().map(Algorithm::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_requests_are_rejected_with_an_alternative() {
        let refusal =
            |op, algorithm, group: &GroupSpec| build(op, algorithm, group).unwrap_err().to_string();
        let group = GroupSpec::new(6);
        assert_eq!(
            refusal(Op::Barrier, Algorithm::RING, &group),
            "ring is no algorithm for barrier; try direct, dissemination"
        );
        assert_eq!(
            refusal(Op::ReduceScatter, Algorithm::Halving, &group),
            "halving needs a power of two of ranks, and there are 6; try pairwise"
        );
        assert_eq!(
            refusal(Op::AllReduce, Algorithm::Ring { channels: 0 }, &group),
            "ring:0 would move nothing; try 1 or more"
        );
        assert_eq!(
            refusal(Op::AllReduce, Algorithm::Hierarchical, &group),
            "there is no topology that names each of the 6 ranks once"
        );
        assert_eq!(
            refusal(Op::Reduce { root: 6 }, Algorithm::Tree, &group),
            "reduce (root 6): there are 6 ranks, counted from 0"
        );
        let contributions = Contributions::of_leaves(&[0..3, 3..4]);
        assert_eq!(
            refusal(
                Op::AllReduce,
                Algorithm::Tree,
                &GroupSpec { contributions, ..GroupSpec::new(2) }
            ),
            "tree adds one vector of each rank; with several try direct or pairwise"
        );
    }
}
