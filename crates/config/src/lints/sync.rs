//! Rounds, workers that are late, and gradients that are late or compressed.

use super::Lint;
use crate::recipe::{
    CompressMethod, Consistency, OptimName, Outer, Placement, Recipe, SyncMode, SyncPartition,
};

/// Steps of a round that averaging alone survives.
const MAX_ROUND: u64 = 8;
/// Steps of a round times the other workers: as old as what they know of each other becomes.
const MAX_DISTANCE: u64 = 1000;
/// Momentum that late gradients go with.
const MAX_LATE_MOMENTUM: f64 = 0.5;
/// Samples or tokens of a worker whose noise is not more than what compression adds.
const MIN_COMPRESSED_BATCH: usize = 32;
/// The share of elements below which hardly anything travels.
const MIN_RATIO: f64 = 0.001;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "long-rounds",
        condition: "workers take many steps alone, and only their mean is taken",
        threshold: "sync.local_steps > 8 without an outer optimizer, with several workers",
        advice: "try 8, or sync.outer = \"nesterov\"",
        rows: &["G27", "F7.1", "H11", "H44"],
        check: long_rounds,
    },
    Lint {
        id: "distant-workers",
        condition: "what workers know of each other grows old as a gradient that is late",
        threshold: "sync.local_steps x (run.workers - 1) >= 1,000",
        advice: "take shorter rounds or fewer workers",
        rows: &["476", "477"],
        check: distant_workers,
    },
    Lint {
        id: "skewed-rounds",
        condition: "workers learn from different kinds of samples between two averages, and drift \
                    apart",
        threshold: "rounds of several steps with sync.partition = dirichlet or by-class, or \
                    data.placement = local or partitioned",
        advice: "take short rounds, watch the drift of round_finished, and see lockstep data skew",
        rows: &["457", "F7.2", "H34", "H45"],
        check: skewed_rounds,
    },
    Lint {
        id: "unheard-samples",
        condition: "a worker that is always late is never heard, nor are the samples only it has",
        threshold: "sync.stragglers = backup, timeout, drop-slowest or exclude where workers learn \
                    from different kinds of samples",
        advice: "use sync.stragglers = \"shares\", or data that all workers share",
        rows: &["470", "G4", "G5"],
        check: unheard_samples,
    },
    Lint {
        id: "late-momentum",
        condition: "momentum adds to the age of gradients that have missed updates",
        threshold: "momentum or beta1 > 0.5 with sync.gradient_delay = 1, or with several workers of \
                    servers and sync.consistency = async or bounded",
        advice: "lower it to 0.5 or less, or lower optim.lr",
        rows: &["483", "484", "G30", "H37"],
        check: late_momentum,
    },
    Lint {
        id: "compressed-noise",
        condition: "gradients of few samples are noise, to which compression adds",
        threshold: "compress.method with fewer than 32 samples or tokens a worker and step",
        advice: "raise train.batch",
        rows: &["F6.4", "H19"],
        check: compressed_noise,
    },
    Lint {
        id: "compressed-moments",
        condition: "Adam takes what compression adds for curvature",
        threshold: "compress.method with adam, adamw or lamb, but one-bit-adam",
        advice: "compare the losses, or use one-bit-adam",
        rows: &["F6.5", "473"],
        check: compressed_moments,
    },
    Lint {
        id: "little-left",
        condition: "so few elements travel that most wait for thousands of steps",
        threshold: "compress.ratio < 0.001",
        advice: "try 0.01",
        rows: &["F6.2"],
        check: little_left,
    },
];

/// Steps that workers take alone, where there are several of both.
fn rounds(recipe: &Recipe) -> Option<u64> {
    let steps = recipe.sync.local_steps.max(recipe.sync.final_local_steps);
    let is_lazy = recipe.sync.mode == SyncMode::LocalSgd;
    (is_lazy && steps > 1 && recipe.run.workers > 1).then_some(steps)
}

