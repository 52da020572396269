//! Rules about the partition of samples over leaves or clients.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::Placement;

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if !context.recipe.is_partitioned() || !context.all_valid(&["sync.partition", "sync.mode"]) {
        return Vec::new();
    }
    [data_is_shared, batch_is_constant, enough_samples]
        .iter()
        .filter_map(|rule| rule(context))
        .collect()
}

/// A partition divides data that all workers read.
fn data_is_shared(context: &RuleContext<'_>) -> Option<ConfigError> {
    let recipe = context.recipe;
    if recipe.model.family.is_problem() || recipe.data.placement == Placement::Shared {
        return None;
    }
    let why = "partitions data that all workers read";
    context.incompatible(["sync.partition", "data.placement"], "\"shared\"", "shared", why)
}

/// Every part contributes a constant number of samples per step.
fn batch_is_constant(context: &RuleContext<'_>) -> Option<ConfigError> {
    if context.recipe.train.batch_schedule.is_empty() {
        return None;
    }
    let why = "takes a constant number of samples per part and step";
    context.incompatible(["sync.partition", "train.batch_schedule"], "[]", "shared", why)
}

/// Every part has at least one sample.
fn enough_samples(context: &RuleContext<'_>) -> Option<ConfigError> {
    let (parts, samples) = (context.recipe.num_parts(), context.recipe.model.problem.samples);
    let involved = ["problem.samples", "sync.partition"];
    if !context.recipe.model.family.is_problem()
        || samples >= parts
        || !context.all_valid(&involved)
    {
        return None;
    }
    let rule = format!("is less than the {parts} parts of the partition");
    Some(context.error(&involved, rule, format!("try {}", parts * 10)))
}
