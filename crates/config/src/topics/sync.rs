//! Synchronization: modes, rounds of local steps, and the partition of the samples.

use super::limits::MAX_WORKERS;
use super::run::group_sizes;
use super::{
    AggregationRule, Dtype, Gossip, Placement, Recipe, Reduction, Server, Stragglers, SyncMode,
    WireDtype,
};
use crate::error::ConfigError;
use crate::field::{auto_or, auto_value};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, RuleContext, Rules};
use crate::topic::{choices, topic};
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::ValueType;

/// Modes with rounds.
const LOCAL: &[&str] = &["local-sgd"];
const GROUPED: &[&str] = &["local-sgd", "parameter-server"];
const ROUNDS: &[&str] = &["local-sgd", "federated"];

/// Local steps per round.
const LOCAL_STEPS: ValueType = ValueType::integers(1, 1_000_000);

topic! {
    /// Synchronization of the workers.
    pub struct Sync at sync, table "sync" {
        /// How workers synchronize: all-reduce sums gradients in every step; local-sgd averages the
        /// weights after a round of local steps; gossip averages with graph neighbours after every
        /// step; parameter-server keeps the weights on servers that workers pull from and push
        /// gradients to (the bits then depend on the number of workers); federated lets a
        /// coordinator aggregate updates of clients that keep their data; hogwild lets threads of
        /// one worker update shared memory without locks.
        mode: SyncMode = "all-reduce", in_identity_unless_default();

        /// Straggler settings.
        part stragglers: Stragglers;

        /// Delay of gradients in steps: with 1 the all-reduce overlaps the next step's computation,
        /// and the first step updates nothing.
        gradient_delay: u64 = 0, integer(0, 1), when("sync.mode", &["all-reduce"]), inactive(0),
            in_identity_unless_default();

        /// Local steps per round, K. A round of one step is an all-reduce of gradients; auto
        /// measures before the first step and chooses the fewest steps that keep communication at a
        /// tenth of the time.
        local_steps: u64 = 8, or_auto(&LOCAL_STEPS),
            when("sync.mode", ROUNDS), inactive(1),
            access(
                |r| Some(auto_value(&r.sync.local_steps, r.sync.local_steps_is_auto)),
                |r, v| (r.sync.local_steps, r.sync.local_steps_is_auto) = auto_or(v, 1),
            );

        /// Whether the number is chosen from measurements; 1 until then.
        field local_steps_is_auto: bool;

        /// Local steps per round at the end of the run; the number changes linearly in between.
        final_local_steps: u64 = ("= sync.local_steps", |recipe| recipe.sync.local_steps),
            integer(1, 1_000_000), when("sync.mode", ROUNDS), inactive(1);

        /// Local steps of each worker in a round, one number per worker: a slow worker takes fewer
        /// and idles, and its update is rescaled to the mean number of steps.
        worker_steps: Vec<u64> = none, list_of(&LOCAL_STEPS, MAX_WORKERS as usize),
            when("sync.mode", LOCAL), in_identity_unless_default();

        /// Size of groups of consecutive workers, such as those of a host. With local-sgd a group
        /// averages after sync.local_steps and all workers after sync.inner_rounds of that; with
        /// parameter servers a group reduces its gradients and its first worker pulls and pushes. 0
        /// has no groups.
        group_workers: usize = 0, integer(0, MAX_WORKERS), when("sync.mode", GROUPED),
            in_identity_when(|r| r.sync.group_workers > 1);

        /// Number of model fragments that are averaged in turn, each once in sync.local_steps, to
        /// spread communication over time (Streaming DiLoCo); 1 averages the whole model at once.
        fragments: usize = 1, integer(1, 1024), when("sync.mode", LOCAL),
            in_identity_when(|r| r.sync.fragments > 1), inactive(1);

        /// Number of group or fragment averages between two averages of the whole model over all
        /// workers.
        inner_rounds: u64 = ("= 4 with groups or fragments, else 1", default_inner_rounds),
            integer(1, 1_000_000), when("sync.mode", LOCAL),
            in_identity_when(|r| r.sync.inner_rounds > 1), inactive(1);

        /// Fraction of the run with an all-reduce in every step before the rounds begin (post-local
        /// SGD).
        synchronous_fraction: f64 = 0.0, float(Closed(0.0), Open(1.0)), when("sync.mode", LOCAL);

        /// State averaged at the end of a round: weights only, with local optimizer state, or the
        /// optimizer state as well.
        average: AverageScope = "weights", when("sync.mode", LOCAL);

        /// Partition of the samples over reduction leaves or clients: shared, iid, by a Dirichlet
        /// distribution over classes, or by-class with few classes each.
        partition: SyncPartition = ("= \"iid\" for clients, else \"shared\"", default_partition),
            in_identity_when(Recipe::is_partitioned);

        /// Concentration of the Dirichlet distribution; smaller values give more heterogeneous
        /// parts.
        dirichlet_alpha: f64 = 0.5, float(Open(0.0), Closed(1e6)),
            when("sync.partition", &["dirichlet"]);

        /// Outer optimizer of a round: none applies the mean update, nesterov uses it as the
        /// gradient of SGD with Nesterov momentum (DiLoCo).
        outer: Outer = "none", when("sync.mode", LOCAL);

        /// Learning rate of the outer optimizer.
        outer_lr: f64 = 0.7, float(Open(0.0), Closed(10.0)), when("sync.outer", &["nesterov"]);

        /// Momentum of the outer optimizer.
        outer_momentum: f64 = 0.9, float(Closed(0.0), Open(1.0)), when("sync.outer", &["nesterov"]);

        /// Gossip settings.
        part gossip: Gossip;

        /// Threads of the worker that update the shared weights without locks.
        threads: usize = 4, integer(1, MAX_WORKERS), when("sync.mode", &["hogwild"]), inactive(1);

        /// Parameter-server settings.
        part server: Server;
    }
}

