//! Samples of one optimizer step, laid out as consecutive micro-batches.
//!
//! b batch (sequences), s context (tokens per sequence), m micro-batch size (sequences).
//! `inputs_bs` holds sequence after sequence; `targets_bs` is the same stream one token later.
//! Micro-batch `i` is sequences `i·m .. (i+1)·m`, so micro-batches are slices and need no copy.
//!
//! A sequence may be shorter than the context, at the end of a document or an epoch. The rest is
//! padding: [`PAD`] as input, [`IGNORE`] as target. Attention is causal, so padding on the right
//! reaches no position with a target, and a position without a target gives no gradient: the
//! content of the padding changes no bit.
//!
//! A sequence-length warm-up cuts sequences into segments, which are documents to attention.

use std::ops::Range;

use lockstep_config::{BatchPlan, Documents, Recipe, SeqlenWarmup};

use crate::corpus::TokenSpan;
use crate::error::DataError;
use crate::sample_order::SampleOrder;
use crate::sampler::Window;

/// Target of a position without a prediction; losses and gradients ignore it.
pub const IGNORE: u32 = u32::MAX;

/// Input of a padding position; any token would do.
pub const PAD: u32 = 0;

/// Tokens of one step, over all micro-batches.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Optimizer step of the samples.
    pub step: u64,
    /// Input tokens: `batch` sequences of `context`. If the batch size varies, the buffer has the
    /// largest size and its end may hold tokens of an earlier step.
    pub inputs: Vec<u32>,
    /// Token that follows each input.
    pub targets: Vec<u32>,
    /// Number of the first sample, counted from the start of the run.
    pub first_sample: u64,
    /// Number of targets that are not [`IGNORE`], over the whole batch, or of its pairs: the loss
    /// denominator.
    pub num_targets: u64,
    /// Positions of the streams of a mixture after this batch, where the worker knows them; empty
    /// for other data, whose position is the step.
    pub(crate) positions: Vec<u64>,
    /// First position of the document or segment of each input, in its sequence; empty where the
    /// run has neither.
    pub(crate) documents: Vec<u32>,
    /// Loss of each sequence under the reference model of preferences.
    references: Option<Vec<f64>>,
    /// Whether attention is masked in this step.
    is_masked: bool,
    shape: BatchShape,
}

/// Sizes of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BatchShape {
    pub(crate) batch: usize,
    pub(crate) microbatch_size: usize,
    pub(crate) context: usize,
    /// Whether attention is masked by document.
    pub(crate) has_documents: bool,
    /// Sequence-length warm-up of the run's batches.
    pub(crate) seqlen: Option<SeqlenWarmup>,
}

impl BatchShape {
    pub(crate) fn of(recipe: &Recipe) -> Self {
        let (batch, microbatch_size) = (recipe.train.batch, recipe.train.microbatch_size);
        assert!(
            batch.is_multiple_of(microbatch_size),
            "resolve proved that micro-batches are whole"
        );
        let has_documents = recipe.data.documents == Documents::Masked;
        let seqlen = Some(recipe.train.seqlen).filter(SeqlenWarmup::is_on);
        Self { batch, microbatch_size, context: recipe.model.context, has_documents, seqlen }
    }

    /// Shape of the recipe's largest batch.
    pub(crate) fn largest(recipe: &Recipe) -> Self {
        Self { batch: recipe.batch_plan().max_batch(), ..Self::of(recipe) }
    }
}

/// Micro-batches of a batch to fill.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MicrobatchFilter<'a> {
    /// Micro-batches of these reduction leaves; all leaves have equally many.
    Leaves(&'a [bool]),
    /// Exactly these micro-batches.
    Microbatches(&'a [bool]),
}

impl MicrobatchFilter<'_> {
    /// Whether the filter selects a micro-batch of a step with `num_microbatches`.
    pub(crate) fn has(self, microbatch: usize, num_microbatches: usize) -> bool {
        match self {
            Self::Leaves(leaves) => leaves[microbatch * leaves.len() / num_microbatches],
            Self::Microbatches(microbatches) => microbatches[microbatch],
        }
    }
}

impl Batch {
    /// Empty batch with memory for all tokens: its only allocation.
    pub(crate) fn allocate(shape: BatchShape) -> Self {
        let num_tokens = shape.batch * shape.context;
        let may_be_masked = shape.has_documents || shape.seqlen.is_some();
        Self {
            step: 0,
            inputs: vec![0; num_tokens],
            targets: vec![IGNORE; num_tokens],
            first_sample: 0,
            num_targets: 0,
            positions: Vec::new(),
            documents: vec![0; if may_be_masked { num_tokens } else { 0 }],
            references: None,
            is_masked: shape.has_documents,
            shape,
        }
    }

