//! Workers, what they exchange, and how long they wait for each other.

use super::{Lint, num_params};
use crate::recipe::{PipelineSchedule, Recipe};
use crate::units::{Bytes, BytesPerSecond};

/// Workers that a small model feeds.
const MAX_WORKERS_OF_SMALL: usize = 4;
/// Parameters of a small model.
const SMALL_PARAMS: usize = 1_000_000;
/// The largest share of leaves over the smallest.
const MAX_SHARE_RATIO: usize = 2;
/// Share of the workers' time that may go into waiting for one with a leaf more.
const MAX_IDLE: f64 = 0.1;
/// A bucket below this spends more than a twentieth of its time on the call itself.
const MIN_BUCKET_BYTES: u64 = 512 << 10;
/// Passes of a step that exchange everything, beyond which they dominate.
const MAX_PASSES: usize = 2;
/// Seconds that a healthy worker may pause.
const MIN_DEADLINE: f64 = 5.0;
/// Seconds after which a failure is found too late.
const MAX_DEADLINE: f64 = 600.0;
/// Bytes a second of a network of ten gigabits.
const SLOW_LINK: f64 = 1.25e9;

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "small-model",
        condition: "many workers share a small model and mostly talk",
        threshold: "run.workers > 4 with fewer than 1,000,000 parameters of a text model",
        advice: "use 4 workers or fewer",
        rows: &["475", "H35"],
        check: small_model,
    },
    Lint {
        id: "uneven-shares",
        condition: "one worker is given far more leaves than another",
        threshold: "largest over smallest of parallel.leaf_shares > 2",
        advice: "keep them within a factor of 2",
        rows: &["G7", "F8.10"],
        check: uneven_shares,
    },
    Lint {
        id: "idle-workers",
        condition: "leaves do not divide evenly and workers wait for the one with a leaf more",
        threshold: "more than 10 % of the workers' time",
        advice: "choose a number of workers that divides the leaves, or more leaves",
        rows: &["G39", "F8.1"],
        check: idle_workers,
    },
    Lint {
        id: "small-buckets",
        condition: "gradients travel in pieces whose calls cost more than 5 % of their time",
        threshold: "0 < parallel.bucket_bytes < 512 KiB, with several workers",
        advice: "set it to 0, which measures",
        rows: &["G9", "F10.1", "F10.6"],
        check: small_buckets,
    },
    Lint {
        id: "large-buckets",
        condition: "gradients travel in pieces so large that none leaves before backward has ended",
        threshold: "parallel.bucket_bytes > half of all gradients, with several workers",
        advice: "set it to 0, which measures",
        rows: &["F10.2"],
        check: large_buckets,
    },
    Lint {
        id: "no-overlap",
        condition: "gradients wait until all are computed",
        threshold: "parallel.overlap = false with several workers",
        advice: "leave it on unless you measure",
        rows: &["F1.2", "H53"],
        check: no_overlap,
    },
    Lint {
        id: "many-passes",
        condition: "ZeRO-2 and 3 exchange everything once a pass over the workers' leaves",
        threshold: "leaves / parallel.data > 2 at parallel.zero >= 2",
        advice: "lower numerics.invariant_up_to to the workers you have, or use parallel.zero = 1",
        rows: &["F10.7", "H55"],
        check: many_passes,
    },
    Lint {
        id: "short-deadline",
        condition: "a worker that pauses is taken for dead",
        threshold: "run.deadline < 5 s, with several workers",
        advice: "try 60",
        rows: &["504"],
        check: short_deadline,
    },
    Lint {
        id: "long-deadline",
        condition: "a worker that is gone is noticed late",
        threshold: "run.deadline > 600 s, with several workers",
        advice: "try 60",
        rows: &["504"],
        check: long_deadline,
    },
    Lint {
        id: "slow-link",
        condition: "links are slowed to what cannot hide behind computation",
        threshold: "0 < emulate.bandwidth < 1.25 GB/s, with several workers",
        advice: "expect to wait for gradients, or raise train.batch",
        rows: &["H5"],
        check: slow_link,
    },
    Lint {
        id: "sequence-alone",
        condition: "rows are to be dealt to workers that share layers, and no workers do",
        threshold: "parallel.sequence = true with parallel.tensor = 1",
        advice: "set parallel.tensor as well, or leave it out",
        rows: &[],
        check: sequence_alone,
    },
    Lint {
        id: "interleaved-alone",
        condition: "a schedule for several stages a worker is given one: it is 1F1B then",
        threshold: "parallel.schedule = \"interleaved\" with parallel.virtual_stages = 1",
        advice: "set parallel.virtual_stages = 2",
        rows: &[],
        check: interleaved_alone,
    },
];

