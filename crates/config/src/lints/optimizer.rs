//! Lints about learning rate, warm-up, clipping and weight decay.

use super::{Lint, is_text};
use crate::recipe::{Family, LrScaling, OptimName, Recipe};

/// Shorter runs are trials.
const MIN_STEPS_TO_WARM_UP: u64 = 100;
/// Learning rate above which Adam seldom trains a transformer.
const MAX_ADAM_RATE: f64 = 1e-2;
/// Growth of batch and learning rate beyond which warm-up is needed.
const MAX_COLD_GROWTH: usize = 2;
/// Clipping norm below which nearly every step is clipped.
const MIN_CLIP: f64 = 0.1;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "no-warm-up",
        condition: "Adam starts at the peak learning rate with uninitialised moments",
        threshold: "optim.warmup_steps = 0, with 100 steps or more of a neural network",
        advice: "set optim.warmup_steps to a tenth of train.steps",
        check: no_warm_up,
    },
    Lint {
        id: "cold-scaling",
        condition: "a learning rate scaled linearly with the batch starts without warm-up",
        threshold: "optim.lr_scaling = linear, train.batch > 2 optim.lr_base_batch, no warm-up",
        advice: "set optim.warmup_steps to a tenth of train.steps",
        check: cold_scaling,
    },
    Lint {
        id: "adam-scaling",
        condition: "Adam's learning rate is scaled linearly with the batch",
        threshold: "optim.lr_scaling = linear with adam, adamw or lamb",
        advice: "try \"sqrt\"",
        check: adam_scaling,
    },
    Lint {
        id: "unscaled-ramp",
        condition: "the batch changes during the run and the learning rate does not",
        threshold: "train.batch_schedule with optim.lr_scaling = none",
        advice: "try \"sqrt\"",
        check: unscaled_ramp,
    },
    Lint {
        id: "adam-rate",
        condition: "the learning rate suits SGD, not Adam",
        threshold: "optim.lr > 0.01 with adam or adamw, on text",
        advice: "try 3e-3 or less",
        check: adam_rate,
    },
    Lint {
        id: "tight-clip",
        condition: "nearly every step is clipped",
        threshold: "0 < optim.clip < 0.1",
        advice: "try 1.0",
        check: tight_clip,
    },
    Lint {
        id: "no-clip",
        condition: "no limit bounds the update after a gradient spike",
        threshold: "optim.clip = 0, on text",
        advice: "try 1.0",
        check: no_clip,
    },
    Lint {
        id: "unstable-step",
        condition: "the learning rate exceeds the stability limit of a convex problem",
        threshold: "optim.lr x curvature >= 2 (1 + momentum), or 1 - momentum with \
                    sync.gradient_delay = 1",
        advice: "lower it",
        check: unstable_step,
    },
    Lint {
        id: "unused-weight-decay",
        condition: "weight decay has no effect on the unknowns of a convex problem",
        threshold: "optim.weight_decay > 0 on a convex problem",
        advice: "set it to 0 and use problem.l2 with ridge and logistic",
        check: unused_weight_decay,
    },
];

fn no_warm_up(recipe: &Recipe) -> Option<String> {
    let (optim, steps) = (&recipe.optim, recipe.train.steps);
    let is_net = is_text(recipe) || recipe.model.family == Family::Mlp;
    let is_cold = is_adam(optim.name) && optim.warmup_steps == 0;
    (is_net && is_cold && steps >= MIN_STEPS_TO_WARM_UP).then(|| {
        let lr = optim.lr;
        format!("optim.warmup_steps = 0 starts Adam at optim.lr = {lr}")
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
        format!("optim.lr_scaling = \"linear\" is a rule for SGD; {name} needs less")
    })
}

fn unscaled_ramp(recipe: &Recipe) -> Option<String> {
    let is_ramp = !recipe.train.batch_schedule.is_empty();
    (is_ramp && recipe.optim.lr_scaling == LrScaling::None).then(|| {
        "optim.lr_scaling = \"none\" keeps a constant learning rate over train.batch_schedule"
            .to_owned()
    })
}

fn adam_rate(recipe: &Recipe) -> Option<String> {
    let lr = recipe.optim.lr;
    let name = recipe.optim.name;
    let is_high = is_adam(name) && name != OptimName::Lamb && lr > MAX_ADAM_RATE;
    (is_text(recipe) && is_high).then(|| {
        format!("optim.lr = {lr} is high for {name}, whose updates do not shrink with gradients")
    })
}

fn tight_clip(recipe: &Recipe) -> Option<String> {
    let clip = recipe.optim.clip;
    (clip > 0.0 && clip < MIN_CLIP)
        .then(|| format!("optim.clip = {clip} clips nearly every step and slows training"))
}

fn no_clip(recipe: &Recipe) -> Option<String> {
    (is_text(recipe) && recipe.optim.clip <= 0.0)
        .then(|| "optim.clip = 0 lets one gradient spike diverge the run".to_owned())
}

/// Gradient descent with momentum is stable up to `2 (1 + momentum)` over the largest curvature;
/// Nesterov momentum divides that by `1 + 2 momentum`.
fn unstable_step(recipe: &Recipe) -> Option<String> {
    let (optim, l2) = (&recipe.optim, recipe.model.problem.l2);
    let curvature = match recipe.model.family {
        Family::Quadratic => 1.0,
        Family::Ridge => 1.0 + l2,
        Family::Logistic => 0.25 + l2,
        _ => return None,
    };
    let m = optim.momentum;
    let is_delayed = recipe.sync.gradient_delay > 0;
    let most = match optim.name {
        // Both roots of z² − (1 + m) z + m + lr λ are inside the unit circle as long as their
        // product is.
        OptimName::Sgd if is_delayed => 1.0,
        OptimName::Momentum if is_delayed => 1.0 - m,
        OptimName::Sgd => 2.0,
        OptimName::Momentum => 2.0 * (1.0 + m),
        OptimName::Nesterov => 2.0 * (1.0 + m) / (1.0 + 2.0 * m),
        OptimName::Adam | OptimName::AdamW | OptimName::Lars | OptimName::Lamb => return None,
    } / curvature;
    (optim.lr >= most).then(|| {
        format!("optim.lr = {} reaches the stability limit {most:.3} of this problem", optim.lr)
    })
}

fn unused_weight_decay(recipe: &Recipe) -> Option<String> {
    let (family, decay) = (recipe.model.family, recipe.optim.weight_decay);
    let is_convex = family.is_problem() && family != Family::Mlp;
    (is_convex && decay > 0.0).then(|| {
        format!("optim.weight_decay = {decay} has no effect with model.family = \"{family}\"")
    })
}
