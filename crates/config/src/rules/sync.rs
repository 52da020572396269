//! Rules about rounds: what a worker must hold to take steps of its own.

pub(super) mod uneven;

use super::Facts;
use crate::error::ConfigError;
use crate::recipe::{Dtype, Reduction, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if facts.recipe.sync.mode == SyncMode::AllReduce || !facts.sound(&["sync.mode"]) {
        return Vec::new();
    }
    let rules = [workers_hold_the_model, workers_stay, gradients_are_means, nothing_overflows];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// A worker that takes a step alone needs all of the model and of its optimizer.
fn workers_hold_the_model(facts: &Facts<'_>) -> Option<ConfigError> {
    let parallel = &facts.recipe.parallel;
    let (key, better) = if parallel.zero > 0 {
        ("parallel.zero", 0)
    } else if parallel.pipeline > 1 {
        ("parallel.pipeline", 1)
    } else if parallel.tensor > 1 {
        ("parallel.tensor", 1)
    } else {
        return None;
    };
    needs(facts, key, &better.to_string(), "takes steps on workers that hold the whole model")
}

/// What workers keep for themselves between rounds has nowhere to go when they do.
fn workers_stay(facts: &Facts<'_>) -> Option<ConfigError> {
    let elastic = facts.recipe.run.elastic?;
    let better = elastic.max.to_string();
    needs(facts, "run.workers", &better, "keeps momentum on workers that must not come and go")
}

/// The mean over a worker's own samples is as long as that over all; the sum is not.
fn gradients_are_means(facts: &Facts<'_>) -> Option<ConfigError> {
    if facts.recipe.train.reduction == Reduction::Mean {
        return None;
    }
    needs(facts, "train.reduction", "\"mean\"", "takes steps by the mean of a worker's samples")
}

/// One scale of the loss is for all workers, and so is what travels in every step.
fn nothing_overflows(facts: &Facts<'_>) -> Option<ConfigError> {
    let precision = &facts.recipe.precision;
    if precision.compute == Dtype::F16 {
        let why = "takes steps whose loss has no scale of its own";
        return needs(facts, "precision.compute", "\"bf16\"", why);
    }
    if precision.wire != Dtype::F32 {
        return needs(facts, "precision.wire", "\"f32\"", "sends changes, and no gradients");
    }
    None
}

fn needs(facts: &Facts<'_>, key: &str, better: &str, why: &str) -> Option<ConfigError> {
    facts.needs(["sync.mode", key], better, "all-reduce", why)
}
