//! Batch-size schedules.
//!
//! A schedule lists batch sizes by training tokens. A change takes effect at the first step that
//! begins at or after its tokens. The samples of a step follow from the recipe alone, so a resumed
//! run finds its data position from the number of its next step.

use super::Recipe;
use super::limits::MAX_BATCH;
use crate::topic::entry;

entry! {
    /// A change of the batch size.
    #[derive(Copy, Eq)]
    pub struct BatchChange {
        /// Training tokens before the change.
        tokens: u64 = required;
        /// Sequences per optimizer step, over all workers.
        batch: usize = required, integer(1, MAX_BATCH);
    }
}

/// Consecutive steps of one batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchStage {
    /// First step.
    pub first_step: u64,
    /// Number of samples of all earlier steps.
    pub first_sample: u64,
    /// Sequences per step.
    pub batch: usize,
}

impl BatchStage {
    /// Number of samples of all steps before `step`, which belongs to this stage.
    pub const fn first_sample_of(&self, step: u64) -> u64 {
        self.first_sample + (step - self.first_step) * self.batch as u64
    }
}

/// The batch of every step.
///
/// ```
/// use lockstep_config::{Sources, resolve};
///
/// let schedule = "train.batch_schedule=[{tokens = 400, batch = 32}]";
/// let sets = ["model.context=10", "train.batch=16", schedule];
/// let sources = Sources { sets: sets.map(str::to_owned).into(), ..Sources::default() };
/// let plan = resolve(&sources)?.batch_plan();
/// // Sixteen sequences of ten tokens: step 3 is the first to begin after 400 tokens.
/// let batches: Vec<usize> = (0..5).map(|step| plan.at(step).batch).collect();
/// assert_eq!(batches, [16, 16, 16, 32, 32]);
/// assert_eq!(plan.first_sample_of(4), 3 * 16 + 32);
/// # Ok::<(), lockstep_config::ConfigErrors>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPlan {
    /// Stages in order; the first begins at step 0.
    pub stages: Vec<BatchStage>,
}

impl BatchPlan {
    /// A constant batch.
    pub fn constant(batch: usize) -> Self {
        Self { stages: vec![BatchStage { first_step: 0, first_sample: 0, batch }] }
    }

    /// The stage of a step.
    pub fn at(&self, step: u64) -> BatchStage {
        let behind = self.stages.partition_point(|stage| stage.first_step <= step);
        self.stages[behind - 1]
    }

    /// Number of samples of all steps before `step`: the data position of the run.
    pub fn first_sample_of(&self, step: u64) -> u64 {
        self.at(step).first_sample_of(step)
    }

    /// The largest batch of any step.
    pub fn max_batch(&self) -> usize {
        self.stages.iter().map(|stage| stage.batch).max().unwrap_or(0)
    }
}

impl Recipe {
    /// The batch of every step.
    pub fn batch_plan(&self) -> BatchPlan {
        let context = self.model.context as u64;
        let mut stage = BatchStage { first_step: 0, first_sample: 0, batch: self.train.batch };
        let mut stages = Vec::new();
        for change in &self.train.batch_schedule {
            let missing = change.tokens.saturating_sub(stage.first_sample * context);
            let num_steps = missing.div_ceil(stage.batch as u64 * context);
            // A stage whose tokens the previous step has already passed has no steps.
            if num_steps > 0 {
                stages.push(stage);
            }
            stage = BatchStage {
                first_step: stage.first_step + num_steps,
                first_sample: stage.first_sample + num_steps * stage.batch as u64,
                batch: change.batch,
            };
        }
        stages.push(stage);
        BatchPlan { stages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(batch: usize, changes: &[(u64, usize)]) -> BatchPlan {
        let mut recipe = Recipe::default();
        (recipe.train.batch, recipe.model.context) = (batch, 10);
        let change = |&(tokens, batch)| BatchChange { tokens, batch };
        recipe.train.batch_schedule = changes.iter().map(change).collect();
        recipe.batch_plan()
    }

    #[test]
    fn a_schedule_that_is_walked_token_by_token_has_the_batches_of_the_plan() {
        let cases: [&[(u64, usize)]; 4] =
            [&[], &[(0, 16), (1000, 32)], &[(1, 32), (2, 64), (5000, 16)], &[(479, 8), (481, 4)]];
        for changes in cases {
            let plan = plan(16, changes);
            let mut samples = 0;
            for step in 0..60 {
                let is_reached = |change: &&(u64, usize)| change.0 <= samples * 10;
                let last = changes.iter().rev().find(is_reached);
                let batch = last.map_or(16, |change| change.1);
                assert_eq!(plan.at(step).batch, batch, "step {step} of {changes:?}");
                assert_eq!(plan.first_sample_of(step), samples, "step {step} of {changes:?}");
                samples += batch as u64;
            }
        }
    }
}
