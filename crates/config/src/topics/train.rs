//! Steps, batches and validation.

use super::limits::MAX_BATCH;
use super::{BatchChange, Family, Recipe, SeqlenWarmup};
use crate::error::ConfigError;
use crate::field::{auto_or, auto_value};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, RuleContext, Rules, nearest_multiple, working};
use crate::topic::{choices, topic};
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::{MAX_STEPS, ValueType};

/// Largest micro-batch; times the largest number of leaves it is below the largest batch.
const MAX_MICROBATCH: i64 = 1 << 16;

/// Micro-batch sizes.
const MICROBATCH: ValueType = ValueType::integers(1, MAX_MICROBATCH);

topic! {
    /// Steps, batches and validation.
    pub struct Train at train, table "train" {
        /// Number of optimizer steps.
        steps: u64 = 1400, integer(1, MAX_STEPS);

        /// Number of passes over the training data, in place of train.steps, which follows from
        /// it; a fraction is a part of a pass.
        epochs: Option<f64> = none, float(Open(0.0), Closed(1e6)), in_identity_when(|_| false);

        /// Global batch: sequences per optimizer step over all workers; a multiple of
        /// train.microbatch times numerics.invariant_up_to.
        batch: usize = 8, integer(1, MAX_BATCH);

        /// Sequences per micro-batch; auto is the largest that fits into the memory of the device.
        microbatch_size as microbatch: usize = 1, or_auto(&MICROBATCH),
            access(
                |r| Some(auto_value(&r.train.microbatch_size, r.train.microbatch_is_auto)),
                |r, v| (r.train.microbatch_size, r.train.microbatch_is_auto) = auto_or(v, 1),
            );

        /// Whether the micro-batch size is chosen by memory; 1 until then.
        field microbatch_is_auto: bool;

        /// Seed of initial weights, dropout masks and data order.
        seed: u64 = 1, integer(0, i64::MAX);

        /// Steps between two validations; 0 validates only at the end.
        eval_every: u64 = 100, integer(0, MAX_STEPS);

        /// Number of batches per validation.
        eval_batches: usize = 8, integer(1, 1_000_000);

        /// Loss reduction over the targets of a batch: mean or sum.
        reduction: Reduction = "mean";

        /// Maximum number of consecutive steps skipped for non-finite gradients; 0 stops at the
        /// first.
        max_skipped: u64 = 0, integer(0, MAX_STEPS);

        /// Batch-size schedule: batches that replace train.batch after a number of training tokens.
        batch_schedule: Vec<BatchChange> = none, at_most(64);

        /// Sequence-length warm-up.
        part seqlen: SeqlenWarmup;

        /// Validation loss at which the run stops; checked every train.eval_every steps.
        target_loss: Option<f64> = none, float(Open(0.0), Closed(1000.0));
    }
}

choices! {
    /// Loss reduction over the targets of a batch.
    Reduction {
        /// Mean: the learning rate does not depend on the batch.
        Mean = "mean",
        /// Sum.
        Sum = "sum",
    }
}

/// A tenth of the run, so that a shortened run needs no second setting.
pub(super) fn default_warmup(recipe: &Recipe) -> u64 {
    recipe.train.steps / 10
}

impl Recipe {
    /// Number of micro-batches per optimizer step; exact, because the recipe is validated.
    pub const fn num_microbatches(&self) -> usize {
        self.train.batch / self.train.microbatch_size
    }

    /// Tokens per optimizer step over all workers.
    pub const fn tokens_per_step(&self) -> usize {
        self.train.batch * self.model.context
    }
}

pub(crate) const BATCH_RULES: Rules = Rules::new(&[Rule::new(
    &["train.batch", "train.microbatch", "numerics.invariant_up_to"],
    batch_makes_whole_microbatches,
)]);

