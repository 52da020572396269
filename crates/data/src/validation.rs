//! Fixed validation micro-batches, identical at every evaluation of every run.
//!
//! They are non-overlapping windows from the start of the validation split, in reading order and in
//! micro-batches of the training size, so that the sums of an evaluation have a fixed order. The
//! last micro-batch may be padded.

use std::ops::Range;

use lockstep_config::{Documents, Order, Recipe};

use crate::batch::{BatchShape, IGNORE, PAD, fill_window};
use crate::corpus::{Corpus, TokenSpan};
use crate::error::DataError;
use crate::problem::COUNTED;

/// Micro-batches of one evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// Micro-batches of equal shape, in reading order.
    pub microbatches: Vec<ValidationMicrobatch>,
    /// Number of targets in all micro-batches: the denominator of the mean loss.
    pub num_targets: u64,
}

/// A validation micro-batch of sequences of `context` tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationMicrobatch {
    /// Input tokens.
    pub inputs: Vec<u32>,
    /// Token that follows each input, or [`IGNORE`] in padding.
    pub targets: Vec<u32>,
    /// Number of the first sequence in the evaluation.
    pub first_sample: u64,
    /// First position of the document of each input, in its sequence; empty without a document
    /// mask.
    pub documents: Vec<u32>,
    /// Loss of each sequence under the reference model of preferences; empty without one.
    pub references: Vec<f64>,
}

impl ValidationMicrobatch {
    /// Micro-batch of padding.
    pub(crate) fn empty(shape: BatchShape, first_sample: u64) -> Self {
        let num_tokens = shape.microbatch_size * shape.context;
        Self {
            inputs: vec![PAD; num_tokens],
            targets: vec![IGNORE; num_tokens],
            first_sample,
            documents: vec![0; if shape.has_documents { num_tokens } else { 0 }],
            references: Vec::new(),
        }
    }
}

/// Micro-batches of `train.eval_batches` batches, or of the whole split if it is shorter.
pub fn validation_microbatches(recipe: &Recipe, corpus: &Corpus) -> Result<Validation, DataError> {
    if recipe.model.family.is_problem() {
        return Ok(problem_microbatches(recipe));
    }
    let limit = recipe.train.eval_batches * recipe.train.batch;
    microbatches_of(BatchShape::of(recipe), limit, corpus.validation(), recipe.data.documents)
}

/// Micro-batches of at most `limit` sequences of a span.
pub(crate) fn microbatches_of(
    shape: BatchShape,
    limit: usize,
    tokens: &TokenSpan,
    cut: Documents,
) -> Result<Validation, DataError> {
    let BatchShape { microbatch_size, context, .. } = shape;
    let Some((sampler, num_sequences)) = tokens.evaluation_windows(context, limit, cut) else {
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
            num_targets += tokens.num_targets(window) as u64;
            fill_window(tokens, Some(window), inputs, targets)?;
            if let Some(documents) = filled.documents.chunks_exact_mut(context).nth(index - first) {
                tokens.fill_documents(Some(window), documents);
            }
        }
        if tokens.has_pairs() {
            let window =
                |index: usize| (index < num_sequences).then(|| sampler.locate(index as u64));
            let sequences = first..first + microbatch_size;
            filled.references = sequences.map(|index| tokens.reference(window(index))).collect();
        }
        microbatches.push(filled);
    }
    if tokens.has_pairs() {
        num_targets = num_sequences as u64 / 2;
    }
    Ok(Validation { microbatches, num_targets })
}

/// Some micro-batches of the documents of two spans, each within one sequence; the last one may be
/// padded.
pub(crate) fn microbatches_of_documents(
    shape: BatchShape,
    spans: [&TokenSpan; 2],
    numbers: Range<usize>,
) -> Result<Vec<ValidationMicrobatch>, DataError> {
    let BatchShape { microbatch_size, context, .. } = shape;
    let samplers = spans.map(|span| span.sampler(0, context, Documents::Padded, Order::Sequential));
    let num_first = samplers[0].num_windows();
    let microbatch = |microbatch: usize| {
        let mut filled = ValidationMicrobatch::empty(shape, 0);
        let sequences = filled.inputs.chunks_exact_mut(context);
        let sequences = sequences.zip(filled.targets.chunks_exact_mut(context));
        let first = (microbatch * microbatch_size) as u64;
        for (number, (inputs, targets)) in (first..).zip(sequences) {
            let (span, index) = match number.checked_sub(num_first) {
                None => (0, number),
                Some(index) => (1, index),
            };
            let is_there = index < samplers[span].num_windows();
            let window = is_there.then(|| samplers[span].locate(index));
            fill_window(spans[span], window, inputs, targets)?;
        }
        Ok(filled)
    };
    numbers.map(microbatch).collect()
}

