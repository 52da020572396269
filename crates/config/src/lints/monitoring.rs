//! What a run would not notice, or an experiment not show.

use super::Lint;
use crate::recipe::{Family, Recipe};

/// Steps after which a run should have been judged on held-out data.
const STEPS_WITHOUT_VALIDATION: u64 = 1000;
/// Time of a run that may go into judging it.
const MAX_EVALUATION_SHARE: f64 = 0.2;
/// Forward is about a third of a step.
const FORWARD_SHARE: f64 = 1.0 / 3.0;
/// Steps in a row that a healthy run may skip.
const MAX_SKIPS: u64 = 10;
/// Steps after which the weights of workers should have been compared.
const STEPS_WITHOUT_CHECK: u64 = 10_000;
/// Condition number below which every method looks good.
const EASY_CONDITION: f64 = 10.0;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "no-validation",
        condition: "a long run is judged on held-out data only at its end",
        threshold: "train.eval_every = 0 with 1,000 steps or more",
        advice: "set it to a tenth of train.steps",
        rows: &["F15.1-5"],
        check: no_validation,
    },
    Lint {
        id: "much-evaluation",
        condition: "a large part of the run is spent on judging it",
        threshold: "train.eval_batches / (3 train.eval_every) > 20 %",
        advice: "raise train.eval_every or lower train.eval_batches",
        rows: &["F20.1-5"],
        check: much_evaluation,
    },
    Lint {
        id: "many-skips",
        condition: "a run may skip steps for long before it says that it has diverged",
        threshold: "train.max_skipped > 10",
        advice: "allow 10 or fewer",
        rows: &["495", "H46"],
        check: many_skips,
    },
    Lint {
        id: "unchecked-replicas",
        condition: "a long run never compares the weights of its workers",
        threshold: "run.check_replicas_every = 0 with 10,000 steps or more and several workers",
        advice: "compare every 1000 steps",
        rows: &["F16.1-5"],
        check: unchecked_replicas,
    },
    Lint {
        id: "no-way-back",
        condition: "the optimizer's state is not kept, so the run cannot be gone on with",
        threshold: "run.save_optimizer = false",
        advice: "leave it on unless disk is short",
        rows: &["F14.3"],
        check: no_way_back,
    },
    Lint {
        id: "easy-problem",
        condition: "a convex problem is so round that every method does well on it",
        threshold: "problem.condition < 10",
        advice: "compare methods at 100 or more",
        rows: &["F3.1"],
        check: easy_problem,
    },
];

fn no_validation(recipe: &Recipe) -> Option<String> {
    let steps = recipe.train.steps;
    (recipe.train.eval_every == 0 && steps >= STEPS_WITHOUT_VALIDATION)
        .then(|| format!("train.eval_every = 0 shows nothing of {steps} steps before the end"))
}

fn much_evaluation(recipe: &Recipe) -> Option<String> {
    let (every, batches) = (recipe.train.eval_every, recipe.train.eval_batches);
    let share = FORWARD_SHARE * batches as f64 / every as f64;
    (every > 0 && share > MAX_EVALUATION_SHARE).then(|| {
        let percent = 100.0 * share;
        format!("train.eval_every = {every} adds about {percent:.0} % to the time of every step")
    })
}

fn many_skips(recipe: &Recipe) -> Option<String> {
    let skips = recipe.train.max_skipped;
    (skips > MAX_SKIPS)
        .then(|| format!("train.max_skipped = {skips} lets a run that has diverged go on"))
}

fn unchecked_replicas(recipe: &Recipe) -> Option<String> {
    let steps = recipe.train.steps;
    let is_checked = recipe.run.check_replicas_every > 0;
    (recipe.run.workers > 1 && !is_checked && steps >= STEPS_WITHOUT_CHECK).then(|| {
        format!("run.check_replicas_every = 0 would not see a faulty machine in {steps} steps")
    })
}

fn no_way_back(recipe: &Recipe) -> Option<String> {
    (!recipe.run.save_optimizer)
        .then(|| "run.save_optimizer = false leaves nothing to resume from".to_owned())
}

fn easy_problem(recipe: &Recipe) -> Option<String> {
    let (family, condition) = (recipe.model.family, recipe.model.problem.condition);
    let is_convex = family.is_problem() && family != Family::Mlp;
    (is_convex && condition < EASY_CONDITION)
        .then(|| format!("problem.condition = {condition} shows no method's weakness"))
}