fn batch_makes_whole_microbatches(c: &RuleContext<'_>) -> Option<ConfigError> {
    let Train { batch, microbatch_size, .. } = c.train;
    let leaves = c.num_leaves();
    let working_batch = nearest_multiple(batch, microbatch_size * leaves);
    if !batch.is_multiple_of(microbatch_size) {
        let works = |size| batch.is_multiple_of(size * leaves);
        let working = working(batch.min(MAX_MICROBATCH as usize), works, microbatch_size);
        let [batch_origin, microbatch_origin] =
            ["train.batch", "train.microbatch"].map(|name| c.origin(name).strength());
        if microbatch_origin > batch_origin && !working.is_empty() {
            let rule = format!("does not divide train.batch = {batch}");
            let about = ["train.microbatch", "train.batch"];
            return Some(c.error_about(&about, rule, format!("try {working}")));
        }
        let rule = format!("is not a multiple of train.microbatch = {microbatch_size}");
        return Some(c.error_about(&c.keys[..2], rule, format!("try {working_batch}")));
    }
    let microbatches = batch / microbatch_size;
    if microbatches.is_multiple_of(leaves) {
        return None;
    }
    let rule = format!(
        "makes {microbatches} {} of train.microbatch = {microbatch_size}, which \
         numerics.invariant_up_to = {leaves} does not divide",
        if microbatches == 1 { "micro-batch" } else { "micro-batches" },
    );
    let working_leaves = 1usize << microbatches.trailing_zeros();
    let fix = if leaves_serve_workers(c, working_leaves) {
        format!("train.batch = {working_batch} or numerics.invariant_up_to = {working_leaves}")
    } else {
        format!("train.batch = {working_batch}")
    };
    c.refuse(true, rule, fix)
}

/// Whether this number of leaves is enough for the workers that a source sets.
fn leaves_serve_workers(c: &RuleContext<'_>, leaves: usize) -> bool {
    let serve = |name: &str, workers: usize| !c.is_set(name) || workers <= leaves;
    !c.is_set("parallel.leaf_shares")
        && serve("run.workers", c.run.workers / c.parallel.workers_per_replica())
        && serve("parallel.data", c.parallel.data)
}

/// Refuses a batch that does not divide into whole micro-batches for each of `parts`, the value of
/// the key `name`.
pub(super) fn batch_divides(c: &RuleContext<'_>, name: &str, parts: usize) -> Option<ConfigError> {
    let Train { batch, microbatch_size, .. } = c.train;
    let unit = parts * microbatch_size;
    let rule =
        format!("is not a multiple of {name} = {parts} times train.microbatch = {microbatch_size}");
    let is_broken = unit > 0 && !batch.is_multiple_of(unit);
    c.refuse(is_broken, rule, batch.next_multiple_of(unit.max(1)))
}

pub(crate) const RULES: Rules = Rules::new(&[
    // Tokens ascend, and an entry at 0 tokens equals train.batch.
    Rule::new(&["train.batch_schedule", "train.batch"], |c| {
        let Train { batch, batch_schedule: changes, .. } = &c.train;
        if let Some(BatchChange { tokens: 0, batch: other }) = changes.first()
            && other != batch
        {
            let rule = format!("at tokens = 0 is not train.batch = {batch}");
            let fix = format!("try {batch} or train.batch = {other}");
            return Some(c.entry_error("[0].batch", other, rule, fix));
        }
        let later = changes.windows(2).position(|pair| pair[0].tokens >= pair[1].tokens)?;
        let (before, tokens) = (changes[later].tokens, changes[later + 1].tokens);
        let rule = format!("does not come after the {before} of the entry before it");
        let fix = format!("try {}", before + before.max(1));
        Some(c.entry_error(&format!("[{}].tokens", later + 1), tokens, rule, fix))
    }),
    // The rule of train.batch holds for every scheduled batch.
    Rule::new(&["train.batch_schedule", "train.microbatch", "numerics.invariant_up_to"], |c| {
        let (microbatch_size, leaves) = (c.train.microbatch_size, c.num_leaves());
        let unit = microbatch_size * leaves;
        let mut batches = c.train.batch_schedule.iter().map(|change| change.batch).enumerate();
        let (index, batch) = batches.find(|(_, batch)| !batch.is_multiple_of(unit))?;
        let rule = format!(
            "is not a multiple of train.microbatch = {microbatch_size} times \
             numerics.invariant_up_to = {leaves}"
        );
        let fix = format!("try {}", nearest_multiple(batch, unit));
        Some(c.entry_error(&format!("[{index}].batch"), batch, rule, fix))
    }),
    Rule::new(&["train.target_loss", "train.eval_every"], |c| {
        let is_unchecked = c.train.target_loss.is_some() && c.train.eval_every == 0;
        let rule = "is checked at validations, and train.eval_every = 0 has none before the end";
        let tenth = (c.train.steps / 10).max(1);
        c.refuse(is_unchecked, rule, format!("train.eval_every = {tenth}"))
    }),
]);