fn default_inner_rounds(recipe: &Recipe) -> u64 {
    if recipe.sync.group_workers.max(recipe.sync.fragments) > 1 { 4 } else { 1 }
}

fn default_partition(recipe: &Recipe) -> SyncPartition {
    if recipe.is_federated() { SyncPartition::Iid } else { SyncPartition::Shared }
}

choices! {
    /// State that workers average at the end of a round.
    AverageScope {
        /// Weights; the optimizer state stays local.
        Weights = "weights",
        /// Weights and optimizer state.
        State = "state",
    }

    /// Partition of the samples over reduction leaves or clients.
    SyncPartition {
        /// No partition.
        Shared = "shared",
        /// Random parts.
        Iid = "iid",
        /// Classes divided by a Dirichlet distribution.
        Dirichlet = "dirichlet",
        /// Few classes per part.
        ByClass = "by-class",
    }

    /// Outer optimizer.
    Outer {
        /// Applies the mean update.
        None = "none",
        /// SGD with Nesterov momentum on the negative mean update (DiLoCo, Douillard et al. 2023).
        Nesterov = "nesterov",
    }
}

impl Sync {
    /// Whether aggregation is robust or clipped, or Byzantine workers are simulated.
    pub fn has_byzantine_settings(&self) -> bool {
        let Server { aggregation, gradient_clip, byzantine, .. } = &self.server;
        *aggregation != AggregationRule::Mean || *gradient_clip > 0.0 || *byzantine > 0
    }
}

/// Rules of all modes with local steps.
pub(crate) const RULES: Rules = Rules::new(&[
    // A local step needs the whole model and optimizer on the worker.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("takes local steps, which need the whole model on every worker").with_shards(r);
    }),
    // The local state of a worker is lost when the worker leaves.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("keeps momentum on each worker, so the workers must not change").with(
            "run.workers",
            r.run.workers,
            r.run.elastic.is_some(),
        );
    }),
    // The mean over a worker's samples has the scale of the global mean; a sum has not.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("takes local steps with the mean of a worker's samples").with(
            "train.reduction",
            "\"mean\"",
            r.train.reduction != Reduction::Mean,
        );
    }),
    // The loss scale and the wire format are those of gradients summed in every step.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("takes local steps without a loss scale")
            .with("precision.compute", "\"bf16\"", r.precision.compute == Dtype::F16)
            .because("sends weight updates instead of gradients")
            .with("precision.wire", "\"f32\"", r.precision.wire != WireDtype::F32);
    }),
    // An automatic number of local steps is constant.
    Rule::new(&["sync.final_local_steps", "sync.local_steps"], |c| {
        let is_broken = c.sync.local_steps_is_auto && c.sync.final_local_steps != 1;
        let rule = "changes a number that sync.local_steps = \"auto\" chooses once";
        is_broken.then(|| c.error(rule, "remove it, or try sync.local_steps = 8"))
    }),
    Rule::new(
        &["sync.worker_steps", "sync.local_steps", "run.workers"],
        worker_steps_fit_the_round,
    ),
    // Groups have equal sizes.
    Rule::new(&["sync.group_workers", "run.workers"], |c| {
        let (size, workers) = (c.sync.group_workers, c.run.workers);
        let fits = |size| workers.is_multiple_of(size);
        let rule = format!("does not divide run.workers = {workers}");
        c.refuse(size >= 2 && !fits(size), rule, group_sizes(workers, fits))
    }),
    // Inner rounds average groups or fragments.
    Rule::new(&["sync.inner_rounds", "sync.group_workers", "sync.fragments"], |c| {
        let Sync { inner_rounds, group_workers, fragments, .. } = c.sync;
        let is_broken = inner_rounds != 1 && group_workers < 2 && fragments < 2;
        let rule = "needs groups or fragments, and there are none";
        c.refuse(is_broken, rule, "1, or sync.group_workers = 2")
    }),
    // Each fragment has a step of the round in which all workers average it.
    Rule::new(&["sync.fragments", "sync.local_steps", "sync.group_workers"], |c| {
        let Sync { fragments, group_workers, local_steps, final_local_steps, .. } = c.sync;
        if fragments >= 2 && group_workers > 1 {
            let rule =
                format!("are averaged over all workers, and sync.group_workers = {group_workers}");
            return c.refuse(true, rule, "1, or sync.group_workers = 0");
        }
        let least = local_steps.min(final_local_steps);
        let is_long = c.sync.local_steps_is_auto || fragments as u64 > least;
        let rule = format!("is more than the {least} steps of a round");
        let fix = format!("{least}, or sync.local_steps = {fragments}");
        c.refuse(fragments >= 2 && is_long, rule, fix)
    }),
])
.when(&["sync.mode"], |r| r.sync.mode != SyncMode::AllReduce);

