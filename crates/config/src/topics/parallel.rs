//! Parallelism: degrees, ZeRO stage, buckets and shares of the leaves.

use super::collectives::{CollectiveRule, MAX_ENTRIES};
use super::limits::MAX_WORKERS;
use super::{Recipe, Recompute, recompute};
use crate::error::ConfigError;
use crate::lint::{Lint, lints};
use crate::rule::{Rule, RuleContext, Rules};
use crate::topic::{choices, topic};
use crate::units::Bytes;
use crate::value_type::shares_text;

topic! {
    /// Parallelism. Never changes a bit of the result.
    pub struct Parallel at parallel, table "parallel", layout() {
        /// Pipeline-parallel degree: number of workers among which the layers of one replica are
        /// divided as stages; divides run.workers.
        pipeline: usize = 1, integer(1, MAX_WORKERS);

        /// Virtual stages per pipeline rank; more than one needs parallel.schedule = interleaved.
        virtual_stages: usize = 1, integer(1, MAX_WORKERS);

        /// Pipeline schedule: the order of forward and backward passes of the micro-batches.
        schedule: PipelineSchedule = (
            "= \"interleaved\" with several virtual stages, else \"1f1b\"",
            default_schedule
        );

        /// Layers of each pipeline stage, such as "3,2", in model order; empty balances the stages
        /// automatically.
        stage_layers: Vec<usize> = "";

        /// Cost that balances the pipeline stages where parallel.stage_layers is empty: FLOPs of
        /// the layers, or their time as measured before the first step.
        partition: Partition = "flops";

        /// Tensor-parallel degree: number of workers among which every layer of a replica is
        /// sharded; same bits as on one worker only up to numerics.invariant_tensor_up_to.
        tensor: usize = 1, integer(1, MAX_WORKERS);

        /// Sequence parallelism: whether tensor-parallel ranks also shard the activations between
        /// the sharded linears (norms, dropout, residual stream) by rows.
        sequence: bool = false;

        /// Data-parallel degree: number of replicas of the model that share each batch.
        data: usize = ("= run.workers / (parallel.pipeline parallel.tensor)", default_data),
            integer(1, MAX_WORKERS);

        /// ZeRO stage: 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the
        /// weights.
        zero: u8 = 0, integer(0, 3);

        /// Activation recomputation in the backward pass: none, selective (attention and activation
        /// functions), full (whole layers), every-K (every K-th layer); auto is the fastest of
        /// none, selective and full that fits into the memory of the device.
        recompute: Recompute = "none", of(recompute::OR_AUTO),
            access(|r| Some(recompute::get(r)), recompute::set);

        /// Whether recomputation is chosen by memory; none until then.
        field recompute_is_auto: bool;

        /// Size of a gradient bucket, in bytes or as text such as "4MiB"; 0 lets the engine choose.
        bucket_bytes: Bytes = 0;

        /// Whether gradient communication overlaps the backward pass.
        overlap: bool = true;

        /// Algorithms of the collectives of gradients, weights and activations, by operation and
        /// size, such as [{op="all-gather", algorithm="ring", channels=2, min_bytes="1MiB"}]; the
        /// first entry that fits applies, and other calls use the algorithm with the lowest cost.
        /// An algorithm whose sums depend on the layout is refused.
        collectives: Vec<CollectiveRule> = none, at_most(MAX_ENTRIES);

        /// Reduction leaves of each data-parallel replica, such as "5,3", with the sum
        /// numerics.invariant_up_to; empty divides them evenly. Needs parallel.zero = 0 or 1.
        leaf_shares: Vec<usize> = "";
    }
}

/// Interleaved 1F1B with virtual stages, else plain 1F1B.
fn default_schedule(recipe: &Recipe) -> PipelineSchedule {
    let several = recipe.parallel.virtual_stages > 1;
    if several { PipelineSchedule::Interleaved } else { PipelineSchedule::OneFOneB }
}

/// Workers divided by the workers of a replica.
fn default_data(recipe: &Recipe) -> usize {
    (recipe.run.workers / recipe.parallel.workers_per_replica()).max(1)
}

choices! {
    /// Pipeline schedule.
    PipelineSchedule {
        /// GPipe: all forward passes, then all backward passes (Huang et al. 2019).
        GPipe = "gpipe",
        /// 1F1B: one forward and one backward pass in turn (Narayanan et al. 2019).
        OneFOneB = "1f1b",
        /// Interleaved 1F1B with virtual stages (Narayanan et al. 2021).
        Interleaved = "interleaved",
        /// Zero bubble: weight gradients fill the bubble (Qi et al. 2024).
        ZeroBubble = "zero-bubble",
    }

    /// Cost that balances pipeline stages.
    Partition {
        /// FLOPs of the layers.
        Flops = "flops",
        /// Time of the layers, measured on the first worker before the first step.
        Measured = "measured",
    }
}