/// Rows of a matrix product below which a device is underused.
const MIN_MICROBATCH_ROWS: usize = 32;
/// Tokens per worker and step below which communication of the gradients takes longer than their
/// computation: a token costs 1.5 multiply-adds per byte of gradient.
const MIN_WORKER_TOKENS: usize = 64;
/// Samples per step below which the gradient is mostly noise.
const MIN_BATCH_SAMPLES: usize = 64;
/// Steps after which a run should have been validated.
const STEPS_WITHOUT_VALIDATION: u64 = 1000;
/// Largest fraction of the time for validation.
const MAX_EVALUATION_SHARE: f64 = 0.2;
/// The forward pass is about a third of a step.
const FORWARD_SHARE: f64 = 1.0 / 3.0;
/// Largest number of consecutive skipped steps of a healthy run.
const MAX_SKIPS: u64 = 10;

pub(crate) const LINTS: &[Lint] = lints! {
    "tiny-micro-batch": "a micro-batch has too few rows for efficient matrix products";
        if "train.microbatch x model.context < 32"; advice "raise train.microbatch";
        |r| let (size, rows) = (r.train.microbatch_size, r.train.microbatch_size * r.model.context);
            when r.model.family.is_text() && rows < MIN_MICROBATCH_ROWS =>
                "train.microbatch = {size} makes micro-batches of {rows} rows, too few for the \
                 cores";

    "little-work": "a worker computes few tokens per gradient exchange";
        if "train.batch x model.context / run.workers < 64, with several workers";
        advice "raise train.batch or lower run.workers";
        |r| let (batch, workers) = (r.train.batch, r.run.workers);
            let tokens = r.tokens_per_step() / workers;
            when r.model.family.is_text() && workers > 1 && tokens < MIN_WORKER_TOKENS =>
                "train.batch = {batch} gives each of run.workers = {workers} only {tokens} tokens \
                 per step, whose gradients cost more to exchange than to compute";

    "noisy-batch": "a step has few samples (tokens of a text)";
        if "train.batch x model.context < 64"; advice "raise train.batch";
        |r| let (batch, samples, problem) = (r.train.batch, r.tokens_per_step(), &r.model.problem);
            let has_noise = r.model.family != Family::Quadratic || problem.noise > 0.0;
            let is_part = r.model.family.is_text() || batch < problem.samples;
            when has_noise && is_part && samples < MIN_BATCH_SAMPLES =>
                "train.batch = {batch} is {samples} samples per step, mostly noise";

    "sum-of-gradients": "gradients are summed, so the update grows with the batch";
        if "train.reduction = sum";
        advice "set it to \"mean\", or divide optim.lr by the batch";
        |r| let (samples, lr) = (r.tokens_per_step(), r.optim.lr);
            when r.train.reduction == Reduction::Sum =>
                "train.reduction = \"sum\" applies optim.lr = {lr} to the sum of {samples} \
                 gradients";
};

pub(crate) const VALIDATION_LINTS: &[Lint] = lints! {
    "no-validation": "a long run is validated only at its end";
        if "train.eval_every = 0 with 1,000 steps or more";
        advice "set it to a tenth of train.steps";
        |r| let steps = r.train.steps;
            when r.train.eval_every == 0 && steps >= STEPS_WITHOUT_VALIDATION =>
                "train.eval_every = 0 has no validation in {steps} steps before the end";

    "frequent-validation": "a large part of the run is spent on validation";
        if "train.eval_batches / (3 train.eval_every) > 20 %";
        advice "raise train.eval_every or lower train.eval_batches";
        |r| let every = r.train.eval_every;
            let share = FORWARD_SHARE * r.train.eval_batches as f64 / every as f64;
            let percent = 100.0 * share;
            when every > 0 && share > MAX_EVALUATION_SHARE =>
                "train.eval_every = {every} adds about {percent:.0} % to the time of every step";

    "many-skips": "a diverged run skips many steps before it stops";
        if "train.max_skipped > 10"; advice "allow 10 or fewer";
        |r| let skips = r.train.max_skipped;
            when skips > MAX_SKIPS => "train.max_skipped = {skips} lets a diverged run continue";
};