    /// Turns into the batch of `step` with the size of `plan` and returns its sample numbers; the
    /// tokens are not filled in yet.
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

    /// Fills the selected micro-batches with the samples of `step` and counts the targets of all
    /// micro-batches.
    pub(crate) fn fill(
        &mut self,
        step: u64,
        order: &SampleOrder,
        tokens: &TokenSpan,
        filter: MicrobatchFilter<'_>,
    ) -> Result<(), DataError> {
        self.begin(step, order.plan());
        let BatchShape { batch, microbatch_size, context, .. } = self.shape;
        let num_microbatches = self.num_microbatches();
        self.num_targets = 0;
        if tokens.has_pairs() {
            self.references.get_or_insert_with(|| vec![0.0; self.inputs.len() / context]);
        }
        let sequences = self.inputs.chunks_exact_mut(context);
        let sequences = sequences.zip(self.targets.chunks_exact_mut(context));
        for (sequence, (inputs, targets)) in sequences.take(batch).enumerate() {
            let window = order.window(step, sequence);
            self.num_targets += window.map_or(0, |window| tokens.num_targets(window) as u64);
            if let Some(references) = &mut self.references {
                references[sequence] = tokens.reference(window);
            }
            if filter.has(sequence / microbatch_size, num_microbatches) {
                fill_window(tokens, window, inputs, targets)?;
                let has_documents = self.shape.has_documents;
                let documents = self.documents.chunks_exact_mut(context).nth(sequence);
                if let Some(documents) = documents.filter(|_| has_documents) {
                    tokens.fill_documents(window, documents);
                }
            }
        }
        if tokens.has_pairs() {
            self.num_targets = batch as u64 / 2;
        }
        Ok(())
    }

    /// Cuts the filled sequences into the segments of the step, where the run has a warm-up.
    pub(crate) fn cut_segments(&mut self) {
        let BatchShape { context, has_documents, seqlen, .. } = self.shape;
        let Some(warmup) = seqlen else { return };
        let length = warmup.length_at(self.step, context);
        self.is_masked = has_documents || length < context;
        if length == context {
            return;
        }
        for sequence in self.documents.chunks_exact_mut(context) {
            for (position, start) in sequence.iter_mut().enumerate() {
                let segment = (position / length * length) as u32;
                *start = if has_documents { segment.max(*start) } else { segment };
            }
        }
    }

    /// Inputs and targets of a micro-batch, to be filled.
    pub(crate) fn microbatch_mut(&mut self, index: usize) -> (&mut [u32], &mut [u32]) {
        let range = self.microbatch_range(index);
        (&mut self.inputs[range.clone()], &mut self.targets[range])
    }

    /// Number of micro-batches.
    pub fn num_microbatches(&self) -> usize {
        self.shape.batch / self.shape.microbatch_size
    }

    /// Inputs and targets of micro-batch `index`.
    pub fn microbatch(&self, index: usize) -> (&[u32], &[u32]) {
        assert!(
            index < self.num_microbatches(),
            "micro-batch {index} of {}",
            self.num_microbatches()
        );
        let range = self.microbatch_range(index);
        (&self.inputs[range.clone()], &self.targets[range])
    }

    /// First position of the document or segment of each input of micro-batch `index`, in its
    /// sequence: its queries see no earlier key. None in a step without such a mask.
    pub fn documents(&self, index: usize) -> Option<&[u32]> {
        self.documents.get(self.microbatch_range(index)).filter(|_| self.is_masked)
    }

    /// Loss of each sequence of a micro-batch under the reference model of preferences.
    pub fn references(&self, microbatch: usize) -> Option<&[f64]> {
        let size = self.shape.microbatch_size;
        Some(&self.references.as_ref()?[microbatch * size..(microbatch + 1) * size])
    }

    /// Number of targets in these micro-batches.
    pub fn targets_in(&self, microbatches: impl IntoIterator<Item = usize>) -> u64 {
        let of_microbatch = |microbatch: usize| {
            self.microbatch(microbatch).1.iter().filter(|t| **t != IGNORE).count()
        };
        microbatches.into_iter().map(of_microbatch).sum::<usize>() as u64
    }

    fn microbatch_range(&self, index: usize) -> Range<usize> {
        let microbatch_tokens = self.shape.microbatch_size * self.shape.context;
        index * microbatch_tokens..(index + 1) * microbatch_tokens
    }
}

