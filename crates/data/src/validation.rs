//! The fixed sequences a model is judged by: the same at every evaluation of every run.
//!
//! They are non-overlapping windows from the start of the validation split, in reading order and
//! in micro-batches of the training microbatch's size, so that the evaluation's sums have one order too.
//! The last micro-batch may be short of sequences; it is filled up with positions that count for nothing.

use lockstep_config::{Documents, Order, Recipe};

use crate::batch::{BatchShape, IGNORE, PAD, fill_window};
use crate::corpus::{Corpus, Stretch};
use crate::error::DataError;
use crate::problem;
use crate::sampler::Sampler;

/// All the micro-batches of one evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Validation {
    /// Equally shaped micro-batches, in reading order.
    pub microbatches: Vec<ValidationMicrobatch>,
    /// How many targets count, over all micro-batches: the denominator of the mean loss.
    pub num_targets: u64,
}

/// `microbatch` sequences of `context` tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationMicrobatch {
    /// The tokens a model reads.
    pub inputs: Vec<u32>,
    /// The token that follows each input, or [`IGNORE`] throughout a filling sequence.
    pub targets: Vec<u32>,
    /// The number of the first sequence among those of the evaluation.
    pub first_sample: u64,
}

impl ValidationMicrobatch {
    /// A micro-batch in which nothing counts.
    pub(crate) fn empty(shape: BatchShape, first_sample: u64) -> Self {
        let num_tokens = shape.microbatch_size * shape.context;
        Self { inputs: vec![PAD; num_tokens], targets: vec![IGNORE; num_tokens], first_sample }
    }
}

/// The micro-batches for `train.eval_batches` batches, or for the whole split where that is less.
pub fn validation_microbatches(recipe: &Recipe, corpus: &Corpus) -> Result<Validation, DataError> {
    if recipe.model.family.is_problem() {
        return Ok(problem::validation(recipe));
    }
    let limit = recipe.train.eval_batches * recipe.train.batch;
    microbatches_of(BatchShape::of(recipe), limit, corpus.validation(), recipe.data.documents)
}

/// The micro-batches for at most `limit` sequences of a stretch.
pub(crate) fn microbatches_of(
    shape: BatchShape,
    limit: usize,
    tokens: &Stretch,
    cut: Documents,
) -> Result<Validation, DataError> {
    let BatchShape { microbatch_size, context, .. } = shape;
    let Some((sampler, num_sequences)) = sequences(context, limit, tokens, cut) else {
        return Ok(Validation { microbatches: Vec::new(), num_targets: 0 });
    };
    let mut num_targets = 0;
    let mut microbatches = Vec::new();
    for first in (0..num_sequences).step_by(microbatch_size) {
        let mut filled = ValidationMicrobatch::empty(shape, first as u64);
        let sequences = filled.inputs.chunks_exact_mut(context);
        let sequences = sequences.zip(filled.targets.chunks_exact_mut(context));
        for (index, (inputs, targets)) in (first..num_sequences).zip(sequences) {
            let window = sampler.locate(index as u64);
            num_targets += window.num_targets as u64;
            fill_window(tokens, Some(window), inputs, targets)?;
        }
        microbatches.push(filled);
    }
    Ok(Validation { microbatches, num_targets })
}

/// How many tokens from the start of a stretch at most `limit` sequences of it reach.
pub(crate) fn reach(context: usize, limit: usize, tokens: &Stretch, cut: Documents) -> usize {
    let Some((sampler, num_sequences)) = sequences(context, limit, tokens, cut) else { return 0 };
    let last = sampler.locate(num_sequences as u64 - 1);
    last.start + last.num_targets + 1 - tokens.range().start
}

/// The sampler of an evaluation, and how many sequences it gives.
fn sequences(
    context: usize,
    limit: usize,
    tokens: &Stretch,
    cut: Documents,
) -> Option<(Sampler, usize)> {
    let num_windows = tokens.num_windows(context, cut, Order::Sequential);
    if num_windows == 0 || limit == 0 {
        return None;
    }
    let sampler = tokens.sampler(0, context, cut, Order::Sequential);
    Some((sampler, limit.min(usize::try_from(num_windows).unwrap_or(usize::MAX))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: BatchShape = BatchShape { batch: 4, microbatch_size: 2, context: 3 };

    fn counted_targets(validation: &Validation) -> u64 {
        let targets = validation.microbatches.iter().flat_map(|microbatch| &microbatch.targets);
        targets.filter(|&&target| target != IGNORE).count() as u64
    }

    fn stretch(tokens: impl IntoIterator<Item = u8>) -> Stretch {
        Stretch::of_bytes(tokens.into_iter().collect(), &[])
    }

    fn packed(tokens: &Stretch) -> Validation {
        microbatches_of(SHAPE, 2 * SHAPE.batch, tokens, Documents::Packed).unwrap()
    }

    #[test]
    fn a_long_split_gives_the_asked_number_of_sequences_in_reading_order() {
        let stream = stretch(0..100);
        let validation = packed(&stream);
        assert_eq!((validation.microbatches.len(), validation.num_targets), (4, 24));
        assert_eq!(counted_targets(&validation), 24);
        let inputs: Vec<u32> =
            validation.microbatches.iter().flat_map(|l| l.inputs.clone()).collect();
        assert_eq!(inputs, (0..24).collect::<Vec<u32>>());
        let targets: Vec<u32> =
            validation.microbatches.iter().flat_map(|l| l.targets.clone()).collect();
        assert_eq!(targets, (1..25).collect::<Vec<u32>>());
        assert_eq!(reach(3, 8, &stream, Documents::Packed), 25);
    }

    #[test]
    fn a_short_split_fills_its_last_microbatch_with_ignored_targets() {
        // Eleven tokens hold three windows of 3 + 1 with shared edges: the last micro-batch is half full.
        let validation = packed(&stretch(10..21));
        assert_eq!((validation.microbatches.len(), validation.num_targets), (2, 9));
        assert_eq!(counted_targets(&validation), 9);
        let last = &validation.microbatches[1];
        assert_eq!(last.first_sample, 2);
        assert_eq!(last.inputs, [16, 17, 18, 0, 0, 0]);
        assert_eq!(last.targets, [17, 18, 19, IGNORE, IGNORE, IGNORE]);
    }

    #[test]
    fn padded_documents_are_judged_one_by_one() {
        let tokens = Stretch::of_bytes((1..=9).collect(), &[2, 7, 9]);
        let validation = microbatches_of(SHAPE, 8, &tokens, Documents::Padded).unwrap();
        assert_eq!((validation.microbatches.len(), validation.num_targets), (2, 6));
        assert_eq!(validation.microbatches[0].inputs, [1, 0, 0, 3, 4, 5]);
        assert_eq!(validation.microbatches[1].inputs, [6, 0, 0, 8, 0, 0]);
        assert_eq!(validation.microbatches[1].targets, [7, IGNORE, IGNORE, 9, IGNORE, IGNORE]);
        assert_eq!(reach(3, 2, &tokens, Documents::Padded), 6);
        assert_eq!(reach(3, 3, &tokens, Documents::Padded), 7);
    }

    #[test]
    fn an_empty_split_gives_no_microbatches() {
        assert_eq!(packed(&stretch([])), Validation { microbatches: vec![], num_targets: 0 });
    }
}
