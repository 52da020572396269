//! The fixed sequences a model is judged by: the same at every evaluation of every run.
//!
//! They are non-overlapping windows from the start of the validation split, in reading order and
//! in lanes of the training microbatch's size, so that the evaluation's sums have one order too.
//! The last lane may be short of sequences; it is filled up with positions that count for nothing.

use lockstep_config::Recipe;

use crate::batch::{BatchShape, IGNORE, fill_window};
use crate::corpus::Corpus;
use crate::problem;

/// All the lanes of one evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validation {
    /// Equally shaped lanes, in reading order.
    pub lanes: Vec<ValidationLane>,
    /// How many targets count, over all lanes: the denominator of the mean loss.
    pub num_targets: u64,
}

/// `microbatch` sequences of `context` tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationLane {
    /// The tokens a model reads.
    pub inputs: Vec<u32>,
    /// The token that follows each input, or [`IGNORE`] throughout a filling sequence.
    pub targets: Vec<u32>,
    /// The number of the first sequence among those of the evaluation.
    pub first_sample: u64,
}

/// The lanes for `train.eval_batches` batches, or for the whole split where that is less.
pub fn validation_lanes(recipe: &Recipe, corpus: &Corpus) -> Validation {
    if recipe.model.family.is_problem() {
        return problem::validation(recipe);
    }
    lanes_of(BatchShape::of(recipe), recipe.train.eval_batches, corpus.validation())
}

fn lanes_of(shape: BatchShape, eval_batches: usize, stream: &[u8]) -> Validation {
    let BatchShape { batch, microbatch, context } = shape;
    let num_windows = stream.len().saturating_sub(1) / context;
    let num_sequences = num_windows.min(eval_batches * batch);
    let lanes = (0..num_sequences.div_ceil(microbatch)).map(|lane| {
        let first = lane * microbatch;
        let mut inputs = vec![0; microbatch * context];
        let mut targets = vec![IGNORE; microbatch * context];
        let sequences = inputs.chunks_exact_mut(context).zip(targets.chunks_exact_mut(context));
        for (window, (inputs, targets)) in (first..num_sequences).zip(sequences) {
            fill_window(stream, window * context, inputs, targets);
        }
        ValidationLane { inputs, targets, first_sample: first as u64 }
    });
    Validation { lanes: lanes.collect(), num_targets: (num_sequences * context) as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: BatchShape = BatchShape { batch: 4, microbatch: 2, context: 3 };

    fn counted_targets(validation: &Validation) -> u64 {
        let targets = validation.lanes.iter().flat_map(|lane| &lane.targets);
        targets.filter(|&&target| target != IGNORE).count() as u64
    }

    #[test]
    fn a_long_split_gives_the_asked_number_of_sequences_in_reading_order() {
        let stream: Vec<u8> = (0..100).collect();
        let validation = lanes_of(SHAPE, 2, &stream);
        assert_eq!((validation.lanes.len(), validation.num_targets), (4, 24));
        assert_eq!(counted_targets(&validation), 24);
        let inputs: Vec<u32> = validation.lanes.iter().flat_map(|l| l.inputs.clone()).collect();
        assert_eq!(inputs, (0..24).collect::<Vec<u32>>());
        let targets: Vec<u32> = validation.lanes.iter().flat_map(|l| l.targets.clone()).collect();
        assert_eq!(targets, (1..25).collect::<Vec<u32>>());
    }

    #[test]
    fn a_short_split_fills_its_last_lane_with_ignored_targets() {
        // Eleven tokens hold three windows of 3 + 1 with shared edges: the last lane is half full.
        let stream: Vec<u8> = (10..21).collect();
        let validation = lanes_of(SHAPE, 2, &stream);
        assert_eq!((validation.lanes.len(), validation.num_targets), (2, 9));
        assert_eq!(counted_targets(&validation), 9);
        let last = &validation.lanes[1];
        assert_eq!(last.first_sample, 2);
        assert_eq!(last.inputs, [16, 17, 18, 0, 0, 0]);
        assert_eq!(last.targets, [17, 18, 19, IGNORE, IGNORE, IGNORE]);
    }

    #[test]
    fn an_empty_split_gives_no_lanes() {
        assert_eq!(lanes_of(SHAPE, 2, &[]), Validation { lanes: vec![], num_targets: 0 });
    }
}