impl Parallel {
    /// Number of workers of one replica.
    pub const fn workers_per_replica(&self) -> usize {
        self.pipeline * self.tensor
    }

    /// Number of pipeline stages, virtual ones included.
    pub const fn num_stages(&self) -> usize {
        self.pipeline * self.virtual_stages
    }
}

impl Recipe {
    /// Number of consecutive leaves of each replica: as set, or else as even as possible, with the
    /// remainder on the first replicas.
    pub fn leaf_shares(&self) -> Vec<usize> {
        if self.parallel.leaf_shares.is_empty() {
            return even_shares(self.num_leaves(), self.parallel.data);
        }
        self.parallel.leaf_shares.clone()
    }
}

/// Divides leaves over workers as evenly as possible, with the remainder on the first workers.
pub(crate) fn even_shares(num_leaves: usize, num_workers: usize) -> Vec<usize> {
    let (each, more) = (num_leaves / num_workers, num_leaves % num_workers);
    (0..num_workers).map(|worker| each + usize::from(worker < more)).collect()
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(
        &[
            "parallel.data",
            "run.workers",
            "parallel.pipeline",
            "parallel.tensor",
            "numerics.invariant_up_to",
        ],
        degrees_multiply_to_workers,
    ),
    Rule::new(
        &["parallel.leaf_shares", "run.workers", "numerics.invariant_up_to", "parallel.zero"],
        leaf_shares_fit,
    ),
]);

/// Data, pipeline and tensor degrees multiply to the number of workers.
fn degrees_multiply_to_workers(c: &RuleContext<'_>) -> Option<ConfigError> {
    let (data, workers, leaves) = (c.parallel.data, c.run.workers, c.num_leaves());
    let each = c.parallel.workers_per_replica();
    // A pipeline that does not divide the workers has an error of its own.
    let is_possible = workers.is_multiple_of(each);
    let is_right = data * each == workers && data <= leaves;
    if !c.is_set("parallel.data") || !is_possible || is_right {
        return None;
    }
    let replicas = workers / each;
    if data > leaves {
        let rule = format!("is more than numerics.invariant_up_to = {leaves}");
        return c.refuse(true, rule, replicas.min(leaves));
    }
    let rule = match each {
        1 => format!("is not run.workers = {workers}"),
        _ if c.parallel.tensor == 1 => {
            format!("times parallel.pipeline = {each} is not run.workers = {workers}")
        }
        _ => format!("replicas of {each} workers each are not run.workers = {workers}"),
    };
    let fix = if replicas <= leaves && !c.is_set("parallel.leaf_shares") {
        format!("try {replicas} or run.workers = {}", data * each)
    } else {
        format!("try {}", replicas.min(leaves))
    };
    Some(c.error_about(&c.keys[..4], rule, fix))
}

/// Unequal shares are one number of leaves per replica and add up to all leaves.
fn leaf_shares_fit(c: &RuleContext<'_>) -> Option<ConfigError> {
    let Parallel { leaf_shares: shares, zero, .. } = &c.parallel;
    let (workers, leaves) = (c.run.workers, c.num_leaves());
    let each = c.parallel.workers_per_replica();
    let replicas = workers / each;
    let possible = (1..=leaves.min(MAX_WORKERS as usize)).contains(&replicas);
    if shares.is_empty() || !possible {
        return None;
    }
    let even = format!("try \"{}\"", shares_text(&even_shares(leaves, replicas)));
    let (count, sum) = count_and_sum(shares);
    if shares.len() != replicas {
        let of_what = match each {
            1 => format!("run.workers = {workers}"),
            _ => format!("{replicas} replicas of {each} workers each"),
        };
        return Some(c.error_about(&c.keys[..2], format!("has {count} for {of_what}"), even));
    }
    if sum != leaves {
        let rule = format!("makes {sum} leaves where numerics.invariant_up_to = {leaves}");
        return Some(c.error_about(&c.keys[..3], rule, even));
    }
    let rule =
        format!("is not supported with parallel.zero = {zero}, which assigns leaves in turn");
    c.refuse(*zero >= 2, rule, "\"\" or parallel.zero = 1")
}

/// "1 number" or "3 numbers", and their sum, saturated, since huge numbers must be refused without
/// overflow.
pub(super) fn count_and_sum(shares: &[usize]) -> (String, usize) {
    let word = if shares.len() == 1 { "number" } else { "numbers" };
    let sum = shares.iter().fold(0_usize, |sum, share| sum.saturating_add(*share));
    (format!("{} {word}", shares.len()), sum)
}

