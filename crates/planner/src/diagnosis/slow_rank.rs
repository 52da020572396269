//! Ranks that are slower than others for the work that their recipe gives them.
//!
//! The work of a rank is that of its pipeline stage and of its micro-batches, so that an unbalanced
//! stage is no slow rank.

use super::facts::RunFacts;
use lockstep_config::Recipe;
use lockstep_mesh::{Axis, Rank};
use lockstep_parallel::from_recipe::{blueprint_of, mesh_of};
use lockstep_parallel::slow_rank::{RankPace, SLOW_FACTOR};
use lockstep_parallel::stages::{self, Stages};

/// Factor between ranks of different stages, whose work is known by FLOPs only: short sequences,
/// embedding and head make times differ from FLOPs by some tens of percent.
pub const SLOW_STAGE_FACTOR: f64 = 1.5;

/// A rank that is slower than the usual one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SlowRank {
    pub(super) rank: usize,
    /// Its time over that of the usual rank, for equal work.
    pub(super) factor: f64,
}

impl SlowRank {
    /// The slowest rank of a run, if it is slow.
    pub(super) fn of(facts: &RunFacts) -> Option<Self> {
        if facts.ranks.len() != facts.recipe.run.workers || facts.is_accelerated {
            return None;
        }
        let work = work_by_rank(&facts.recipe);
        let pace = |(rank, work): (&super::RankFacts, &f64)| RankPace {
            seconds: rank.compute.map(|seconds| seconds / work),
            work: *work,
        };
        let paces: Vec<RankPace> = facts.ranks.iter().zip(&work).map(pace).collect();
        let least_factor = |slowest: usize, usual: usize| {
            let is_equal_work = (work[slowest] / work[usual] - 1.0).abs() < 1e-9;
            if is_equal_work { SLOW_FACTOR } else { SLOW_STAGE_FACTOR }
        };
        let found = lockstep_parallel::slow_rank::slow_rank(&paces, least_factor);
        found.map(|(rank, factor)| Self { rank, factor })
    }

    /// Factor of a rank's computation where the slow rank keeps a fraction of its excess: 1 leaves
    /// it as it is, 0 makes it as fast as the usual rank.
    pub(super) fn scale(self, rank: usize, kept: f64) -> f64 {
        if rank == self.rank { (1.0 + (self.factor - 1.0) * kept) / self.factor } else { 1.0 }
    }
}

/// Work of each rank in a step: FLOPs of its stages times its leaves, relative to the mean.
pub(super) fn work_by_rank(recipe: &Recipe) -> Vec<f64> {
    let blueprint = blueprint_of(recipe);
    let costs = stages::costs(&blueprint);
    let (mesh, cut) = (mesh_of(recipe), Stages::of(recipe, &blueprint));
    let shares = recipe.leaf_shares();
    let work = |rank: usize| {
        let at = |axis| mesh.index(axis, Rank(rank));
        let runs = cut.runs_of(at(Axis::Pipeline), costs.len());
        let flops: u64 = runs.into_iter().flat_map(|run| &costs[run]).sum();
        flops as f64 * shares.get(at(Axis::Data)).copied().unwrap_or(1) as f64
    };
    let work: Vec<f64> = (0..recipe.run.workers).map(work).collect();
    let mean = work.iter().sum::<f64>() / work.len().max(1) as f64;
    if work.iter().all(|it| *it > 0.0) {
        work.iter().map(|it| it / mean).collect()
    } else {
        vec![1.0; work.len()]
    }
}
