//! Rules about parts of the samples: what they are cut out of, and that there are enough.

use super::Facts;
use crate::error::ConfigError;
use crate::recipe::Placement;

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if !facts.recipe.has_parts() || !facts.sound(&["sync.partition", "sync.mode"]) {
        return Vec::new();
    }
    [texts_are_shared, batches_stay, enough_samples].iter().filter_map(|rule| rule(facts)).collect()
}

/// Parts are cut out of one text, which all workers read.
fn texts_are_shared(facts: &Facts<'_>) -> Option<ConfigError> {
    let recipe = facts.recipe;
    if recipe.model.family.is_problem() || recipe.data.placement == Placement::Shared {
        return None;
    }
    let why = "cuts one text into parts";
    facts.needs(["sync.partition", "data.placement"], "\"shared\"", "shared", why)
}

/// A part goes through its samples at one pace.
fn batches_stay(facts: &Facts<'_>) -> Option<ConfigError> {
    if facts.recipe.train.batch_schedule.is_empty() {
        return None;
    }
    let why = "gives every part as many samples in every step";
    facts.needs(["sync.partition", "train.batch_schedule"], "[]", "shared", why)
}

/// Every part has a sample.
fn enough_samples(facts: &Facts<'_>) -> Option<ConfigError> {
    let (parts, samples) = (facts.recipe.num_parts(), facts.recipe.model.problem.samples);
    let involved = ["problem.samples", "sync.partition"];
    if !facts.recipe.model.family.is_problem() || samples >= parts || !facts.sound(&involved) {
        return None;
    }
    let rule = format!("is less than the {parts} parts that it is divided into");
    Some(facts.error(&involved, rule, format!("try {}", parts * 10)))
}
