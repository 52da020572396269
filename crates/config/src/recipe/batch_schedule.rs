//! How many sequences each step takes, where the batch grows during a run.
//!
//! A schedule says from how many tokens on a batch holds. A step is never cut in two, so a change
//! takes effect at the first step that begins at or behind its tokens; which samples a step takes
//! follows from the recipe alone, and a run that is resumed finds its place by the number of its
//! next step.

use super::Recipe;

/// A batch that holds from a number of tokens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchChange {
    /// Tokens that were trained on before.
    pub tokens: u64,
    /// Sequences per optimizer step, over all workers.
    pub batch: usize,
}

/// Steps of one batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchStage {
    /// The first of them.
    pub first_step: u64,
    /// Samples that all steps before it took.
    pub first_sample: u64,
    /// Sequences in each.
    pub batch: usize,
}

impl BatchStage {
    /// The samples that the steps before `step` took, where `step` is of this stage.
    pub const fn first_sample_of(&self, step: u64) -> u64 {
        self.first_sample + (step - self.first_step) * self.batch as u64
    }
}

/// The batch of every step.
///
/// ```
/// use lockstep_config::{Sources, resolve};
///
/// let sets = ["model.context=10", "train.batch_schedule=[{tokens = 400, batch = 32}]"];
/// let sources = Sources { sets: sets.map(str::to_owned).into(), ..Sources::default() };
/// let plan = resolve(&sources)?.batch_plan();
/// // Sixteen sequences of ten tokens: the third step is the first behind 400 tokens.
/// let batches: Vec<usize> = (0..5).map(|step| plan.at(step).batch).collect();
/// assert_eq!(batches, [16, 16, 16, 32, 32]);
/// assert_eq!(plan.first_sample_of(4), 3 * 16 + 32);
/// # Ok::<(), lockstep_config::ConfigErrors>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPlan {
    /// In the order of steps; the first begins at step 0.
    pub stages: Vec<BatchStage>,
}

impl BatchPlan {
    /// The same batch in every step.
    pub fn constant(batch: usize) -> Self {
        Self { stages: vec![BatchStage { first_step: 0, first_sample: 0, batch }] }
    }

    /// The stage that a step is of.
    pub fn at(&self, step: u64) -> BatchStage {
        let behind = self.stages.partition_point(|stage| stage.first_step <= step);
        self.stages[behind - 1]
    }

    /// The samples that the steps before `step` take: how far a run has come in its data.
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
            // A stage that the step before it has overshot has no steps of its own.
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