/// Micro-batches of a small problem's held-out samples, at most `train.eval_batches` batches.
pub(crate) fn problem_microbatches(recipe: &Recipe) -> Validation {
    let BatchShape { batch, microbatch_size, .. } = BatchShape::of(recipe);
    let problem = &recipe.model.problem;
    let num_samples = problem.held_out.min(recipe.train.eval_batches * batch);
    let microbatch = |microbatch: usize| {
        let numbers = microbatch * microbatch_size..(microbatch + 1) * microbatch_size;
        let is_there = |number: &usize| *number < num_samples;
        let input = |number| if is_there(&number) { problem.samples + number } else { 0 };
        let target = |number| if is_there(&number) { COUNTED } else { IGNORE };
        ValidationMicrobatch {
            first_sample: numbers.start as u64,
            documents: Vec::new(),
            references: Vec::new(),
            inputs: numbers.clone().map(|number| input(number) as u32).collect(),
            targets: numbers.map(target).collect(),
        }
    };
    let microbatches = (0..num_samples.div_ceil(microbatch_size)).map(microbatch).collect();
    Validation { microbatches, num_targets: num_samples as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: BatchShape =
        BatchShape { batch: 4, microbatch_size: 2, context: 3, has_documents: false, seqlen: None };

    fn counted_targets(validation: &Validation) -> u64 {
        let targets = validation.microbatches.iter().flat_map(|microbatch| &microbatch.targets);
        targets.filter(|&&target| target != IGNORE).count() as u64
    }

    fn span(tokens: impl IntoIterator<Item = u8>) -> TokenSpan {
        TokenSpan::of_bytes(tokens.into_iter().collect(), &[])
    }

    fn packed(tokens: &TokenSpan) -> Validation {
        microbatches_of(SHAPE, 2 * SHAPE.batch, tokens, Documents::Packed).unwrap()
    }

    #[test]
    fn a_long_split_gives_the_requested_number_of_sequences_in_order() {
        let stream = span(0..100);
        let validation = packed(&stream);
        assert_eq!((validation.microbatches.len(), validation.num_targets), (4, 24));
        assert_eq!(counted_targets(&validation), 24);
        let inputs: Vec<u32> =
            validation.microbatches.iter().flat_map(|l| l.inputs.clone()).collect();
        assert_eq!(inputs, (0..24).collect::<Vec<u32>>());
        let targets: Vec<u32> =
            validation.microbatches.iter().flat_map(|l| l.targets.clone()).collect();
        assert_eq!(targets, (1..25).collect::<Vec<u32>>());
        assert_eq!(stream.evaluation_len(3, 8, Documents::Packed), 25);
    }

    #[test]
    fn a_short_split_fills_its_last_microbatch_with_ignored_targets() {
        // Eleven tokens hold three windows of 3 + 1 with shared edges: the last micro-batch is half
        // full.
        let validation = packed(&span(10..21));
        assert_eq!((validation.microbatches.len(), validation.num_targets), (2, 9));
        assert_eq!(counted_targets(&validation), 9);
        let last = &validation.microbatches[1];
        assert_eq!(last.first_sample, 2);
        assert_eq!(last.inputs, [16, 17, 18, 0, 0, 0]);
        assert_eq!(last.targets, [17, 18, 19, IGNORE, IGNORE, IGNORE]);
    }

    #[test]
    fn padded_documents_are_evaluated_one_by_one() {
        let tokens = TokenSpan::of_bytes((1..=9).collect(), &[2, 7, 9]);
        let validation = microbatches_of(SHAPE, 8, &tokens, Documents::Padded).unwrap();
        assert_eq!((validation.microbatches.len(), validation.num_targets), (2, 6));
        assert_eq!(validation.microbatches[0].inputs, [1, 0, 0, 3, 4, 5]);
        assert_eq!(validation.microbatches[1].inputs, [6, 0, 0, 8, 0, 0]);
        assert_eq!(validation.microbatches[1].targets, [7, IGNORE, IGNORE, 9, IGNORE, IGNORE]);
        assert_eq!(tokens.evaluation_len(3, 2, Documents::Padded), 6);
        assert_eq!(tokens.evaluation_len(3, 3, Documents::Padded), 7);
    }

    #[test]
    fn an_empty_split_gives_no_microbatches() {
        assert_eq!(packed(&span([])), Validation { microbatches: vec![], num_targets: 0 });
    }

    fn problem(sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("ridge".to_owned());
        lockstep_config::resolve(&lockstep_config::Sources {
            preset,
            sets,
            ..lockstep_config::Sources::default()
        })
        .unwrap()
    }

    #[test]
    fn held_out_samples_come_in_microbatches_and_padding_does_not_count() {
        let recipe = problem(&[
            "problem.samples=100",
            "problem.held_out=5",
            "train.batch=16",
            "train.microbatch=2",
        ]);
        let Validation { microbatches, num_targets } = problem_microbatches(&recipe);
        let inputs: Vec<_> =
            microbatches.iter().flat_map(|microbatch| microbatch.inputs.clone()).collect();
        let targets: Vec<_> =
            microbatches.iter().flat_map(|microbatch| microbatch.targets.clone()).collect();
        assert_eq!(num_targets, 5);
        assert_eq!(inputs, [100, 101, 102, 103, 104, 0]);
        assert_eq!(targets, [0, 0, 0, 0, 0, IGNORE]);
    }
}
