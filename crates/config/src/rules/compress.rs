//! Rules about compression: where gradients are whole, and what must not be lost for good.

use super::Facts;
use crate::error::ConfigError;
use crate::recipe::{CompressMethod, Dtype, OptimName, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if !facts.recipe.compress.is_on() || !facts.sound(&["compress.method"]) {
        return Vec::new();
    }
    let rules = [
        gradients_are_whole,
        gradients_are_wide,
        workers_stay,
        adam_is_adam,
        adam_warms_up,
        nothing_is_lost,
    ];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// Every worker adds up all that was written.
fn gradients_are_whole(facts: &Facts<'_>) -> Option<ConfigError> {
    let (parallel, sync) = (&facts.recipe.parallel, facts.recipe.sync.mode);
    let why = "writes gradients of the whole model, in every step";
    if parallel.zero > 0 {
        needs(facts, "parallel.zero", "0", why)
    } else if parallel.pipeline > 1 {
        needs(facts, "parallel.pipeline", "1", why)
    } else if parallel.tensor > 1 {
        needs(facts, "parallel.tensor", "1", why)
    } else if sync != SyncMode::AllReduce {
        needs(facts, "sync.mode", "\"all-reduce\"", why)
    } else {
        None
    }
}

/// What is written is not rounded on its way too, and keeps no error that a scale has changed.
fn gradients_are_wide(facts: &Facts<'_>) -> Option<ConfigError> {
    let precision = &facts.recipe.precision;
    if precision.compute == Dtype::F16 {
        let why = "keeps what was left out, at one scale of the loss";
        return needs(facts, "precision.compute", "\"bf16\"", why);
    }
    if precision.wire != Dtype::F32 {
        let why = "writes gradients in a format of its own";
        return needs(facts, "precision.wire", "\"f32\"", why);
    }
    None
}

/// What a worker has left out so far has nowhere to go when it does.
fn workers_stay(facts: &Facts<'_>) -> Option<ConfigError> {
    let elastic = facts.recipe.run.elastic.filter(|_| facts.recipe.compress.error_feedback)?;
    let why = "keeps what was left out on workers that must not come and go";
    needs(facts, "run.workers", &elastic.max.to_string(), why)
}

/// The momentum that travels is Adam's, of gradients that are not clipped; all of it all the time.
fn adam_is_adam(facts: &Facts<'_>) -> Option<ConfigError> {
    let optim = &facts.recipe.optim;
    let changes = |group: &crate::Group| group.freeze_after.or(group.unfreeze_at).is_some();
    if optim.groups.iter().any(changes) {
        let why = "keeps what was left out of parameters that are always trained";
        return needs(facts, "optim.groups", "[]", why);
    }
    if facts.recipe.compress.method != CompressMethod::OneBitAdam {
        return None;
    }
    if !matches!(optim.name, OptimName::Adam | OptimName::AdamW) {
        return needs(facts, "optim.name", "\"adamw\"", "sends the momentum of Adam");
    }
    if optim.clip > 0.0 {
        return needs(facts, "optim.clip", "0.0", "sends momentum that knows no clipping");
    }
    None
}

/// Second moments must be something before they are frozen.
fn adam_warms_up(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["compress.warmup_steps", "compress.method", "train.steps"];
    let compress = &facts.recipe.compress;
    let is_cold = compress.method == CompressMethod::OneBitAdam && compress.warmup_steps == 0;
    if !is_cold || !facts.sound(&involved) {
        return None;
    }
    let rule = "freezes second moments of Adam that are zero".to_owned();
    let fix = format!("try {}", (facts.recipe.train.steps / 5).max(1));
    Some(facts.error(&involved, rule, fix))
}

/// A biased method needs error feedback.
fn nothing_is_lost(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["compress.error_feedback", "compress.method", "compress.force"];
    let compress = &facts.recipe.compress;
    let is_lossy = compress.is_biased() && !compress.error_feedback && !compress.force;
    if !is_lossy || !facts.sound(&involved) {
        return None;
    }
    let method = compress.method;
    let rule = format!("leaves out the same every time with compress.method = \"{method}\"");
    let fix = "try true, or compress.force = true to see what comes of it".to_owned();
    Some(facts.error(&involved, rule, fix))
}

fn needs(facts: &Facts<'_>, key: &str, better: &str, why: &str) -> Option<ConfigError> {
    facts.needs(["compress.method", key], better, "none", why)
}
