//! Lints about workers, buckets, ZeRO and deadlines.

use super::{Lint, num_params};
use crate::recipe::{PipelineSchedule, Recipe};
use crate::units::{Bytes, BytesPerSecond};

/// Largest number of workers that a small model keeps busy.
const MAX_WORKERS_OF_SMALL: usize = 4;
/// Parameters of a small model.
const SMALL_PARAMS: usize = 1_000_000;
/// Largest over smallest share of leaves.
const MAX_SHARE_RATIO: usize = 2;
/// Fraction of the workers' time that may be idle because of unequal leaves.
const MAX_IDLE: f64 = 0.1;
/// Bucket size below which the overhead of the call exceeds 5 % of its time.
const MIN_BUCKET_BYTES: u64 = 512 << 10;
/// Gradient exchanges per step beyond which communication dominates.
const MAX_PASSES: usize = 2;
/// Longest pause of a healthy worker in seconds.
const MIN_DEADLINE: f64 = 5.0;
/// Longest useful deadline in seconds.
const MAX_DEADLINE: f64 = 600.0;
/// Bandwidth of a 10 Gbit/s network in bytes per second.
const SLOW_LINK: f64 = 1.25e9;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "small-model",
        condition: "many workers train a small model and mostly communicate",
        threshold: "run.workers > 4 with fewer than 1,000,000 parameters of a text model",
        advice: "use 4 workers or fewer",
        check: small_model,
    },
    Lint {
        id: "unequal-shares",
        condition: "one replica has far more leaves than another",
        threshold: "largest over smallest of parallel.leaf_shares > 2",
        advice: "keep them within a factor of 2",
        check: unequal_shares,
    },
    Lint {
        id: "idle-workers",
        condition: "leaves do not divide evenly over the replicas, so some are idle",
        threshold: "more than 10 % idle time",
        advice: "choose a number of workers that divides the leaves, or more leaves",
        check: idle_workers,
    },
    Lint {
        id: "small-buckets",
        condition: "buckets are so small that call overhead exceeds 5 % of their time",
        threshold: "0 < parallel.bucket_bytes < 512 KiB, with several workers",
        advice: "set it to 0, which chooses by measurement",
        check: small_buckets,
    },
    Lint {
        id: "large-buckets",
        condition: "buckets are so large that no communication starts before the backward pass \
                    ends",
        threshold: "parallel.bucket_bytes > half of all gradients, with several workers",
        advice: "set it to 0, which chooses by measurement",
        check: large_buckets,
    },
    Lint {
        id: "no-overlap",
        condition: "gradients are communicated only after the backward pass",
        threshold: "parallel.overlap = false with several workers",
        advice: "leave it on except for measurements",
        check: no_overlap,
    },
    Lint {
        id: "many-passes",
        condition: "ZeRO-2 and ZeRO-3 exchange all gradients once per pass over the replicas' \
                    leaves",
        threshold: "leaves / parallel.data > 2 at parallel.zero >= 2",
        advice: "lower numerics.invariant_up_to to the number of workers, or use parallel.zero = 1",
        check: many_passes,
    },
    Lint {
        id: "short-deadline",
        condition: "a paused worker is reported as lost",
        threshold: "run.deadline < 5 s, with several workers",
        advice: "try 60",
        check: short_deadline,
    },
    Lint {
        id: "long-deadline",
        condition: "a lost worker is detected late",
        threshold: "run.deadline > 600 s, with several workers",
        advice: "try 60",
        check: long_deadline,
    },
    Lint {
        id: "slow-link",
        condition: "links are too slow to hide communication behind computation",
        threshold: "0 < emulate.bandwidth < 1.25 GB/s, with several workers",
        advice: "expect exposed communication, or raise train.batch",
        check: slow_link,
    },
    Lint {
        id: "sequence-alone",
        condition: "sequence parallelism is on without tensor parallelism",
        threshold: "parallel.sequence = true with parallel.tensor = 1",
        advice: "set parallel.tensor as well, or remove it",
        check: sequence_alone,
    },
    Lint {
        id: "interleaved-alone",
        condition: "an interleaved schedule has one stage per rank, which is 1F1B",
        threshold: "parallel.schedule = \"interleaved\" with parallel.virtual_stages = 1",
        advice: "set parallel.virtual_stages = 2",
        check: interleaved_alone,
    },
];

fn has_several(recipe: &Recipe) -> bool {
    recipe.run.workers > 1
}