/// Writes a window as inputs and, one token later, targets; pads the rest. Tokens that the loss
/// leaves out are inputs, and no targets.
pub(crate) fn fill_window(
    tokens: &TokenSpan,
    window: Option<Window>,
    inputs: &mut [u32],
    targets: &mut [u32],
) -> Result<(), DataError> {
    let num_targets = window.map_or(0, |window| window.num_targets);
    if let Some(Window { start, .. }) = window {
        tokens.copy(start, &mut inputs[..num_targets])?;
        let (last, others) = targets[..num_targets].split_last_mut().expect("it predicts");
        others.copy_from_slice(&inputs[1..num_targets]);
        tokens.copy(start + num_targets, std::slice::from_mut(last))?;
        for (target, token) in targets[..num_targets].iter_mut().zip(start + 1..) {
            if !tokens.is_target(token) {
                *target = IGNORE;
            }
        }
    }
    inputs[num_targets..].fill(PAD);
    targets[num_targets..].fill(IGNORE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::corpus::Corpus;
    use lockstep_config::{EpochEnd, Order};

    const SHAPE: BatchShape =
        BatchShape { batch: 6, microbatch_size: 2, context: 5, has_documents: false, seqlen: None };

    #[test]
    fn microbatches_are_the_batch_cut_in_order_and_targets_run_one_token_ahead() {
        let corpus = Corpus::from_text("test", &"abcdefghij".repeat(30), 0.1).unwrap();
        let train = corpus.train();
        let sampler = train.sampler(1, 5, Documents::Packed, Order::Random);
        let order = SampleOrder::shared(sampler.clone(), &BatchPlan::constant(6), EpochEnd::Wrap);
        let mut batch = Batch::allocate(SHAPE);
        batch.fill(3, &order, train, MicrobatchFilter::Microbatches(&[true; 3])).unwrap();

        assert_eq!((batch.step, batch.first_sample, batch.num_targets), (3, 18, 30));
        let microbatches: Vec<u32> =
            (0..batch.num_microbatches()).flat_map(|i| batch.microbatch(i).0).copied().collect();
        assert_eq!(microbatches, batch.inputs);
        for (inputs, targets) in batch.inputs.chunks(5).zip(batch.targets.chunks(5)) {
            assert_eq!(inputs[1..], targets[..4]);
            assert!(targets.iter().all(|&t| t != IGNORE));
        }
        let mut expected = [0; 5];
        train.copy(sampler.locate(18 + 4).start, &mut expected).unwrap();
        assert_eq!(batch.microbatch(2).0[..5], expected);
    }

    #[test]
    fn only_selected_microbatches_are_filled_and_all_targets_are_counted() {
        let corpus = Corpus::from_text("test", &"abcdefghij".repeat(30), 0.1).unwrap();
        let sampler = corpus.train().sampler(1, 5, Documents::Packed, Order::Random);
        let order = SampleOrder::shared(sampler, &BatchPlan::constant(6), EpochEnd::Wrap);
        let mut whole = Batch::allocate(SHAPE);
        whole.fill(3, &order, corpus.train(), MicrobatchFilter::Microbatches(&[true; 3])).unwrap();
        let mut part = Batch::allocate(SHAPE);
        part.fill(3, &order, corpus.train(), MicrobatchFilter::Microbatches(&[false, true, false]))
            .unwrap();
        assert_eq!(part.num_targets, whole.num_targets);
        assert_eq!(part.microbatch(1), whole.microbatch(1));
        for other in [0, 2] {
            assert_eq!(part.microbatch(other), (&[0; 10][..], &[IGNORE; 10][..]));
        }
    }

    #[test]
    fn a_short_window_is_padded_with_ignored_targets() {
        let corpus = Corpus::from_text("test", "abcdefghij", 0.1).unwrap();
        let window = Window { epoch: 0, index: 0, start: 2, num_targets: 3 };
        let (mut inputs, mut targets) = ([7; 5], [7; 5]);
        fill_window(corpus.train(), Some(window), &mut inputs, &mut targets).unwrap();
        assert_eq!(inputs, [99, 100, 101, PAD, PAD]);
        assert_eq!(targets, [100, 101, 102, IGNORE, IGNORE]);
        fill_window(corpus.train(), None, &mut inputs, &mut targets).unwrap();
        assert_eq!((inputs, targets), ([PAD; 5], [IGNORE; 5]));
    }
}
