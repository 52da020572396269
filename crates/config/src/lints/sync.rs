//! Lints about local steps, stragglers, and delayed or compressed gradients.

use super::Lint;
use crate::recipe::{
    CompressMethod, Consistency, OptimName, Outer, Placement, Recipe, SyncMode, SyncPartition,
};

/// Largest number of local steps without an outer optimizer.
const MAX_ROUND: u64 = 8;
/// Largest product of local steps and other workers, which acts like a staleness.
const MAX_DISTANCE: u64 = 1000;
/// Largest momentum that tolerates delayed gradients.
const MAX_DELAYED_MOMENTUM: f64 = 0.5;
/// Samples or tokens per worker below which gradient noise and compression error add up.
const MIN_COMPRESSED_BATCH: usize = 32;
/// Smallest useful fraction of sent elements.
const MIN_RATIO: f64 = 0.001;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "long-rounds",
        condition: "workers take many local steps without an outer optimizer",
        threshold: "sync.local_steps > 8 without an outer optimizer, with several workers",
        advice: "try 8, or sync.outer = \"nesterov\"",
        check: long_rounds,
    },
    Lint {
        id: "long-rounds-many-workers",
        condition: "many local steps on many workers act like a large staleness",
        threshold: "sync.local_steps x (run.workers - 1) >= 1,000",
        advice: "take shorter rounds or fewer workers",
        check: long_rounds_many_workers,
    },
    Lint {
        id: "skewed-rounds",
        condition: "workers train on heterogeneous data between two averages and drift apart",
        threshold: "rounds of several steps with sync.partition = dirichlet or by-class, or \
                    data.placement = local or partitioned",
        advice: "take short rounds, watch the drift of round_finished, and see lockstep data skew",
        check: skewed_rounds,
    },
    Lint {
        id: "dropped-samples",
        condition: "samples that only a slow worker has are dropped with its gradients",
        threshold: "sync.stragglers = backup, timeout, drop-slowest or exclude where workers have \
                    heterogeneous data",
        advice: "use sync.stragglers = \"shares\", or data that all workers share",
        check: dropped_samples,
    },
    Lint {
        id: "delayed-momentum",
        condition: "momentum amplifies the staleness of delayed gradients",
        threshold: "momentum or beta1 > 0.5 with sync.gradient_delay = 1, or with several workers \
                    of servers and sync.consistency = async or bounded",
        advice: "lower it to 0.5 or less, or lower optim.lr",
        check: delayed_momentum,
    },
    Lint {
        id: "compressed-noise",
        condition: "gradients of few samples are noisy, and compression adds to the noise",
        threshold: "compress.method with fewer than 32 samples or tokens per worker and step",
        advice: "raise train.batch",
        check: compressed_noise,
    },
    Lint {
        id: "compressed-moments",
        condition: "compression noise inflates Adam's second moments",
        threshold: "compress.method with adam, adamw or lamb, but one-bit-adam",
        advice: "compare the losses, or use one-bit-adam",
        check: compressed_moments,
    },
    Lint {
        id: "low-compression-ratio",
        condition: "so few elements are sent that most are delayed by thousands of steps",
        threshold: "compress.ratio < 0.001",
        advice: "try 0.01",
        check: low_compression_ratio,
    },
];

/// Local steps per round, if several workers take several steps.
fn rounds(recipe: &Recipe) -> Option<u64> {
    let steps = recipe.sync.local_steps.max(recipe.sync.final_local_steps);
    let is_local_sgd = recipe.sync.mode == SyncMode::LocalSgd;
    (is_local_sgd && steps > 1 && recipe.run.workers > 1).then_some(steps)
}

/// The setting that makes the workers' data heterogeneous, if there is one.
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

fn long_rounds_many_workers(recipe: &Recipe) -> Option<String> {
    let (steps, workers) = (rounds(recipe)?, recipe.run.workers);
    let distance = steps.saturating_mul(workers as u64 - 1);
    (distance >= MAX_DISTANCE).then(|| {
        format!(
            "sync.local_steps = {steps} with {workers} workers acts like a staleness of {distance}"
        )
    })
}

fn skewed_rounds(recipe: &Recipe) -> Option<String> {
    let (steps, skew) = (rounds(recipe)?, skew(recipe)?);
    Some(format!("{skew} lets workers drift apart for {steps} steps at a time"))
}

fn dropped_samples(recipe: &Recipe) -> Option<String> {
    let (stragglers, skew) = (recipe.sync.stragglers.policy, skew(recipe)?);
    (stragglers.loses_microbatches() && recipe.run.workers > 1)
        .then(|| format!("sync.stragglers = \"{stragglers}\" drops samples with {skew}"))
}

fn delayed_momentum(recipe: &Recipe) -> Option<String> {
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
    (momentum > MAX_DELAYED_MOMENTUM).then(|| {
        format!("optim.{name} = {momentum} with {cause} lowers the largest stable learning rate")
    })
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

fn low_compression_ratio(recipe: &Recipe) -> Option<String> {
    let ratio = recipe.compress.ratio;
    let is_sparse =
        matches!(recipe.compress.method, CompressMethod::TopK | CompressMethod::RandomK);
    (is_sparse && ratio < MIN_RATIO)
        .then(|| format!("compress.ratio = {ratio} sends one of {:.0} elements", 1.0 / ratio))
}