fn small_model(recipe: &Recipe) -> Option<String> {
    let (workers, params) = (recipe.run.workers, num_params(&recipe.model)?);
    (workers > MAX_WORKERS_OF_SMALL && params < SMALL_PARAMS)
        .then(|| format!("run.workers = {workers} train a model of {params} parameters"))
}

fn unequal_shares(recipe: &Recipe) -> Option<String> {
    let shares = &recipe.parallel.leaf_shares;
    let (least, most) = (*shares.iter().min()?, *shares.iter().max()?);
    (most > MAX_SHARE_RATIO * least).then(|| {
        format!(
            "parallel.leaf_shares = {shares:?} gives one replica {most} leaves and another {least}"
        )
    })
}

fn idle_workers(recipe: &Recipe) -> Option<String> {
    let (leaves, replicas) = (recipe.num_leaves(), recipe.parallel.data);
    let busy = leaves as f64 / (replicas * leaves.div_ceil(replicas)) as f64;
    (recipe.parallel.leaf_shares.is_empty() && 1.0 - busy > MAX_IDLE).then(|| {
        let idle = 100.0 * (1.0 - busy);
        format!(
            "parallel.data = {replicas} does not divide numerics.invariant_up_to = {leaves} \
             leaves: {idle:.0} % of their time is idle"
        )
    })
}

fn small_buckets(recipe: &Recipe) -> Option<String> {
    let Bytes(bytes) = recipe.parallel.bucket_bytes;
    (has_several(recipe) && bytes > 0 && bytes < MIN_BUCKET_BYTES).then(|| {
        format!(
            "parallel.bucket_bytes = {bytes} makes buckets whose call overhead exceeds their \
                 transfer"
        )
    })
}

fn large_buckets(recipe: &Recipe) -> Option<String> {
    let Bytes(bytes) = recipe.parallel.bucket_bytes;
    let gradients = (size_of::<f32>() * num_params(&recipe.model)?) as u64;
    (has_several(recipe) && bytes > gradients / 2).then(|| {
        format!("parallel.bucket_bytes = {bytes} holds most of {gradients} bytes of gradients")
    })
}

fn no_overlap(recipe: &Recipe) -> Option<String> {
    (has_several(recipe) && !recipe.parallel.overlap)
        .then(|| "parallel.overlap = false exposes all gradient communication".to_owned())
}

fn many_passes(recipe: &Recipe) -> Option<String> {
    let (leaves, replicas, zero) =
        (recipe.num_leaves(), recipe.parallel.data, recipe.parallel.zero);
    let passes = leaves.div_ceil(replicas);
    (replicas > 1 && zero >= 2 && passes > MAX_PASSES).then(|| {
        format!(
            "parallel.zero = {zero} exchanges gradients {passes} times per step ({leaves} leaves)"
        )
    })
}

fn short_deadline(recipe: &Recipe) -> Option<String> {
    let seconds = recipe.run.deadline.0;
    (has_several(recipe) && seconds < MIN_DEADLINE)
        .then(|| format!("run.deadline = {seconds} reports a paused worker as lost"))
}

fn long_deadline(recipe: &Recipe) -> Option<String> {
    let seconds = recipe.run.deadline.0;
    (has_several(recipe) && seconds > MAX_DEADLINE)
        .then(|| format!("run.deadline = {seconds} detects a lost worker late"))
}

fn slow_link(recipe: &Recipe) -> Option<String> {
    let BytesPerSecond(rate) = recipe.emulate.default_link.bandwidth;
    (has_several(recipe) && rate > 0.0 && rate < SLOW_LINK)
        .then(|| format!("emulate.bandwidth = {rate} is slower than a 10 Gbit/s network"))
}

fn sequence_alone(recipe: &Recipe) -> Option<String> {
    let parallel = &recipe.parallel;
    (parallel.sequence && parallel.tensor == 1)
        .then(|| "parallel.sequence = true has no effect with parallel.tensor = 1".to_owned())
}

fn interleaved_alone(recipe: &Recipe) -> Option<String> {
    let parallel = &recipe.parallel;
    let is_interleaved = parallel.schedule == PipelineSchedule::Interleaved;
    (parallel.pipeline > 1 && is_interleaved && parallel.virtual_stages == 1).then(|| {
        "parallel.schedule = \"interleaved\" with parallel.virtual_stages = 1 is 1F1B".to_owned()
    })
}
