//! Rules about the course of training: batches that grow, goals, courses of the learning rate, and
//! groups of parameters.

use super::{Facts, nearest_multiple};
use crate::error::ConfigError;
use crate::recipe::{BatchChange, Dtype, Group, LrSchedule, Recipe};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    let rules = [
        batches_grow_in_order,
        batches_make_whole_microbatches,
        goals_are_seen,
        drops_lie_in_the_run,
        problems_compute_in_f32,
    ];
    let rules = rules.iter().filter_map(|rule| rule(facts));
    rules.chain(decay_follows_warmup(facts)).chain(groups_make_sense(facts)).collect()
}

/// Where an entry of a list stands, as the name of a key.
pub(super) fn entry(facts: &Facts<'_>, name: &str, at: &str, value: String) -> ConfigError {
    let error = facts.error(&[name], String::new(), String::new());
    ConfigError { key: format!("{name}{at}"), value, ..error }
}

/// Tokens ascend, and an entry for the beginning says what train.batch says.
fn batches_grow_in_order(facts: &Facts<'_>) -> Option<ConfigError> {
    const NAME: &str = "train.batch_schedule";
    let changes = &facts.recipe.train.batch_schedule;
    if !facts.sound(&[NAME, "train.batch"]) {
        return None;
    }
    let batch = facts.recipe.train.batch;
    if let Some(BatchChange { tokens: 0, batch: other }) = changes.first()
        && *other != batch
    {
        let rule = format!("at tokens = 0 is not train.batch = {batch}");
        let fix = format!("try {batch} or train.batch = {other}");
        let error = entry(facts, NAME, "[0].batch", other.to_string());
        return Some(ConfigError { rule, fix, ..error });
    }
    let later = changes.windows(2).position(|pair| pair[0].tokens >= pair[1].tokens)?;
    let (before, tokens) = (changes[later].tokens, changes[later + 1].tokens);
    let error = entry(facts, NAME, &format!("[{}].tokens", later + 1), tokens.to_string());
    let rule = format!("does not come after the {before} of the entry before it");
    Some(ConfigError { rule, fix: format!("try {}", before + before.max(1)), ..error })
}

/// What holds for train.batch holds for every size.
fn batches_make_whole_microbatches(facts: &Facts<'_>) -> Option<ConfigError> {
    const NAME: &str = "train.batch_schedule";
    if !facts.sound(&[NAME, "train.microbatch", "numerics.invariant_up_to"]) {
        return None;
    }
    let (microbatch_size, leaves) = (facts.recipe.train.microbatch_size, facts.recipe.num_leaves());
    let unit = microbatch_size * leaves;
    let changes = facts.recipe.train.batch_schedule.iter().enumerate();
    let (index, change) = changes.into_iter().find(|(_, c)| !c.batch.is_multiple_of(unit))?;
    let error = entry(facts, NAME, &format!("[{index}].batch"), change.batch.to_string());
    let rule = format!(
        "is not a multiple of train.microbatch = {microbatch_size} times numerics.invariant_up_to = \
         {leaves}"
    );
    Some(ConfigError {
        rule,
        fix: format!("try {}", nearest_multiple(change.batch, unit)),
        ..error
    })
}

/// A goal is looked at when the model is judged.
fn goals_are_seen(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["train.target_loss", "train.eval_every"];
    let train = &facts.recipe.train;
    if !facts.sound(&involved) || train.target_loss.is_none() || train.eval_every > 0 {
        return None;
    }
    let rule = "is looked at when validating, and train.eval_every = 0 never does".to_owned();
    let fix = format!("try train.eval_every = {}", (train.steps / 10).max(1));
    Some(facts.error(&involved, rule, fix))
}

/// A problem is judged by its distance to an optimum; what rounding its products would cost is not
/// part of it.
fn problems_compute_in_f32(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["precision.compute", "model.family"];
    let Recipe { precision, model, .. } = facts.recipe;
    let is_fine = precision.compute == Dtype::F32 || !model.family.is_problem();
    if is_fine || !facts.sound(&involved) {
        return None;
    }
    let rule = format!("is for transformers, and model.family = \"{}\"", model.family);
    Some(facts.error(&involved, rule, "try \"f32\"".to_owned()))
}

/// A drop behind the last step would never be seen.
fn drops_lie_in_the_run(facts: &Facts<'_>) -> Option<ConfigError> {
    const NAME: &str = "optim.drop_at";
    let (optim, steps) = (&facts.recipe.optim, facts.recipe.train.steps);
    let involved = [NAME, "train.steps", "optim.schedule"];
    if !facts.sound(&involved) || optim.schedule != LrSchedule::Step || !facts.is_set(NAME) {
        return None;
    }
    let is_late = |moment: &crate::Moment| moment.step_of(steps) > steps;
    let index = optim.drop_at.iter().position(is_late)?;
    let at = optim.drop_at[index].step_of(steps);
    let error = entry(facts, NAME, &format!("[{index}]"), at.to_string());
    let rule = format!("is behind the last step, train.steps = {steps}");
    Some(ConfigError { rule, fix: "try 0.5".to_owned(), ..error })
}

/// The fall at the end begins when the warm-up is over.
fn decay_follows_warmup(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["optim.decay_fraction", "optim.warmup_steps", "train.steps", "optim.schedule"];
    let (optim, steps) = (&facts.recipe.optim, facts.recipe.train.steps);
    let num_falling = (optim.decay_fraction * steps as f64).round() as u64;
    let is_wsd = optim.schedule == LrSchedule::Wsd;
    let fits = num_falling.saturating_add(optim.warmup_steps) <= steps;
    if !facts.sound(&involved) || !is_wsd || fits || optim.warmup_steps > steps {
        return None;
    }
    let warmup = optim.warmup_steps;
    let rule = format!("begins inside the warm-up of {warmup} steps with train.steps = {steps}");
    let fix = match (steps - warmup) as f64 / steps as f64 {
        left if left > 0.0 => format!("try {left:.3} or less, or a shorter optim.warmup_steps"),
        _ => "try a shorter optim.warmup_steps".to_owned(),
    };
    Some(facts.error(&involved, rule, fix))
}

/// A group is frozen for good, or from and until certain steps that differ.
fn groups_make_sense(facts: &Facts<'_>) -> Vec<ConfigError> {
    const NAME: &str = "optim.groups";
    if !facts.sound(&[NAME]) {
        return Vec::new();
    }
    let judge = |(index, group): (usize, &Group)| {
        let Group { frozen, freeze_after, unfreeze_at, .. } = group;
        let (cell, step) = match (freeze_after, unfreeze_at) {
            (Some(step), _) if *frozen => ("freeze_after", step),
            (_, Some(step)) if *frozen => ("unfreeze_at", step),
            (Some(after), Some(at)) if after == at => ("unfreeze_at", at),
            _ => return None,
        };
        let error = entry(facts, NAME, &format!("[{index}].{cell}"), step.to_string());
        let (rule, fix) = if *frozen {
            ("of a group that is frozen for good", "remove it, or frozen")
        } else {
            ("is freeze_after too", "remove one of them")
        };
        Some(ConfigError { rule: rule.to_owned(), fix: fix.to_owned(), ..error })
    };
    facts.recipe.optim.groups.iter().enumerate().filter_map(judge).collect()
}
