//! Rules about straggler policies and delayed gradients.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::{Dtype, Placement, Reduction, StragglerPolicy};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let (mut errors, stragglers) = (Vec::new(), &context.recipe.sync.stragglers);
    if stragglers.policy != StragglerPolicy::Wait && context.all_valid(&["sync.stragglers"]) {
        let rules = [
            replicas_are_whole,
            missing_microbatches_are_supported,
            microbatches_can_move,
            workers_remain,
        ];
        errors.extend(rules.iter().filter_map(|rule| rule(context)));
    }
    if context.recipe.sync.gradient_delay > 0 && context.all_valid(&["sync.gradient_delay"]) {
        errors.extend(delayed_gradients_are_whole(context));
    }
    errors
}

/// The first key that shards or compresses the model's gradients, with its neutral value.
fn sharding_key(context: &RuleContext<'_>) -> Option<(&'static str, &'static str)> {
    let parallel = &context.recipe.parallel;
    if parallel.zero > 0 {
        Some(("parallel.zero", "0"))
    } else if parallel.pipeline > 1 {
        Some(("parallel.pipeline", "1"))
    } else if parallel.tensor > 1 {
        Some(("parallel.tensor", "1"))
    } else if context.recipe.compress.is_on() {
        Some(("compress.method", "\"none\""))
    } else {
        None
    }
}

/// A worker that may be left out must not own a shard.
fn replicas_are_whole(context: &RuleContext<'_>) -> Option<ConfigError> {
    let (key, better) = sharding_key(context)?;
    let why = "needs whole, uncompressed replicas on every worker";
    context.incompatible(["sync.stragglers", key], better, "wait", why)
}

/// Missing micro-batches are compensated by the mean; a sum has no such correction.
fn missing_microbatches_are_supported(context: &RuleContext<'_>) -> Option<ConfigError> {
    let recipe = context.recipe;
    if !recipe.sync.stragglers.policy.loses_microbatches() {
        return None;
    }
    let about = "sync.stragglers";
    if recipe.train.reduction == Reduction::Sum {
        let why = "takes the mean over the micro-batches that arrived";
        return context.incompatible([about, "train.reduction"], "\"mean\"", "wait", why);
    }
    if recipe.precision.wire != Dtype::F32 {
        let why = "keeps f32 gradients until the participants are known";
        return context.incompatible([about, "precision.wire"], "\"f32\"", "wait", why);
    }
    None
}

/// A micro-batch that moves to another worker needs its data there.
fn microbatches_can_move(context: &RuleContext<'_>) -> Option<ConfigError> {
    let recipe = context.recipe;
    let moves = recipe.sync.stragglers.policy == StragglerPolicy::Shares;
    if !moves || recipe.data.placement != Placement::Local {
        return None;
    }
    let why = "moves micro-batches between workers";
    context.incompatible(["sync.stragglers", "data.placement"], "\"shared\"", "wait", why)
}

/// A step needs at least one worker.
fn workers_remain(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.backups", "run.workers"];
    let (stragglers, workers) = (&context.recipe.sync.stragglers, context.recipe.parallel.data);
    let is_backup = stragglers.policy == StragglerPolicy::Backup;
    if !is_backup || stragglers.backups < workers || !context.all_valid(&involved) {
        return None;
    }
    let rule = format!("leaves none of {workers} workers");
    let fix = match workers {
        0 | 1 => "try run.workers = 2".to_owned(),
        _ => format!("try {}", workers - 1),
    };
    Some(context.error(&involved, rule, fix))
}

/// A delayed gradient is kept whole until the next step.
fn delayed_gradients_are_whole(context: &RuleContext<'_>) -> Option<ConfigError> {
    let why = "keeps the whole gradient of the previous step";
    let (key, better) = if let Some(divides) = sharding_key(context) {
        divides
    } else if context.recipe.sync.stragglers.policy != StragglerPolicy::Wait {
        ("sync.stragglers", "\"wait\"")
    } else if context.recipe.precision.compute == Dtype::F16 {
        ("precision.compute", "\"bf16\"")
    } else if context.recipe.precision.wire != Dtype::F32 {
        ("precision.wire", "\"f32\"")
    } else {
        return None;
    };
    let names = ["sync.gradient_delay", key];
    let value =
        crate::keys::find(key).filter(|_| context.all_valid(&names))?.get(context.recipe)?;
    let rule = format!("{why}, and {key} = {value}");
    Some(context.error(&names, rule, format!("try {key} = {better} or sync.gradient_delay = 0")))
}
