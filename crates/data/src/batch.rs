//! One optimizer step's worth of tokens, laid out as consecutive lanes.
//!
//! b batch (sequences), s context (tokens a sequence), m microbatch (sequences a lane).
//! `inputs_bs` holds sequence after sequence; `targets_bs` is the same stream one token later. Lane
//! `i` is sequences `i·m .. (i+1)·m`, so lanes are slices and cost nothing to cut.

use std::ops::Range;

use lockstep_config::{BatchPlan, Recipe};

use crate::corpus::Corpus;
use crate::sampler::Sampler;

/// The target of a position that has nothing to predict; losses and gradients leave it out.
pub const IGNORE: u32 = u32::MAX;

/// The tokens of one step, over all lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The optimizer step that these samples belong to.
    pub step: u64,
    /// The tokens a model reads: `batch` sequences of `context`; behind those of a batch that is
    /// not the largest of its run lies what an earlier one left.
    pub inputs: Vec<u32>,
    /// The token that follows each input.
    pub targets: Vec<u32>,
    /// The number of the first sample, counted from the start of the run: what all steps before
    /// took.
    pub first_sample: u64,
    /// How many targets are not [`IGNORE`], over the whole batch: the loss denominator.
    pub num_targets: u64,
    shape: BatchShape,
}

/// The sizes that a recipe gives every batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchShape {
    pub(crate) batch: usize,
    pub(crate) microbatch: usize,
    pub(crate) context: usize,
}

impl BatchShape {
    pub(crate) fn of(recipe: &Recipe) -> Self {
        let (batch, microbatch) = (recipe.train.batch, recipe.train.microbatch);
        assert!(batch.is_multiple_of(microbatch), "resolve proved that lanes are whole");
        Self { batch, microbatch, context: recipe.model.context }
    }
}

impl Batch {
    /// An empty batch with room for all its tokens: the only allocation in its life.
    pub(crate) fn with_room(shape: BatchShape) -> Self {
        let num_tokens = shape.batch * shape.context;
        Self {
            step: 0,
            inputs: vec![0; num_tokens],
            targets: vec![IGNORE; num_tokens],
            first_sample: 0,
            num_targets: 0,
            shape,
        }
    }

    /// Becomes the batch of `step`, as large as `plan` gives it, and returns the numbers of its
    /// samples; the tokens are still those of another step.
    pub(crate) fn begin(&mut self, step: u64, plan: &BatchPlan) -> Range<u64> {
        let stage = plan.at(step);
        self.shape.batch = stage.batch;
        let BatchShape { batch, context, .. } = self.shape;
        assert!(batch * context <= self.inputs.len(), "room for the largest batch");
        self.step = step;
        self.first_sample = stage.first_sample_of(step);
        self.num_targets = (batch * context) as u64;
        self.first_sample..self.first_sample + batch as u64
    }

    /// Overwrites everything with the samples of `step`, as many as `plan` gives it.
    pub(crate) fn fill(&mut self, step: u64, plan: &BatchPlan, sampler: &Sampler, corpus: &Corpus) {
        let samples = self.begin(step, plan);
        let context = self.shape.context;
        let sequences = self.inputs.chunks_exact_mut(context);
        let sequences = sequences.zip(self.targets.chunks_exact_mut(context));
        for (sample, (inputs, targets)) in samples.zip(sequences) {
            let window = sampler.locate(sample);
            fill_window(corpus.train(), window.start, inputs, targets);
        }
    }

    /// How many lanes the batch is cut into.
    pub fn num_lanes(&self) -> usize {
        self.shape.batch / self.shape.microbatch
    }

    /// Inputs and targets of lane `index`: sequences `index * microbatch` and following.
    pub fn lane(&self, index: usize) -> (&[u32], &[u32]) {
        assert!(index < self.num_lanes(), "lane {index} of {}", self.num_lanes());
        let range = self.lane_range(index);
        (&self.inputs[range.clone()], &self.targets[range])
    }

    fn lane_range(&self, index: usize) -> Range<usize> {
        let lane_tokens = self.shape.microbatch * self.shape.context;
        index * lane_tokens..(index + 1) * lane_tokens
    }
}

/// Writes the window at `start` as inputs and, one token later, targets.
pub(crate) fn fill_window(stream: &[u8], start: usize, inputs: &mut [u32], targets: &mut [u32]) {
    let window = &stream[start..=start + inputs.len()];
    for (input, &byte) in inputs.iter_mut().zip(window) {
        *input = u32::from(byte);
    }
    for (target, &byte) in targets.iter_mut().zip(&window[1..]) {
        *target = u32::from(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_the_batch_cut_in_order_and_targets_run_one_token_ahead() {
        let corpus = Corpus::from_text("test", &"abcdefghij".repeat(30), 0.1).unwrap();
        let shape = BatchShape { batch: 6, microbatch: 2, context: 5 };
        let sampler = Sampler::new(1, 5, corpus.train().len());
        let mut batch = Batch::with_room(shape);
        batch.fill(3, &BatchPlan::constant(6), &sampler, &corpus);

        assert_eq!((batch.step, batch.first_sample, batch.num_targets), (3, 18, 30));
        let lanes: Vec<u32> =
            (0..batch.num_lanes()).flat_map(|i| batch.lane(i).0).copied().collect();
        assert_eq!(lanes, batch.inputs);
        for (inputs, targets) in batch.inputs.chunks(5).zip(batch.targets.chunks(5)) {
            assert_eq!(inputs[1..], targets[..4]);
            assert!(targets.iter().all(|&t| t != IGNORE));
        }
        let start = sampler.locate(18 + 4).start;
        let expected: Vec<u32> =
            corpus.train()[start..start + 5].iter().map(|&b| b.into()).collect();
        assert_eq!(batch.lane(2).0[..5], expected);
    }
}
