//! Rules about batch-size schedules, target loss, learning-rate schedules and parameter groups.

use super::{RuleContext, nearest_multiple};
use crate::error::ConfigError;
use crate::recipe::{BatchChange, Dtype, Group, LrSchedule, Recipe};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let rules = [
        batches_grow_in_order,
        batches_make_whole_microbatches,
        target_loss_is_checked,
        milestones_are_within_the_run,
        problems_compute_in_f32,
    ];
    let rules = rules.iter().filter_map(|rule| rule(context));
    rules.chain(decay_follows_warmup(context)).chain(groups_are_consistent(context)).collect()
}

/// An error about an entry of a list key; rule and fix are filled in by the caller.
pub(super) fn entry(context: &RuleContext<'_>, name: &str, at: &str, value: String) -> ConfigError {
    let error = context.error(&[name], String::new(), String::new());
    ConfigError { key: format!("{name}{at}"), value, ..error }
}

/// Tokens ascend, and an entry at 0 tokens equals train.batch.
fn batches_grow_in_order(context: &RuleContext<'_>) -> Option<ConfigError> {
    const NAME: &str = "train.batch_schedule";
    let changes = &context.recipe.train.batch_schedule;
    if !context.all_valid(&[NAME, "train.batch"]) {
        return None;
    }
    let batch = context.recipe.train.batch;
    if let Some(BatchChange { tokens: 0, batch: other }) = changes.first()
        && *other != batch
    {
        let rule = format!("at tokens = 0 is not train.batch = {batch}");
        let fix = format!("try {batch} or train.batch = {other}");
        let error = entry(context, NAME, "[0].batch", other.to_string());
        return Some(ConfigError { rule, fix, ..error });
    }
    let later = changes.windows(2).position(|pair| pair[0].tokens >= pair[1].tokens)?;
    let (before, tokens) = (changes[later].tokens, changes[later + 1].tokens);
    let error = entry(context, NAME, &format!("[{}].tokens", later + 1), tokens.to_string());
    let rule = format!("does not come after the {before} of the entry before it");
    Some(ConfigError { rule, fix: format!("try {}", before + before.max(1)), ..error })
}

/// The rule of train.batch holds for every scheduled batch.
fn batches_make_whole_microbatches(context: &RuleContext<'_>) -> Option<ConfigError> {
    const NAME: &str = "train.batch_schedule";
    if !context.all_valid(&[NAME, "train.microbatch", "numerics.invariant_up_to"]) {
        return None;
    }
    let (microbatch_size, leaves) =
        (context.recipe.train.microbatch_size, context.recipe.num_leaves());
    let unit = microbatch_size * leaves;
    let changes = context.recipe.train.batch_schedule.iter().enumerate();
    let (index, change) = changes.into_iter().find(|(_, c)| !c.batch.is_multiple_of(unit))?;
    let error = entry(context, NAME, &format!("[{index}].batch"), change.batch.to_string());
    let rule = format!(
        "is not a multiple of train.microbatch = {microbatch_size} times numerics.invariant_up_to \
         = {leaves}"
    );
    Some(ConfigError {
        rule,
        fix: format!("try {}", nearest_multiple(change.batch, unit)),
        ..error
    })
}

/// The target loss is checked at validations.
fn target_loss_is_checked(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["train.target_loss", "train.eval_every"];
    let train = &context.recipe.train;
    if !context.all_valid(&involved) || train.target_loss.is_none() || train.eval_every > 0 {
        return None;
    }
    let rule =
        "is checked at validations, and train.eval_every = 0 has none before the end".to_owned();
    let fix = format!("try train.eval_every = {}", (train.steps / 10).max(1));
    Some(context.error(&involved, rule, fix))
}

/// Small problems measure the distance to an optimum in f32.
fn problems_compute_in_f32(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["precision.compute", "model.family"];
    let Recipe { precision, model, .. } = context.recipe;
    let is_fine = precision.compute == Dtype::F32 || !model.family.is_problem();
    if is_fine || !context.all_valid(&involved) {
        return None;
    }
    let rule =
        format!("is supported for transformers only, and model.family = \"{}\"", model.family);
    Some(context.error(&involved, rule, "try \"f32\"".to_owned()))
}

/// A milestone after the last step would have no effect.
fn milestones_are_within_the_run(context: &RuleContext<'_>) -> Option<ConfigError> {
    const NAME: &str = "optim.drop_at";
    let (optim, steps) = (&context.recipe.optim, context.recipe.train.steps);
    let involved = [NAME, "train.steps", "optim.schedule"];
    if !context.all_valid(&involved) || optim.schedule != LrSchedule::Step || !context.is_set(NAME)
    {
        return None;
    }
    let is_outside = |milestone: &crate::Milestone| milestone.step_of(steps) > steps;
    let index = optim.drop_at.iter().position(is_outside)?;
    let at = optim.drop_at[index].step_of(steps);
    let error = entry(context, NAME, &format!("[{index}]"), at.to_string());
    let rule = format!("is after the last step, train.steps = {steps}");
    Some(ConfigError { rule, fix: "try 0.5".to_owned(), ..error })
}

/// The final decay begins after the warm-up.
fn decay_follows_warmup(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["optim.decay_fraction", "optim.warmup_steps", "train.steps", "optim.schedule"];
    let (optim, steps) = (&context.recipe.optim, context.recipe.train.steps);
    let num_decaying = (optim.decay_fraction * steps as f64).round() as u64;
    let is_wsd = optim.schedule == LrSchedule::Wsd;
    let fits = num_decaying.saturating_add(optim.warmup_steps) <= steps;
    if !context.all_valid(&involved) || !is_wsd || fits || optim.warmup_steps > steps {
        return None;
    }
    let warmup = optim.warmup_steps;
    let rule = format!("begins inside the warm-up of {warmup} steps with train.steps = {steps}");
    let fix = match (steps - warmup) as f64 / steps as f64 {
        left if left > 0.0 => format!("try {left:.3} or less, or a shorter optim.warmup_steps"),
        _ => "try a shorter optim.warmup_steps".to_owned(),
    };
    Some(context.error(&involved, rule, fix))
}

/// A group is frozen throughout, or from and until different steps.
fn groups_are_consistent(context: &RuleContext<'_>) -> Vec<ConfigError> {
    const NAME: &str = "optim.groups";
    if !context.all_valid(&[NAME]) {
        return Vec::new();
    }
    let check = |(index, group): (usize, &Group)| {
        let Group { frozen, freeze_after, unfreeze_at, .. } = group;
        let (cell, step) = match (freeze_after, unfreeze_at) {
            (Some(step), _) if *frozen => ("freeze_after", step),
            (_, Some(step)) if *frozen => ("unfreeze_at", step),
            (Some(after), Some(at)) if after == at => ("unfreeze_at", at),
            _ => return None,
        };
        let error = entry(context, NAME, &format!("[{index}].{cell}"), step.to_string());
        let (rule, fix) = if *frozen {
            ("belongs to a group that is frozen throughout", "remove it, or frozen")
        } else {
            ("is equal to freeze_after", "remove one of them")
        };
        Some(ConfigError { rule: rule.to_owned(), fix: fix.to_owned(), ..error })
    };
    context.recipe.optim.groups.iter().enumerate().filter_map(check).collect()
}