/// One number per worker, in rounds of constant length without groups and fragments.
fn worker_steps_fit_the_round(c: &RuleContext<'_>) -> Option<ConfigError> {
    let others = ["sync.final_local_steps", "sync.group_workers", "sync.fragments"];
    let (sync, workers) = (&c.sync, c.run.workers);
    let len = sync.local_steps;
    if !c.all_valid(&others) || sync.worker_steps.is_empty() {
        return None;
    }
    let most = sync.worker_steps.iter().max().copied().unwrap_or(0);
    let (rule, fix) = if sync.worker_steps.len() != workers {
        let each = vec![len.to_string(); workers].join(", ");
        (format!("needs one number for each of run.workers = {workers}"), format!("[{each}]"))
    } else if sync.local_steps_is_auto || sync.final_local_steps != len {
        ("needs rounds of constant length".to_owned(), format!("sync.local_steps = {most}"))
    } else if sync.group_workers > 1 || sync.fragments > 1 {
        let fix = "sync.group_workers = 0 and sync.fragments = 1".to_owned();
        ("needs rounds without groups and fragments".to_owned(), fix)
    } else if most > len {
        (format!("exceeds the {len} steps of a round"), format!("sync.local_steps = {most}"))
    } else {
        return None;
    };
    c.refuse(true, rule, fix)
}

/// Rules of the partition of the samples over leaves or clients.
pub(crate) const PARTITION_RULES: Rules = Rules::new(&[
    // A partition divides data that all workers read.
    Rule::conflict(&["sync.partition"], "shared", |c, r| {
        let is_divided = r.data.placement != Placement::Shared;
        c.because("partitions data that all workers read").with(
            "data.placement",
            "\"shared\"",
            is_divided && !r.model.family.is_problem(),
        );
    }),
    // Every part contributes a constant number of samples per step.
    Rule::conflict(&["sync.partition"], "shared", |c, r| {
        c.because("takes a constant number of samples per part and step").with(
            "train.batch_schedule",
            "[]",
            !r.train.batch_schedule.is_empty(),
        );
    }),
    // Every part has at least one sample.
    Rule::new(&["problem.samples", "sync.partition"], |c| {
        let (parts, samples) = (c.num_parts(), c.model.problem.samples);
        let rule = format!("is less than the {parts} parts of the partition");
        c.refuse(c.model.family.is_problem() && samples < parts, rule, parts * 10)
    }),
])
.when(&["sync.partition", "sync.mode"], Recipe::is_partitioned);

/// Largest number of local steps without an outer optimizer.
const MAX_ROUND: u64 = 8;
/// Largest product of local steps and other workers, which acts like a staleness.
const MAX_DISTANCE: u64 = 1000;

pub(crate) const LINTS: &[Lint] = lints! {
    "long-rounds": "workers take many local steps without an outer optimizer";
        if "sync.local_steps > 8 without an outer optimizer, with several workers";
        advice "try 8, or sync.outer = \"nesterov\"";
        |r| let steps = long_round(r)?;
            when steps > MAX_ROUND && r.sync.outer == Outer::None =>
                "sync.local_steps = {steps} lets workers drift apart";

    "long-rounds-many-workers": "many local steps on many workers act like a large staleness";
        if "sync.local_steps x (run.workers - 1) >= 1,000";
        advice "take shorter rounds or fewer workers";
        |r| let (steps, workers) = (long_round(r)?, r.run.workers);
            let distance = steps.saturating_mul(workers as u64 - 1);
            when distance >= MAX_DISTANCE =>
                "sync.local_steps = {steps} with {workers} workers acts like a staleness of \
                 {distance}";

    "skewed-rounds": "workers train on heterogeneous data between two averages and drift apart";
        if "rounds of several steps with sync.partition = dirichlet or by-class, or data.placement \
            = local or partitioned";
        advice "take short rounds, watch the drift of round_finished, and see lockstep data skew";
        |r| let (steps, skew) = (long_round(r)?, skew(r)?);
            when true => "{skew} lets workers drift apart for {steps} steps at a time";

    "dropped-samples": "samples that only a slow worker has are dropped with its gradients";
        if "sync.stragglers = backup, timeout, drop-slowest or exclude where workers have \
            heterogeneous data";
        advice "use sync.stragglers = \"shares\", or data that all workers share";
        |r| let (policy, skew) = (r.sync.stragglers.policy, skew(r)?);
            when policy.loses_microbatches() && r.run.workers > 1 =>
                "sync.stragglers = \"{policy}\" drops samples with {skew}";
};

/// Local steps per round, if several workers take several steps.
fn long_round(recipe: &Recipe) -> Option<u64> {
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
    placement.divides().then(|| format!("data.placement = \"{placement}\""))
}
