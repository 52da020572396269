//! Bytes sent by a run against the planner's prediction: equal on every rank.
//!
//! The planner counts the bytes of a step from the schedules. Where embedding gradients are sparse,
//! its input is the number of rows that the step's tokens select. A run reports the mean over its
//! steps, so the prediction is summed over all steps and divided.

use crate::runs::Outcome;
use lockstep_config::Recipe;
use lockstep_data::{Cursor, DataRank, Feed, Loader};
use lockstep_parallel::from_recipe::blueprint_of_rank;
use lockstep_planner::memory::Memory;
use lockstep_planner::traffic::{self, Interconnect, StepInputs, embedding_rows};

/// Compares the bytes sent by every rank of a run with threads as workers to the prediction.
///
/// # Panics
/// When they differ.
pub fn assert_traffic_as_predicted(recipe: &Recipe, outcome: &Outcome) {
    let predicted = predicted_bytes_by_rank(recipe);
    let measured = &outcome.summary.wire_bytes_by_rank;
    assert_eq!(predicted, *measured, "{:?}", recipe.parallel);
}

/// Compares, for a run whose steps differ, the bytes sent to the forecast of the mean step, and
/// the optimizer state and buffers of every rank to the forecast of memory.
///
/// # Panics
/// When they differ, or the recipe has traffic that forecasts do not model.
pub fn assert_traffic_and_memory_as_predicted(recipe: &Recipe, outcome: &Outcome) {
    assert_eq!(recipe.unmodelled_traffic(), None, "all traffic is modelled");
    assert_traffic_as_predicted(recipe, outcome);
    let blueprint = blueprint_of_rank(recipe, 0);
    let interconnect = Interconnect::memory(recipe.run.workers).with_algorithms_of(recipe);
    let by_len = traffic::busiest_by_bucket_len(recipe, &blueprint, &interconnect);
    let bytes: Vec<u64> = by_len.into_iter().map(|(_, bytes)| bytes.0).collect();
    assert!(bytes.contains(&outcome.summary.wire_bytes), "{bytes:?}");
    let memory = Memory::of(recipe, &blueprint);
    for (predicted, measured) in memory.ranks.iter().zip(&outcome.summary.accounted_bytes_by_rank) {
        let predicted = (predicted.optimizer.0, predicted.buffers.0);
        assert_eq!(predicted, (measured.optimizer, measured.buffers));
    }
}

/// Predicted bytes sent by every rank in the mean step of a run.
///
/// # Panics
/// When the recipe's corpus cannot be read, or the prediction is inexact.
pub fn predicted_bytes_by_rank(recipe: &Recipe) -> Vec<u64> {
    let mut tokens = Tokens::open(recipe);
    let num_steps = recipe.train.steps;
    let sums =
        predicted_bytes_of_steps(recipe, num_steps, |step| tokens.rows_by_rank(recipe, step));
    sums.into_iter().map(|sum| sum / num_steps).collect()
}

/// Predicted bytes sent by every rank in the first steps together. `rows_by_rank` gives the number
/// of embedding rows that each worker's micro-batches select in a step.
///
/// # Panics
/// When the prediction is inexact.
pub fn predicted_bytes_of_steps(
    recipe: &Recipe,
    num_steps: u64,
    mut rows_by_rank: impl FnMut(u64) -> Vec<usize>,
) -> Vec<u64> {
    let interconnect = Interconnect::memory(recipe.run.workers).with_algorithms_of(recipe);
    let blueprint = blueprint_of_rank(recipe, 0);
    let mut sums = vec![0; recipe.run.workers];
    for step in 0..num_steps {
        let rows = rows_by_rank(step);
        let inputs = StepInputs { rows_by_rank: Some(&rows), ..StepInputs::default() };
        let (calls, by_rank) = traffic::of_recipe(recipe, &blueprint, step, &interconnect, inputs);
        assert!(calls.is_exact, "the prediction is exact: {:?}", recipe.parallel);
        for (sum, rank) in sums.iter_mut().zip(&by_rank) {
            *sum += traffic::total(rank).wire_bytes().0;
        }
    }
    sums
}

/// Embedding rows that each worker's micro-batches select in every step of a run.
///
/// # Panics
/// When the recipe's corpus cannot be read.
pub fn rows_by_step(recipe: &Recipe) -> Vec<Vec<usize>> {
    let mut tokens = Tokens::open(recipe);
    (0..recipe.train.steps).map(|step| tokens.rows_by_rank(recipe, step)).collect()
}

/// Tokens of a run, batch by batch.
struct Tokens(Loader);

impl Tokens {
    fn open(recipe: &Recipe) -> Self {
        let world = lockstep_platform::real();
        let feed = Feed::open(recipe, &world, &DataRank::alone(recipe));
        let loader = feed.and_then(|mut feed| feed.loader(&world, Cursor::start()));
        Self(loader.expect("the corpus can be read"))
    }

    /// Number of embedding rows that each worker's micro-batches select in the next step.
    fn rows_by_rank(&mut self, recipe: &Recipe, step: u64) -> Vec<usize> {
        let batch = self.0.next_batch().expect("the corpus has another batch");
        embedding_rows::by_rank(recipe, step, |microbatch| batch.microbatch(microbatch).0)
    }
}
