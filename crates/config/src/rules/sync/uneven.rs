//! Rules about workers that are late, and about gradients that are.

use super::super::Facts;
use crate::error::ConfigError;
use crate::recipe::{Dtype, Placement, Reduction, Stragglers};

/// Every broken rule, in the order of the table of keys.
pub(in crate::rules) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    let (mut errors, uneven) = (Vec::new(), &facts.recipe.sync.uneven);
    if uneven.stragglers != Stragglers::Wait && facts.sound(&["sync.stragglers"]) {
        let rules = [
            stragglers_hold_the_model,
            microbatches_may_be_missing,
            microbatches_may_move,
            some_are_left,
        ];
        errors.extend(rules.iter().filter_map(|rule| rule(facts)));
    }
    if uneven.delay > 0 && facts.sound(&["sync.delay"]) {
        errors.extend(delayed_are_whole(facts));
    }
    errors
}

/// The first of the keys that divides the model among workers, with what would not.
fn divides_the_model(facts: &Facts<'_>) -> Option<(&'static str, &'static str)> {
    let parallel = &facts.recipe.parallel;
    if parallel.zero > 0 {
        Some(("parallel.zero", "0"))
    } else if parallel.pipeline > 1 {
        Some(("parallel.pipeline", "1"))
    } else if parallel.tensor > 1 {
        Some(("parallel.tensor", "1"))
    } else if facts.recipe.compress.is_on() {
        Some(("compress.method", "\"none\""))
    } else {
        None
    }
}

/// Who can be left out must not be the only one that holds something.
fn stragglers_hold_the_model(facts: &Facts<'_>) -> Option<ConfigError> {
    let (key, better) = divides_the_model(facts)?;
    let why = "is about workers that each hold the whole model and send its gradients as they are";
    facts.needs(["sync.stragglers", key], better, "wait", why)
}

/// What is missing is made up for by dividing by less; a sum is not divided.
fn microbatches_may_be_missing(facts: &Facts<'_>) -> Option<ConfigError> {
    let recipe = facts.recipe;
    if !recipe.sync.uneven.stragglers.loses_microbatches() {
        return None;
    }
    let about = "sync.stragglers";
    if recipe.train.reduction == Reduction::Sum {
        let why = "takes the mean over the micro-batches that are there";
        return facts.needs([about, "train.reduction"], "\"mean\"", "wait", why);
    }
    if recipe.precision.wire != Dtype::F32 {
        let why = "keeps gradients as they are until it is known whose count";
        return facts.needs([about, "precision.wire"], "\"f32\"", "wait", why);
    }
    None
}

/// A micro-batch that goes to another worker needs its text there.
fn microbatches_may_move(facts: &Facts<'_>) -> Option<ConfigError> {
    let recipe = facts.recipe;
    let moves = recipe.sync.uneven.stragglers == Stragglers::Shares;
    if !moves || recipe.data.placement != Placement::Local {
        return None;
    }
    let why = "moves micro-batches from worker to worker";
    facts.needs(["sync.stragglers", "data.placement"], "\"shared\"", "wait", why)
}

/// A step needs somebody.
fn some_are_left(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.backups", "run.workers"];
    let (uneven, workers) = (&facts.recipe.sync.uneven, facts.recipe.parallel.data);
    let is_backup = uneven.stragglers == Stragglers::Backup;
    if !is_backup || uneven.backups < workers || !facts.sound(&involved) {
        return None;
    }
    let rule = format!("leaves nobody of {workers} workers");
    let fix = match workers {
        0 | 1 => "try run.workers = 2".to_owned(),
        _ => format!("try {}", workers - 1),
    };
    Some(facts.error(&involved, rule, fix))
}

/// A gradient that is applied a step later is kept whole until then.
fn delayed_are_whole(facts: &Facts<'_>) -> Option<ConfigError> {
    let why = "keeps the whole gradient of the step before";
    let (key, better) = if let Some(divides) = divides_the_model(facts) {
        divides
    } else if facts.recipe.sync.uneven.stragglers != Stragglers::Wait {
        ("sync.stragglers", "\"wait\"")
    } else if facts.recipe.precision.compute == Dtype::F16 {
        ("precision.compute", "\"bf16\"")
    } else if facts.recipe.precision.wire != Dtype::F32 {
        ("precision.wire", "\"f32\"")
    } else {
        return None;
    };
    let names = ["sync.delay", key];
    let value = crate::keys::find(key).filter(|_| facts.sound(&names))?.get(facts.recipe)?;
    let rule = format!("{why}, and {key} = {value}");
    Some(facts.error(&names, rule, format!("try {key} = {better} or sync.delay = 0")))
}
