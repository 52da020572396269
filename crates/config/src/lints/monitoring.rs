//! Lints about validation, checks, checkpoints and the difficulty of a problem.

use super::Lint;
use crate::recipe::{Family, Recipe};

/// Steps after which a run should have been validated.
const STEPS_WITHOUT_VALIDATION: u64 = 1000;
/// Largest fraction of the time for validation.
const MAX_EVALUATION_SHARE: f64 = 0.2;
/// The forward pass is about a third of a step.
const FORWARD_SHARE: f64 = 1.0 / 3.0;
/// Largest number of consecutive skipped steps of a healthy run.
const MAX_SKIPS: u64 = 10;
/// Steps after which replicas should have been compared.
const STEPS_WITHOUT_CHECK: u64 = 10_000;
/// Condition number below which all methods converge fast.
const EASY_CONDITION: f64 = 10.0;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "no-validation",
        condition: "a long run is validated only at its end",
        threshold: "train.eval_every = 0 with 1,000 steps or more",
        advice: "set it to a tenth of train.steps",
        check: no_validation,
    },
    Lint {
        id: "frequent-validation",
        condition: "a large part of the run is spent on validation",
        threshold: "train.eval_batches / (3 train.eval_every) > 20 %",
        advice: "raise train.eval_every or lower train.eval_batches",
        check: frequent_validation,
    },
    Lint {
        id: "many-skips",
        condition: "a diverged run skips many steps before it stops",
        threshold: "train.max_skipped > 10",
        advice: "allow 10 or fewer",
        check: many_skips,
    },
    Lint {
        id: "unchecked-replicas",
        condition: "a long run never compares its replicas",
        threshold: "run.check_replicas_every = 0 with 10,000 steps or more and several workers",
        advice: "compare every 1000 steps",
        check: unchecked_replicas,
    },
    Lint {
        id: "no-optimizer-state",
        condition: "the optimizer state is not saved, so the run cannot be resumed",
        threshold: "run.save_optimizer = false",
        advice: "leave it on unless disk is short",
        check: no_optimizer_state,
    },
    Lint {
        id: "easy-problem",
        condition: "a convex problem is so well-conditioned that every method converges fast",
        threshold: "problem.condition < 10",
        advice: "compare methods at 100 or more",
        check: easy_problem,
    },
];

fn no_validation(recipe: &Recipe) -> Option<String> {
    let steps = recipe.train.steps;
    (recipe.train.eval_every == 0 && steps >= STEPS_WITHOUT_VALIDATION)
        .then(|| format!("train.eval_every = 0 has no validation in {steps} steps before the end"))
}

fn frequent_validation(recipe: &Recipe) -> Option<String> {
    let (every, batches) = (recipe.train.eval_every, recipe.train.eval_batches);
    let share = FORWARD_SHARE * batches as f64 / every as f64;
    (every > 0 && share > MAX_EVALUATION_SHARE).then(|| {
        let percent = 100.0 * share;
        format!("train.eval_every = {every} adds about {percent:.0} % to the time of every step")
    })
}

fn many_skips(recipe: &Recipe) -> Option<String> {
    let skips = recipe.train.max_skipped;
    (skips > MAX_SKIPS).then(|| format!("train.max_skipped = {skips} lets a diverged run continue"))
}

fn unchecked_replicas(recipe: &Recipe) -> Option<String> {
    let steps = recipe.train.steps;
    let is_checked = recipe.run.check_replicas_every > 0;
    (recipe.run.workers > 1 && !is_checked && steps >= STEPS_WITHOUT_CHECK).then(|| {
        format!("run.check_replicas_every = 0 does not detect a faulty machine in {steps} steps")
    })
}

fn no_optimizer_state(recipe: &Recipe) -> Option<String> {
    (!recipe.run.save_optimizer)
        .then(|| "run.save_optimizer = false saves no state to resume from".to_owned())
}

fn easy_problem(recipe: &Recipe) -> Option<String> {
    let (family, condition) = (recipe.model.family, recipe.model.problem.condition);
    let is_convex = family.is_problem() && family != Family::Mlp;
    (is_convex && condition < EASY_CONDITION)
        .then(|| format!("problem.condition = {condition} hides the differences between methods"))
}
