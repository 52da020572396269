//! The bytes that a run has moved, beside those that were predicted: equal on every rank.
//!
//! The planner counts from the schedules what a step moves; where rows of an embedding travel one
//! by one it is told how many the step's tokens touch. What a run reports is the mean of its steps,
//! so the sum over all of them is compared.

use crate::runs::Outcome;
use lockstep_config::Recipe;
use lockstep_data::{Cursor, DataRank, Feed, Loader};
use lockstep_parallel::from_recipe::blueprint_of_rank;
use lockstep_planner::memory::Memory;
use lockstep_planner::traffic::{self, StepInputs, Interconnect, embedding_rows};

/// Holds the counters of every rank of a run whose ranks share memory against the prediction.
///
/// # Panics
/// When they differ.
pub fn assert_moved_as_predicted(recipe: &Recipe, outcome: &Outcome) {
    let predicted = predicted_by_rank(recipe);
    let measured = &outcome.summary.wire_bytes_by_rank;
    assert_eq!(predicted, *measured, "{:?}", recipe.parallel);
}

/// The same for a run whose steps differ, of which a forecast tells the mean; and holds what every
/// rank keeps for the update and besides against the forecast.
///
/// # Panics
/// When they differ, or the recipe has something that forecasts do not count.
pub fn assert_moved_and_kept_as_predicted(recipe: &Recipe, outcome: &Outcome) {
    assert_eq!(recipe.unmodelled_traffic(), None, "it is counted");
    assert_moved_as_predicted(recipe, outcome);
    let (blueprint, wires) = (blueprint_of_rank(recipe, 0), Interconnect::memory(recipe.run.workers));
    let by_len = traffic::busiest_by_bucket_len(recipe, &blueprint, &wires);
    let bytes: Vec<u64> = by_len.into_iter().map(|(_, bytes)| bytes.0).collect();
    assert!(bytes.contains(&outcome.summary.wire_bytes), "{bytes:?}");
    let memory = Memory::of(recipe, &blueprint);
    for (said, held) in memory.ranks.iter().zip(&outcome.summary.accounted_bytes_by_rank) {
        assert_eq!((said.optimizer.0, said.buffers.0), (held.optimizer, held.buffers));
    }
}

/// What every rank of a run will move in the mean step.
///
/// # Panics
/// When the recipe's text cannot be read, or the planner says that it does not know.
pub fn predicted_by_rank(recipe: &Recipe) -> Vec<u64> {
    let mut tokens = Tokens::open(recipe);
    let num_steps = recipe.train.steps;
    let sums = predicted_in_all(recipe, num_steps, |step| tokens.rows_by_rank(recipe, step));
    sums.into_iter().map(|sum| sum / num_steps).collect()
}

/// What every rank will move in the first steps together, told how many rows of the embedding each
/// worker's micro-batches touch in one.
///
/// # Panics
/// When the planner says that it does not know.
pub fn predicted_in_all(
    recipe: &Recipe,
    num_steps: u64,
    mut rows_by_rank: impl FnMut(u64) -> Vec<usize>,
) -> Vec<u64> {
    let wires = Interconnect::memory(recipe.run.workers);
    let blueprint = blueprint_of_rank(recipe, 0);
    let mut sums = vec![0; recipe.run.workers];
    for step in 0..num_steps {
        let touched = rows_by_rank(step);
        let known = StepInputs {
            rows_by_rank: Some(&touched),
            evaluation_rounds: evaluation_rounds(recipe, step),
        };
        let (calls, moved) = traffic::of_recipe(recipe, &blueprint, step, &wires, known);
        assert!(calls.is_exact, "everything is known: {:?}", recipe.parallel);
        for (sum, rank) in sums.iter_mut().zip(&moved) {
            *sum += traffic::total(rank).wire_bytes().0;
        }
    }
    sums
}

/// Rounds of the evaluation that came before a step, if one did: parameters that it has brought are
/// there.
fn evaluation_rounds(recipe: &Recipe, step: u64) -> usize {
    let every = recipe.train.eval_every;
    let is_due = step > 0 && every > 0 && step.is_multiple_of(every);
    let microbatches =
        recipe.train.eval_batches * recipe.train.batch / recipe.train.microbatch_size;
    let together = recipe.parallel.data * recipe.parallel.pipeline;
    if is_due { microbatches.div_ceil(together) } else { 0 }
}

/// The tokens of a run, batch by batch.
struct Tokens(Loader);

impl Tokens {
    fn open(recipe: &Recipe) -> Self {
        let world = lockstep_platform::real();
        let feed = Feed::open(recipe, &world, &DataRank::alone(recipe));
        let loader = feed.and_then(|mut feed| feed.loader(&world, Cursor::start()));
        Self(loader.expect("the text can be read"))
    }

    /// How many rows of the embedding each worker's micro-batches touch in the next step.
    fn rows_by_rank(&mut self, recipe: &Recipe, step: u64) -> Vec<usize> {
        let batch = self.0.next_batch().expect("the text goes on");
        embedding_rows::by_rank(recipe, step, |microbatch| batch.microbatch(microbatch).0)
    }
}
