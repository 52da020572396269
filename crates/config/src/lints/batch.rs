//! Lints about batch and micro-batch sizes.

use super::{Lint, is_text};
use crate::recipe::{Family, Recipe, Reduction};

/// Rows of a matrix product below which a device is underused.
const MIN_MICROBATCH_ROWS: usize = 32;
/// Tokens per worker and step below which communication of the gradients takes longer than their
/// computation: a token costs 1.5 multiply-adds per byte of gradient.
const MIN_WORKER_TOKENS: usize = 64;
/// Samples per step below which the gradient is mostly noise.
const MIN_BATCH_SAMPLES: usize = 64;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "tiny-micro-batch",
        condition: "a micro-batch has too few rows for efficient matrix products",
        threshold: "train.microbatch x model.context < 32",
        advice: "raise train.microbatch",
        check: tiny_microbatch,
    },
    Lint {
        id: "little-work",
        condition: "a worker computes few tokens per gradient exchange",
        threshold: "train.batch x model.context / run.workers < 64, with several workers",
        advice: "raise train.batch or lower run.workers",
        check: little_work,
    },
    Lint {
        id: "noisy-batch",
        condition: "a step has few samples (tokens of a text)",
        threshold: "train.batch x model.context < 64",
        advice: "raise train.batch",
        check: noisy_batch,
    },
    Lint {
        id: "sum-of-gradients",
        condition: "gradients are summed, so the update grows with the batch",
        threshold: "train.reduction = sum",
        advice: "set it to \"mean\", or divide optim.lr by the batch",
        check: sum_of_gradients,
    },
];

fn tiny_microbatch(recipe: &Recipe) -> Option<String> {
    let (microbatch_size, context) = (recipe.train.microbatch_size, recipe.model.context);
    let rows = microbatch_size * context;
    (is_text(recipe) && rows < MIN_MICROBATCH_ROWS).then(|| {
        format!(
            "train.microbatch = {microbatch_size} makes micro-batches of {rows} rows, too few \
                 for the cores"
        )
    })
}

fn little_work(recipe: &Recipe) -> Option<String> {
    let (tokens, workers) = (recipe.tokens_per_step(), recipe.run.workers);
    let is_little = workers > 1 && tokens / workers < MIN_WORKER_TOKENS;
    (is_text(recipe) && is_little).then(|| {
        format!(
            "train.batch = {} gives each of run.workers = {workers} only {} tokens per step, whose \
             gradients cost more to exchange than to compute",
            recipe.train.batch,
            tokens / workers
        )
    })
}

fn noisy_batch(recipe: &Recipe) -> Option<String> {
    let (samples, problem) = (recipe.tokens_per_step(), &recipe.model.problem);
    let has_noise = recipe.model.family != Family::Quadratic || problem.noise > 0.0;
    let is_part = is_text(recipe) || recipe.train.batch < problem.samples;
    (has_noise && is_part && samples < MIN_BATCH_SAMPLES).then(|| {
        let batch = recipe.train.batch;
        format!("train.batch = {batch} is {samples} samples per step, mostly noise")
    })
}

fn sum_of_gradients(recipe: &Recipe) -> Option<String> {
    (recipe.train.reduction == Reduction::Sum).then(|| {
        let (samples, lr) = (recipe.tokens_per_step(), recipe.optim.lr);
        format!(
            "train.reduction = \"sum\" applies optim.lr = {lr} to the sum of {samples} gradients"
        )
    })
}
