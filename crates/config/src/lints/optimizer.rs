//! Learning rate, warm-up, clipping and decay.

use super::{Lint, is_text};
use crate::recipe::{Family, LrScaling, OptimName, Recipe};

/// Runs shorter than this are tries.
const MIN_STEPS_TO_WARM_UP: u64 = 100;
/// Learning rate above which Adam seldom trains a transformer.
const MAX_ADAM_RATE: f64 = 1e-2;
/// Growth of the batch, and with it of the learning rate, beyond which warm-up is not optional.
const MAX_COLD_GROWTH: usize = 2;
/// Clipping below this touches nearly every step.
const MIN_CLIP: f64 = 0.1;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "no-warm-up",
        condition: "Adam starts at full speed, before its averages mean anything",
        threshold: "optim.warmup_steps = 0, with 100 steps or more of a net",
        advice: "give a tenth of train.steps to optim.warmup_steps",
        rows: &["467", "F15.6-10"],
        check: no_warm_up,
    },
    Lint {
        id: "cold-scaling",
        condition: "the learning rate grows in proportion to the batch and starts at full speed",
        threshold: "optim.lr_scaling = linear, train.batch > 2 optim.lr_base_batch, no warm-up",
        advice: "give a tenth of train.steps to optim.warmup_steps",
        rows: &["467", "F15.6-10"],
        check: cold_scaling,
    },
    Lint {
        id: "adam-scaling",
        condition: "Adam's learning rate grows in proportion to the batch",
        threshold: "optim.lr_scaling = linear with adam, adamw or lamb",
        advice: "try \"sqrt\"",
        rows: &["468", "F15.6-10"],
        check: adam_scaling,
    },
    Lint {
        id: "unscaled-ramp",
        condition: "the batch changes during the run and the learning rate does not follow",
        threshold: "train.batch_schedule with optim.lr_scaling = none",
        advice: "try \"sqrt\"",
        rows: &["F8.8", "F15.1-5"],
        check: unscaled_ramp,
    },
    Lint {
        id: "adam-rate",
        condition: "the learning rate is one for plain descent, not for Adam",
        threshold: "optim.lr > 0.01 with adam or adamw, on text",
        advice: "try 3e-3 or less",
        rows: &["468"],
        check: adam_rate,
    },
    Lint {
        id: "tight-clip",
        condition: "clipping shortens nearly every step",
        threshold: "0 < optim.clip < 0.1",
        advice: "try 1.0",
        rows: &["496"],
        check: tight_clip,
    },
    Lint {
        id: "no-clip",
        condition: "nothing bounds the step after a spike of the gradient",
        threshold: "optim.clip = 0, on text",
        advice: "try 1.0",
        rows: &["F3.9"],
        check: no_clip,
    },
    Lint {
        id: "unstable-step",
        condition: "a convex problem's steps are too long for its largest curvature",
        threshold: "optim.lr x curvature >= 2 (1 + momentum), or 1 - momentum with sync.gradient_delay = 1",
        advice: "lower it",
        rows: &["G29", "H26"],
        check: unstable_step,
    },
    Lint {
        id: "idle-decay",
        condition: "weight decay is set where nothing decays: unknowns are a vector",
        threshold: "optim.weight_decay > 0 on a convex problem",
        advice: "set it to 0 and use problem.l2 of ridge and logistic",
        rows: &["F15.6-10"],
        check: idle_decay,
    },
];

fn no_warm_up(recipe: &Recipe) -> Option<String> {
    let (optim, steps) = (&recipe.optim, recipe.train.steps);
    let is_net = is_text(recipe) || recipe.model.family == Family::Mlp;
    let is_cold = is_adam(optim.name) && optim.warmup_steps == 0;
    (is_net && is_cold && steps >= MIN_STEPS_TO_WARM_UP).then(|| {
        let lr = optim.lr;
        format!("optim.warmup_steps = 0 takes the first step at optim.lr = {lr}, where Adam jumps")
    })
}

