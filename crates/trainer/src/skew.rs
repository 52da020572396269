//! How different the workers' samples are: classes of a problem, or tokens of a text.
//!
//! Workers whose samples are alike agree on where to go; those whose samples are not pull apart
//! between two averages, and who is left out takes its kind of samples along. The distance of what
//! a worker has from what all have together is told twice: the total variation, the share of its
//! samples that would have to change (0 to 1), and the Kullback-Leibler divergence in nats.

use crate::TrainError;
use crate::saved::leaves_of;
use lockstep_config::{DividedBy, Recipe};
use lockstep_data::{Feed, Seat};
use lockstep_model::problem;
use lockstep_platform::World;
use lockstep_tensor::math::scalar;
use serde::Serialize;

/// Classes of a worker that are told.
const NUM_TOP: usize = 3;

/// See the module's text. Names are stable: scripts rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Skew {
    /// What is counted: `class` or `token`.
    pub of: &'static str,
    /// How many kinds there are.
    pub num_kinds: usize,
    /// The largest of the workers' total variations.
    pub total_variation_max: f64,
    /// By worker.
    pub workers: Vec<WorkerSkew>,
}

/// What one worker has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerSkew {
    /// Its number.
    pub rank: usize,
    /// Samples or tokens that it learns from.
    pub count: u64,
    /// The share of them that would have to be of another kind.
    pub total_variation: f64,
    /// The Kullback-Leibler divergence from what all have.
    pub divergence: f64,
    /// The kinds that it has more of than all have, the most so first.
    pub top: Vec<Kind>,
}

/// A class or a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Kind {
    /// Its number.
    pub kind: usize,
    /// Its share of what the worker has.
    pub share: f64,
    /// Its share of what all have.
    pub share_of_all: f64,
}

/// How different the samples of a recipe's workers are; nothing where they have no kinds, or are
/// sent.
pub fn of(recipe: &Recipe, world: &World) -> Result<Option<Skew>, TrainError> {
    let num_workers = recipe.parallel.data;
    if recipe.model.family.is_problem() {
        let classes = problem::classes(&recipe.model);
        let counts = (0..num_workers).map(|worker| of_classes(recipe, &classes, worker)).collect();
        return Ok((!classes.is_empty()).then(|| compare("class", counts)));
    }
    let mut counts = Vec::new();
    for worker in 0..num_workers {
        let leaves = leaves_of(recipe, worker);
        let feed = Feed::open(recipe, world, &Seat { worker, num_workers, leaves })?;
        let Some(of_worker) = feed.token_counts()? else { return Ok(None) };
        counts.push(of_worker);
    }
    Ok(Some(compare("token", counts)))
}

/// How often a worker meets each class.
fn of_classes(recipe: &Recipe, classes: &[usize], worker: usize) -> Vec<u64> {
    let mut counts = vec![0; classes.iter().max().map_or(0, |last| last + 1)];
    let mut count = |part: &[usize]| part.iter().for_each(|class| counts[*class] += 1);
    let num_leaves = recipe.num_leaves();
    match recipe.model.problem.division.by {
        DividedBy::Nothing => count(classes),
        _ => {
            for leaf in leaves_of(recipe, worker) {
                let edge = |leaf: usize| leaf * classes.len() / num_leaves;
                count(&classes[edge(leaf)..edge(leaf + 1)]);
            }
        }
    }
    counts
}

/// Holds the counts of every worker against those of all.
fn compare(of: &'static str, counts: Vec<Vec<u64>>) -> Skew {
    let num_kinds = counts.iter().map(Vec::len).max().unwrap_or(0);
    let count = |counts: &[u64], kind: usize| counts.get(kind).copied().unwrap_or(0);
    let of_all = |kind: usize| counts.iter().map(|of_worker| count(of_worker, kind)).sum::<u64>();
    let all: Vec<u64> = (0..num_kinds).map(of_all).collect();
    let share = |count: u64, of: u64| if of == 0 { 0.0 } else { count as f64 / of as f64 };
    let total: u64 = all.iter().sum();
    let shares_of_all: Vec<f64> = all.iter().map(|count| share(*count, total)).collect();
    let worker = |(rank, of_worker): (usize, &Vec<u64>)| {
        let own: u64 = of_worker.iter().sum();
        let kind = |kind: usize| Kind {
            kind,
            share: share(count(of_worker, kind), own),
            share_of_all: shares_of_all[kind],
        };
        let mut kinds: Vec<Kind> = (0..num_kinds).map(kind).collect();
        let apart = |k: &Kind| (k.share - k.share_of_all).abs();
        let total_variation = kinds.iter().map(apart).sum::<f64>() / 2.0;
        let has_any = kinds.iter().filter(|kind| kind.share > 0.0);
        let nats = |k: &Kind| k.share * scalar::ln(k.share / k.share_of_all);
        let divergence = has_any.map(nats).sum::<f64>().max(0.0);
        let surplus = |k: &Kind| k.share - k.share_of_all;
        kinds.sort_by(|a, b| surplus(b).total_cmp(&surplus(a)));
        kinds.retain(|kind| surplus(kind) > 0.0);
        kinds.truncate(NUM_TOP);
        WorkerSkew { rank, count: own, total_variation, divergence, top: kinds }
    };
    let workers: Vec<WorkerSkew> = counts.iter().enumerate().map(worker).collect();
    let total_variation_max = workers.iter().map(|w| w.total_variation).fold(0.0, f64::max);
    Skew { of, num_kinds, total_variation_max, workers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_workers_are_no_distance_apart_and_disjoint_ones_all_of_it() {
        let same = compare("class", vec![vec![5, 5], vec![10, 10]]);
        assert_eq!(same.total_variation_max, 0.0);
        assert!(same.workers.iter().all(|worker| worker.divergence == 0.0));
        let apart = compare("class", vec![vec![8, 0], vec![0, 8]]);
        for worker in &apart.workers {
            assert!((worker.total_variation - 0.5).abs() < 1e-12, "half of all is the other's");
            assert!((worker.divergence - 2.0_f64.ln()).abs() < 1e-12);
            assert_eq!(worker.top.len(), 1);
        }
        assert_eq!(apart.workers[1].top[0], Kind { kind: 1, share: 1.0, share_of_all: 0.5 });
    }
}