/// Largest over smallest share of leaves.
const MAX_SHARE_RATIO: usize = 2;
/// Fraction of the workers' time that may be idle because of unequal leaves.
const MAX_IDLE: f64 = 0.1;
/// Bucket size below which the overhead of the call exceeds 5 % of its time.
const MIN_BUCKET_BYTES: u64 = 512 << 10;
/// Gradient exchanges per step beyond which communication dominates.
const MAX_PASSES: usize = 2;

pub(crate) const LINTS: &[Lint] = lints! {
    "unequal-shares": "one replica has far more leaves than another";
        if "largest over smallest of parallel.leaf_shares > 2";
        advice "keep them within a factor of 2";
        |r| let shares = &r.parallel.leaf_shares;
            let (least, most) = (*shares.iter().min()?, *shares.iter().max()?);
            when most > MAX_SHARE_RATIO * least =>
                "parallel.leaf_shares = {shares:?} gives one replica {most} leaves and another \
                 {least}";

    "idle-workers": "leaves do not divide evenly over the replicas, so some are idle";
        if "more than 10 % idle time";
        advice "choose a number of workers that divides the leaves, or more leaves";
        |r| let (leaves, replicas) = (r.num_leaves(), r.parallel.data);
            let busy = leaves as f64 / (replicas * leaves.div_ceil(replicas)) as f64;
            let idle = 100.0 * (1.0 - busy);
            when r.parallel.leaf_shares.is_empty() && 1.0 - busy > MAX_IDLE =>
                "parallel.data = {replicas} does not divide numerics.invariant_up_to = {leaves} \
                 leaves: {idle:.0} % of their time is idle";

    "small-buckets": "buckets are so small that call overhead exceeds 5 % of their time";
        if "0 < parallel.bucket_bytes < 512 KiB, with several workers";
        advice "set it to 0, which chooses by measurement";
        |r| let Bytes(bytes) = r.parallel.bucket_bytes;
            when r.run.workers > 1 && bytes > 0 && bytes < MIN_BUCKET_BYTES =>
                "parallel.bucket_bytes = {bytes} makes buckets whose call overhead exceeds their \
                 transfer";

    "large-buckets": "buckets are so large that no communication starts before the backward pass \
        ends";
        if "parallel.bucket_bytes > half of all gradients, with several workers";
        advice "set it to 0, which chooses by measurement";
        |r| let Bytes(bytes) = r.parallel.bucket_bytes;
            let gradients = (size_of::<f32>() * r.model.num_params()?) as u64;
            when r.run.workers > 1 && bytes > gradients / 2 =>
                "parallel.bucket_bytes = {bytes} holds most of {gradients} bytes of gradients";

    "no-overlap": "gradients are communicated only after the backward pass";
        if "parallel.overlap = false with several workers";
        advice "leave it on except for measurements";
        |r| when r.run.workers > 1 && !r.parallel.overlap =>
                "parallel.overlap = false exposes all gradient communication";

    "many-passes": "ZeRO-2 and ZeRO-3 exchange all gradients once per pass over the replicas' \
        leaves";
        if "leaves / parallel.data > 2 at parallel.zero >= 2";
        advice "lower numerics.invariant_up_to to the number of workers, or use parallel.zero = 1";
        |r| let (leaves, Parallel { data: replicas, zero, .. }) = (r.num_leaves(), &r.parallel);
            let passes = leaves.div_ceil(*replicas);
            when *replicas > 1 && *zero >= 2 && passes > MAX_PASSES =>
                "parallel.zero = {zero} exchanges gradients {passes} times per step ({leaves} \
                 leaves)";
};

pub(crate) const DEGREE_LINTS: &[Lint] = lints! {
    "sequence-alone": "sequence parallelism is on without tensor parallelism";
        if "parallel.sequence = true with parallel.tensor = 1";
        advice "set parallel.tensor as well, or remove it";
        |r| when r.parallel.sequence && r.parallel.tensor == 1 =>
                "parallel.sequence = true has no effect with parallel.tensor = 1";

    "interleaved-alone": "an interleaved schedule has one stage per rank, which is 1F1B";
        if "parallel.schedule = \"interleaved\" with parallel.virtual_stages = 1";
        advice "set parallel.virtual_stages = 2";
        |r| let Parallel { pipeline, schedule, virtual_stages, .. } = r.parallel;
            let is_interleaved = schedule == PipelineSchedule::Interleaved;
            when pipeline > 1 && is_interleaved && virtual_stages == 1 =>
                "parallel.schedule = \"interleaved\" with parallel.virtual_stages = 1 is 1F1B";
};
