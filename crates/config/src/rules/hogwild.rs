//! Rules about Hogwild: lock-free SGD of the threads of one worker.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::{OptimName, Recipe, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if context.recipe.sync.mode != SyncMode::Hogwild || !context.all_valid(&["sync.mode"]) {
        return Vec::new();
    }
    let rules = [run_has_one_worker, threads_divide_the_batch, update_is_plain_sgd];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// The threads share the memory of one worker.
fn run_has_one_worker(context: &RuleContext<'_>) -> Option<ConfigError> {
    let (key, better) = if context.recipe.run.workers > 1 {
        ("run.workers", "1")
    } else if context.recipe.parallel.zero > 0 {
        ("parallel.zero", "0")
    } else {
        return None;
    };
    let why = "updates the memory of one worker with sync.threads";
    context.incompatible(["sync.mode", key], better, "all-reduce", why)
}

/// The threads have equal numbers of micro-batches.
fn threads_divide_the_batch(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["train.batch", "sync.threads", "train.microbatch"];
    let (train, threads) = (&context.recipe.train, context.recipe.sync.threads);
    let unit = threads * train.microbatch_size;
    if unit == 0 || !context.all_valid(&involved) || train.batch.is_multiple_of(unit) {
        return None;
    }
    let rule = format!(
        "is not a multiple of sync.threads = {threads} times train.microbatch = {}",
        train.microbatch_size
    );
    Some(context.error(&involved, rule, format!("try {}", train.batch.next_multiple_of(unit))))
}

/// A lock-free update is an independent addition to each weight.
fn update_is_plain_sgd(context: &RuleContext<'_>) -> Option<ConfigError> {
    let Recipe { optim, train, .. } = context.recipe;
    let (key, better) = if optim.name != OptimName::Sgd {
        ("optim.name", "\"sgd\"")
    } else if optim.weight_decay > 0.0 {
        ("optim.weight_decay", "0.0")
    } else if !optim.groups.is_empty() {
        ("optim.groups", "[]")
    } else if !train.batch_schedule.is_empty() {
        ("train.batch_schedule", "[]")
    } else {
        return None;
    };
    context.incompatible(
        ["sync.mode", key],
        better,
        "all-reduce",
        "supports plain SGD updates only",
    )
}