fn is_adam(name: OptimName) -> bool {
    matches!(name, OptimName::Adam | OptimName::AdamW | OptimName::Lamb)
}

fn cold_scaling(recipe: &Recipe) -> Option<String> {
    let (optim, batch) = (&recipe.optim, recipe.train.batch);
    let has_grown = batch > MAX_COLD_GROWTH * optim.lr_base_batch;
    let is_linear = optim.lr_scaling == LrScaling::Linear;
    (is_linear && has_grown && optim.warmup_steps == 0).then(|| {
        format!(
            "optim.lr_scaling = \"linear\" starts at {:.1} times optim.lr without warm-up",
            batch as f64 / optim.lr_base_batch as f64
        )
    })
}

fn adam_scaling(recipe: &Recipe) -> Option<String> {
    let optim = &recipe.optim;
    (optim.lr_scaling == LrScaling::Linear && is_adam(optim.name)).then(|| {
        let name = optim.name;
        format!("optim.lr_scaling = \"linear\" is a rule for plain descent; {name} needs less")
    })
}

fn unscaled_ramp(recipe: &Recipe) -> Option<String> {
    let is_ramp = !recipe.train.batch_schedule.is_empty();
    (is_ramp && recipe.optim.lr_scaling == LrScaling::None).then(|| {
        "optim.lr_scaling = \"none\" keeps one learning rate for all of train.batch_schedule"
            .to_owned()
    })
}

fn adam_rate(recipe: &Recipe) -> Option<String> {
    let lr = recipe.optim.lr;
    let name = recipe.optim.name;
    let is_high = is_adam(name) && name != OptimName::Lamb && lr > MAX_ADAM_RATE;
    (is_text(recipe) && is_high).then(|| {
        format!("optim.lr = {lr} is high for {name}, whose steps do not shrink with gradients")
    })
}

fn tight_clip(recipe: &Recipe) -> Option<String> {
    let clip = recipe.optim.clip;
    (clip > 0.0 && clip < MIN_CLIP)
        .then(|| format!("optim.clip = {clip} shortens nearly every step and slows learning"))
}

fn no_clip(recipe: &Recipe) -> Option<String> {
    (is_text(recipe) && recipe.optim.clip <= 0.0)
        .then(|| "optim.clip = 0 lets one spike of the gradient undo the run".to_owned())
}

/// Descent with a velocity is stable up to `2 (1 + momentum)` over the largest curvature; looking
/// ahead divides that by `1 + 2 momentum`.
fn unstable_step(recipe: &Recipe) -> Option<String> {
    let (optim, l2) = (&recipe.optim, recipe.model.problem.l2);
    let curvature = match recipe.model.family {
        Family::Quadratic => 1.0,
        Family::Ridge => 1.0 + l2,
        Family::Logistic => 0.25 + l2,
        _ => return None,
    };
    let m = optim.momentum;
    let is_late = recipe.sync.gradient_delay > 0;
    let most = match optim.name {
        // Both roots of z² − (1 + m) z + m + lr λ lie inside the unit circle while their product
        // does.
        OptimName::Sgd if is_late => 1.0,
        OptimName::Momentum if is_late => 1.0 - m,
        OptimName::Sgd => 2.0,
        OptimName::Momentum => 2.0 * (1.0 + m),
        OptimName::Nesterov => 2.0 * (1.0 + m) / (1.0 + 2.0 * m),
        OptimName::Adam | OptimName::AdamW | OptimName::Lars | OptimName::Lamb => return None,
    } / curvature;
    (optim.lr >= most).then(|| {
        format!("optim.lr = {} reaches {most:.3}, where this problem's steps diverge", optim.lr)
    })
}

fn idle_decay(recipe: &Recipe) -> Option<String> {
    let (family, decay) = (recipe.model.family, recipe.optim.weight_decay);
    let is_convex = family.is_problem() && family != Family::Mlp;
    (is_convex && decay > 0.0).then(|| {
        format!("optim.weight_decay = {decay} does nothing with model.family = \"{family}\"")
    })
}