/// The setting by which workers learn from different kinds of samples, where one does.
fn skew(recipe: &Recipe) -> Option<String> {
    let (by, placement) = (recipe.sync.partition, recipe.data.placement);
    if matches!(by, SyncPartition::Dirichlet | SyncPartition::ByClass) {
        return Some(format!("sync.partition = \"{by}\""));
    }
    matches!(placement, Placement::Local | Placement::Partitioned)
        .then(|| format!("data.placement = \"{placement}\""))
}

fn long_rounds(recipe: &Recipe) -> Option<String> {
    let steps = rounds(recipe)?;
    (steps > MAX_ROUND && recipe.sync.outer == Outer::None)
        .then(|| format!("sync.local_steps = {steps} lets workers drift apart"))
}

fn distant_workers(recipe: &Recipe) -> Option<String> {
    let (steps, workers) = (rounds(recipe)?, recipe.run.workers);
    let distance = steps.saturating_mul(workers as u64 - 1);
    (distance >= MAX_DISTANCE).then(|| {
        format!("sync.local_steps = {steps} with {workers} workers is like a delay of {distance}")
    })
}

fn skewed_rounds(recipe: &Recipe) -> Option<String> {
    let (steps, skew) = (rounds(recipe)?, skew(recipe)?);
    Some(format!("{skew} pulls workers apart for {steps} steps at a time"))
}

fn unheard_samples(recipe: &Recipe) -> Option<String> {
    let (stragglers, skew) = (recipe.sync.stragglers.policy, skew(recipe)?);
    (stragglers.loses_microbatches() && recipe.run.workers > 1)
        .then(|| format!("sync.stragglers = \"{stragglers}\" forgets samples with {skew}"))
}

fn late_momentum(recipe: &Recipe) -> Option<String> {
    let optim = &recipe.optim;
    let (name, momentum) = match optim.name {
        OptimName::Sgd => return None,
        OptimName::Momentum | OptimName::Nesterov | OptimName::Lars => ("momentum", optim.momentum),
        OptimName::Adam | OptimName::AdamW | OptimName::Lamb => ("beta1", optim.beta1),
    };
    let consistency = recipe.sync.server.consistency;
    let is_free = matches!(consistency, Consistency::Async | Consistency::Bounded);
    let cause = if recipe.sync.gradient_delay > 0 {
        "sync.gradient_delay = 1".to_owned()
    } else if recipe.num_servers() > 0 && is_free && recipe.run.workers > 1 {
        format!("sync.consistency = \"{consistency}\"")
    } else {
        return None;
    };
    (momentum > MAX_LATE_MOMENTUM)
        .then(|| format!("optim.{name} = {momentum} with {cause} shrinks the stable steps"))
}

fn compressed_noise(recipe: &Recipe) -> Option<String> {
    let method = recipe.compress.method;
    let each = recipe.train.batch * recipe.model.context / recipe.parallel.data;
    (recipe.compress.is_on() && each < MIN_COMPRESSED_BATCH)
        .then(|| format!("compress.method = \"{method}\" compresses gradients of {each} samples"))
}

fn compressed_moments(recipe: &Recipe) -> Option<String> {
    let (method, name) = (recipe.compress.method, recipe.optim.name);
    let is_adam = matches!(name, OptimName::Adam | OptimName::AdamW | OptimName::Lamb);
    (recipe.compress.is_on() && method != CompressMethod::OneBitAdam && is_adam)
        .then(|| format!("compress.method = \"{method}\" inflates the second moments of {name}"))
}

fn little_left(recipe: &Recipe) -> Option<String> {
    let ratio = recipe.compress.ratio;
    let is_sparse =
        matches!(recipe.compress.method, CompressMethod::TopK | CompressMethod::RandomK);
    (is_sparse && ratio < MIN_RATIO)
        .then(|| format!("compress.ratio = {ratio} sends one element of {:.0}", 1.0 / ratio))
}
