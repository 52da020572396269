//! Rules about local steps: whole replicas, fixed workers and rounds.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::{Dtype, Reduction, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if context.recipe.sync.mode == SyncMode::AllReduce || !context.all_valid(&["sync.mode"]) {
        return Vec::new();
    }
    let rules = [
        replicas_are_whole,
        workers_are_fixed,
        gradients_are_means,
        gradients_are_unscaled,
        automatic_rounds_are_constant,
        worker_steps_fit_the_round,
        groups_have_equal_size,
        inner_rounds_need_groups,
        fragments_fit_the_round,
    ];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// A local step needs the whole model and optimizer on the worker.
fn replicas_are_whole(context: &RuleContext<'_>) -> Option<ConfigError> {
    let parallel = &context.recipe.parallel;
    let (key, better) = if parallel.zero > 0 {
        ("parallel.zero", 0)
    } else if parallel.pipeline > 1 {
        ("parallel.pipeline", 1)
    } else if parallel.tensor > 1 {
        ("parallel.tensor", 1)
    } else {
        return None;
    };
    incompatible(
        context,
        key,
        &better.to_string(),
        "takes local steps, which need the whole model on every worker",
    )
}

/// The local state of a worker is lost when the worker leaves.
fn workers_are_fixed(context: &RuleContext<'_>) -> Option<ConfigError> {
    let elastic = context.recipe.run.elastic?;
    let better = elastic.max.to_string();
    incompatible(
        context,
        "run.workers",
        &better,
        "keeps momentum on each worker, so the workers must not change",
    )
}

/// The mean over a worker's samples has the scale of the global mean; a sum has not.
fn gradients_are_means(context: &RuleContext<'_>) -> Option<ConfigError> {
    if context.recipe.train.reduction == Reduction::Mean {
        return None;
    }
    incompatible(
        context,
        "train.reduction",
        "\"mean\"",
        "takes local steps with the mean of a worker's samples",
    )
}

/// The loss scale and the wire format are those of gradients summed in every step.
fn gradients_are_unscaled(context: &RuleContext<'_>) -> Option<ConfigError> {
    let precision = &context.recipe.precision;
    if precision.compute == Dtype::F16 {
        let why = "takes local steps without a loss scale";
        return incompatible(context, "precision.compute", "\"bf16\"", why);
    }
    if precision.wire != Dtype::F32 {
        return incompatible(
            context,
            "precision.wire",
            "\"f32\"",
            "sends weight updates instead of gradients",
        );
    }
    None
}

/// An automatic number of local steps is constant.
fn automatic_rounds_are_constant(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.final_local_steps", "sync.local_steps"];
    let sync = &context.recipe.sync;
    if !context.all_valid(&involved) || !sync.local_steps_is_auto || sync.final_local_steps == 1 {
        return None;
    }
    let rule = "changes a number that sync.local_steps = \"auto\" chooses once".to_owned();
    Some(context.error(&involved, rule, "remove it, or try sync.local_steps = 8".to_owned()))
}

/// One number per worker, in rounds of constant length without groups and fragments.
fn worker_steps_fit_the_round(context: &RuleContext<'_>) -> Option<ConfigError> {
    let others = ["sync.final_local_steps", "sync.group_workers", "sync.fragments"];
    let involved = ["sync.worker_steps", "sync.local_steps", "run.workers"];
    let (sync, workers) = (&context.recipe.sync, context.recipe.run.workers);
    let len = sync.local_steps;
    if !context.all_valid(&involved) || !context.all_valid(&others) || sync.worker_steps.is_empty()
    {
        return None;
    }
    let most = sync.worker_steps.iter().max().copied().unwrap_or(0);
    let (rule, fix) = if sync.worker_steps.len() != workers {
        let each = vec![len.to_string(); workers].join(", ");
        (format!("needs one number for each of run.workers = {workers}"), format!("try [{each}]"))
    } else if sync.local_steps_is_auto || sync.final_local_steps != len {
        let fix = format!("try sync.local_steps = {most}");
        ("needs rounds of constant length".to_owned(), fix)
    } else if sync.group_workers > 1 || sync.fragments > 1 {
        let fix = "try sync.group_workers = 0 and sync.fragments = 1".to_owned();
        ("needs rounds without groups and fragments".to_owned(), fix)
    } else if most > len {
        (format!("exceeds the {len} steps of a round"), format!("try sync.local_steps = {most}"))
    } else {
        return None;
    };
    Some(context.error(&involved, rule, fix))
}

/// Groups have equal sizes.
fn groups_have_equal_size(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.group_workers", "run.workers"];
    let (size, workers) = (context.recipe.sync.group_workers, context.recipe.run.workers);
    if !context.all_valid(&involved) || size < 2 || workers.is_multiple_of(size) {
        return None;
    }
    let sizes: Vec<String> =
        (2..=workers).filter(|n| workers.is_multiple_of(*n)).map(|n| n.to_string()).collect();
    let rule = format!("does not divide run.workers = {workers}");
    let fix =
        if sizes.is_empty() { "try 0".to_owned() } else { format!("try {}", sizes.join(", ")) };
    Some(context.error(&involved, rule, fix))
}

/// Inner rounds average groups or fragments.
fn inner_rounds_need_groups(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.inner_rounds", "sync.group_workers", "sync.fragments"];
    let sync = &context.recipe.sync;
    let has_some = sync.group_workers > 1 || sync.fragments > 1;
    if !context.all_valid(&involved) || sync.inner_rounds == 1 || has_some {
        return None;
    }
    let rule = "needs groups or fragments, and there are none".to_owned();
    Some(context.error(&involved, rule, "try 1, or sync.group_workers = 2".to_owned()))
}

/// Each fragment has a step of the round in which all workers average it.
fn fragments_fit_the_round(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.fragments", "sync.local_steps", "sync.group_workers"];
    let sync = &context.recipe.sync;
    let least = sync.local_steps.min(sync.final_local_steps);
    if !context.all_valid(&involved) || sync.fragments < 2 {
        return None;
    }
    if sync.group_workers > 1 {
        let rule = format!(
            "are averaged over all workers, and sync.group_workers = {}",
            sync.group_workers
        );
        return Some(context.error(&involved, rule, "try 1, or sync.group_workers = 0".to_owned()));
    }
    if sync.local_steps_is_auto || sync.fragments as u64 > least {
        let rule = format!("is more than the {least} steps of a round");
        let fix = format!("try {least}, or sync.local_steps = {}", sync.fragments);
        return Some(context.error(&involved, rule, fix));
    }
    None
}

fn incompatible(
    context: &RuleContext<'_>,
    key: &str,
    better: &str,
    why: &str,
) -> Option<ConfigError> {
    context.incompatible(["sync.mode", key], better, "all-reduce", why)
}