fn has_several(recipe: &Recipe) -> bool {
    recipe.run.workers > 1
}

fn small_model(recipe: &Recipe) -> Option<String> {
    let (workers, params) = (recipe.run.workers, num_params(&recipe.model)?);
    (workers > MAX_WORKERS_OF_SMALL && params < SMALL_PARAMS)
        .then(|| format!("run.workers = {workers} share a model of {params} parameters"))
}

fn uneven_shares(recipe: &Recipe) -> Option<String> {
    let shares = &recipe.parallel.leaf_shares;
    let (least, most) = (*shares.iter().min()?, *shares.iter().max()?);
    (most > MAX_SHARE_RATIO * least).then(|| {
        format!(
            "parallel.leaf_shares = {shares:?} gives one worker {most} leaves and another {least}"
        )
    })
}

fn idle_workers(recipe: &Recipe) -> Option<String> {
    let (leaves, copies) = (recipe.num_leaves(), recipe.parallel.data);
    let busy = leaves as f64 / (copies * leaves.div_ceil(copies)) as f64;
    (recipe.parallel.leaf_shares.is_empty() && 1.0 - busy > MAX_IDLE).then(|| {
        let inactive = 100.0 * (1.0 - busy);
        format!(
            "parallel.data = {copies} does not divide numerics.invariant_up_to = {leaves} leaves: \
             {inactive:.0} % of their time is spent waiting"
        )
    })
}

fn small_buckets(recipe: &Recipe) -> Option<String> {
    let Bytes(bytes) = recipe.parallel.bucket_bytes;
    (has_several(recipe) && bytes > 0 && bytes < MIN_BUCKET_BYTES).then(|| {
        format!("parallel.bucket_bytes = {bytes} makes buckets that cost more to call than to move")
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
        .then(|| "parallel.overlap = false makes every byte of gradients wait".to_owned())
}

fn many_passes(recipe: &Recipe) -> Option<String> {
    let (leaves, copies, zero) = (recipe.num_leaves(), recipe.parallel.data, recipe.parallel.zero);
    let passes = leaves.div_ceil(copies);
    (copies > 1 && zero >= 2 && passes > MAX_PASSES).then(|| {
        format!(
            "parallel.zero = {zero} exchanges gradients {passes} times a step ({leaves} leaves)"
        )
    })
}

fn short_deadline(recipe: &Recipe) -> Option<String> {
    let seconds = recipe.run.deadline.0;
    (has_several(recipe) && seconds < MIN_DEADLINE)
        .then(|| format!("run.deadline = {seconds} takes a worker that pauses for dead"))
}

fn long_deadline(recipe: &Recipe) -> Option<String> {
    let seconds = recipe.run.deadline.0;
    (has_several(recipe) && seconds > MAX_DEADLINE)
        .then(|| format!("run.deadline = {seconds} finds a dead worker late"))
}

fn slow_link(recipe: &Recipe) -> Option<String> {
    let BytesPerSecond(rate) = recipe.emulate.default_link.bandwidth;
    (has_several(recipe) && rate > 0.0 && rate < SLOW_LINK)
        .then(|| format!("emulate.bandwidth = {rate} is slower than a network of ten gigabits"))
}

fn sequence_alone(recipe: &Recipe) -> Option<String> {
    let parallel = &recipe.parallel;
    (parallel.sequence && parallel.tensor == 1)
        .then(|| "parallel.sequence = true changes nothing at parallel.tensor = 1".to_owned())
}

fn interleaved_alone(recipe: &Recipe) -> Option<String> {
    let parallel = &recipe.parallel;
    let is_interleaved = parallel.schedule == PipelineSchedule::Interleaved;
    (parallel.pipeline > 1 && is_interleaved && parallel.virtual_stages == 1).then(|| {
        "parallel.schedule = \"interleaved\" with parallel.virtual_stages = 1 is 1F1B".to_owned()
    })
}
