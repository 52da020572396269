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
    let rules = [
        workers_hold_the_model,
        workers_stay,
        gradients_are_means,
        nothing_overflows,
        what_is_chosen_stays,
        every_worker_has_steps,
        groups_are_of_one_size,
        inner_rounds_are_of_something,
        fragments_have_steps,
    ];
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

/// What is measured is one number.
fn what_is_chosen_stays(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.final_local_steps", "sync.local_steps"];
    let sync = &facts.recipe.sync;
    if !facts.sound(&involved) || !sync.local_steps_is_auto || sync.final_local_steps == 1 {
        return None;
    }
    let rule = "changes what sync.local_steps = \"auto\" chooses once".to_owned();
    Some(facts.error(&involved, rule, "leave it away, or try sync.local_steps = 8".to_owned()))
}

/// One number for each worker, of rounds that all have the same number of steps.
fn every_worker_has_steps(facts: &Facts<'_>) -> Option<ConfigError> {
    let others = ["sync.final_local_steps", "sync.group_workers", "sync.fragments"];
    let involved = ["sync.worker_steps", "sync.local_steps", "run.workers"];
    let (sync, workers) = (&facts.recipe.sync, facts.recipe.run.workers);
    let len = sync.local_steps;
    if !facts.sound(&involved) || !facts.sound(&others) || sync.worker_steps.is_empty() {
        return None;
    }
    let most = sync.worker_steps.iter().max().copied().unwrap_or(0);
    let (rule, fix) = if sync.worker_steps.len() != workers {
        let each = vec![len.to_string(); workers].join(", ");
        (format!("are not one for each of run.workers = {workers}"), format!("try [{each}]"))
    } else if sync.local_steps_is_auto || sync.final_local_steps != len {
        let fix = format!("try sync.local_steps = {most}");
        ("are parts of rounds that must all have the same steps".to_owned(), fix)
    } else if sync.group_workers > 1 || sync.fragments > 1 {
        let fix = "try sync.group_workers = 0 and sync.fragments = 1".to_owned();
        ("are of workers that meet all at once".to_owned(), fix)
    } else if most > len {
        (format!("are more than the {len} of a round"), format!("try sync.local_steps = {most}"))
    } else {
        return None;
    };
    Some(facts.error(&involved, rule, fix))
}

/// Every worker is in a group as large as the others.
fn groups_are_of_one_size(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.group_workers", "run.workers"];
    let (size, workers) = (facts.recipe.sync.group_workers, facts.recipe.run.workers);
    if !facts.sound(&involved) || size < 2 || workers.is_multiple_of(size) {
        return None;
    }
    let sizes: Vec<String> =
        (2..=workers).filter(|n| workers.is_multiple_of(*n)).map(|n| n.to_string()).collect();
    let rule = format!("does not divide run.workers = {workers}");
    let fix =
        if sizes.is_empty() { "try 0".to_owned() } else { format!("try {}", sizes.join(", ")) };
    Some(facts.error(&involved, rule, fix))
}

/// Without groups and fragments there is nothing to average more often.
fn inner_rounds_are_of_something(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.inner_rounds", "sync.group_workers", "sync.fragments"];
    let sync = &facts.recipe.sync;
    let has_some = sync.group_workers > 1 || sync.fragments > 1;
    if !facts.sound(&involved) || sync.inner_rounds == 1 || has_some {
        return None;
    }
    let rule = "counts rounds of groups or fragments, and there are none".to_owned();
    Some(facts.error(&involved, rule, "try 1, or sync.group_workers = 2".to_owned()))
}

/// Each fragment has a step of its own, and all workers meet in it.
fn fragments_have_steps(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.fragments", "sync.local_steps", "sync.group_workers"];
    let sync = &facts.recipe.sync;
    let least = sync.local_steps.min(sync.final_local_steps);
    if !facts.sound(&involved) || sync.fragments < 2 {
        return None;
    }
    if sync.group_workers > 1 {
        let rule = format!("are of all workers, and sync.group_workers = {}", sync.group_workers);
        return Some(facts.error(&involved, rule, "try 1, or sync.group_workers = 0".to_owned()));
    }
    if sync.local_steps_is_auto || sync.fragments as u64 > least {
        let rule = format!("is more than a round's steps, of which there are {least}");
        let fix = format!("try {least}, or sync.local_steps = {}", sync.fragments);
        return Some(facts.error(&involved, rule, fix));
    }
    None
}

fn needs(facts: &Facts<'_>, key: &str, better: &str, why: &str) -> Option<ConfigError> {
    facts.needs(["sync.mode", key], better, "all-reduce", why)
}
