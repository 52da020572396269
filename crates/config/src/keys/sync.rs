//! Keys of synchronization: all-reduce, local SGD and rounds; other modes are in sibling modules.

use super::embedding_rows::{
    REPLICATED_ROWS, REPLICATED_ROWS_AGE, ROW_CACHE, ROW_CACHE_EVERY, ROW_SHARDING, SPARSE_ROWS,
};
use super::gossip::{DEGREE, GRAPH, THREADS};
use super::parameter_server::{
    CONSISTENCY, CURVATURE, FINAL_STALENESS, LATE_GRADIENTS, QUORUM, QUORUM_TIMEOUT, READ_DELAY,
    REPLICAS, RESET_MOMENTUM, SERVERS, STALE_GRADIENTS, STALENESS, STALENESS_CONSTANT,
    STALENESS_DECAY, STALENESS_RULE, STALENESS_WEIGHT, SWITCH_ON_LOSS_SPIKE, SWITCH_TO_SYNC_AFTER,
};
use super::robust_aggregation::{AGGREGATION, ASSUMED_BYZANTINE, ATTACK, BYZANTINE, GRADIENT_CLIP};
use super::{MAX_WORKERS, float, integer};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{AverageScope, Outer, Recipe, StragglerPolicy, SyncMode, SyncPartition};
use crate::units::Seconds;
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

/// Modes with an all-reduce in every step.
const SYNCHRONOUS: &[&str] = &["all-reduce"];

/// Modes with rounds.
const LOCAL: &[&str] = &["local-sgd"];
const GROUPED: &[&str] = &["local-sgd", "parameter-server"];
const ROUNDS: &[&str] = &["local-sgd", "federated"];

/// Text of a value that is chosen from measurements.
const AUTO: &str = "auto";

pub(super) const SYNC: &[Key] = &[
    Key::new(
        "sync.mode",
        ValueType::Choice(SyncMode::NAMES),
        Fixed("\"all-reduce\""),
        field!(sync.mode: choice SyncMode),
        "How workers synchronize: all-reduce sums gradients in every step; local-sgd averages the \
         weights after a round of local steps; gossip averages with graph neighbours after every \
         step; parameter-server keeps the weights on servers that workers pull from and push \
         gradients to (the bits then depend on the number of workers); federated lets a \
         coordinator aggregate updates of clients that keep their data; hogwild lets threads of \
         one worker update shared memory without locks.",
    )
    .in_identity_when(is_not_all_reduce),
    Key::new(
        "sync.stragglers",
        ValueType::Choice(StragglerPolicy::NAMES),
        Fixed("\"wait\""),
        field!(sync.stragglers.policy: choice StragglerPolicy),
        "Straggler policy: wait; backup takes the fastest gradients, timeout those that arrive in \
         time, drop-slowest all but those of workers much slower than the median (the bits then \
         depend on timing); exclude pauses a persistently slow worker until it is fast again; \
         shares moves micro-batches to faster workers and changes no bit.",
    )
    .only_when("sync.mode", SYNCHRONOUS)
    .in_identity_when(|r| r.sync.stragglers.policy.loses_microbatches()),
    Key::new(
        "sync.backups",
        integer(1, MAX_WORKERS - 1),
        Fixed("1"),
        field!(sync.stragglers.backups: integer usize),
        "Number of backup workers: gradients that a step can do without.",
    )
    .only_when("sync.stragglers", &["backup"]),
    Key::new(
        "sync.timeout_ms",
        float(Open(0.0), Closed(3_600_000.0)),
        Fixed("1000.0"),
        Field {
            get: |r| Some(Value::Float((r.sync.stragglers.timeout.0 * 1e9).round() / 1e6)),
            set: |r, v| r.sync.stragglers.timeout = Seconds(v.as_float() / 1e3),
        },
        "Milliseconds that a step waits for gradients; it needs at least one.",
    )
    .only_when("sync.stragglers", &["timeout"]),
    Key::new(
        "sync.straggler_factor",
        float(Closed(1.0), Closed(1000.0)),
        Fixed("1.5"),
        field!(sync.stragglers.factor: f64),
        "Multiple of the median time above which a worker counts as slow.",
    )
    .only_when("sync.stragglers", &["drop-slowest", "exclude"]),
    Key::new(
        "sync.straggler_window",
        integer(1, 1_000_000),
        Fixed("5"),
        field!(sync.stragglers.window: integer u64),
        "Consecutive steps for which a worker must be slow, or fast again, before it is excluded \
         or readmitted; with shares, steps measured before micro-batches are reassigned.",
    )
    .only_when("sync.stragglers", &["exclude", "shares"])
    .in_identity_when(|r| r.sync.stragglers.policy.loses_microbatches()),
    Key::new(
        "sync.gradient_delay",
        integer(0, 1),
        Fixed("0"),
        field!(sync.gradient_delay: integer u64),
        "Delay of gradients in steps: with 1 the all-reduce overlaps the next step's computation, \
         and the first step updates nothing.",
    )
    .only_when("sync.mode", SYNCHRONOUS)
    .inactive_count(0)
    .in_identity_when(|r| r.sync.gradient_delay > 0),
    Key::new(
        "sync.local_steps",
        ValueType::OrName { value_type: &integer(1, 1_000_000), name: AUTO },
        Fixed("8"),
        Field {
            get: |r| {
                let number = Value::Integer(i64::try_from(r.sync.local_steps).unwrap_or(i64::MAX));
                let is_auto = r.sync.local_steps_is_auto;
                Some(if is_auto { Value::Text(AUTO.to_owned()) } else { number })
            },
            set: |r, v| {
                let number =
                    if let Value::Integer(number) = v { Some(*number as u64) } else { None };
                r.sync.local_steps_is_auto = number.is_none();
                r.sync.local_steps = number.unwrap_or(1);
            },
        },
        "Local steps per round, K. A round of one step is an all-reduce of gradients; auto \
         measures before the first step and chooses the fewest steps that keep communication at a \
         tenth of the time.",
    )
    .only_when("sync.mode", ROUNDS)
    .inactive_count(1),
    Key::new(
        "sync.final_local_steps",
        integer(1, 1_000_000),
        Derived { text: "= sync.local_steps", from: default_final_local_steps },
        field!(sync.final_local_steps: integer u64),
        "Local steps per round at the end of the run; the number changes linearly in between.",
    )
    .only_when("sync.mode", ROUNDS)
    .inactive_count(1),
    Key::new(
        "sync.worker_steps",
        ValueType::List { of: &integer(1, 1_000_000), max: MAX_WORKERS as usize },
        Nothing,
        Field {
            get: |r| {
                let list = r.sync.worker_steps.iter();
                let list = list.map(|n| Value::Integer(i64::try_from(*n).unwrap_or(i64::MAX)));
                let list: Vec<Value> = list.collect();
                (!list.is_empty()).then_some(Value::List(list))
            },
            set: |r, v| {
                let steps = v.as_list().iter().map(|n| n.as_integer() as u64);
                r.sync.worker_steps = steps.collect();
            },
        },
        "Local steps of each worker in a round, one number per worker: a slow worker takes fewer \
         and idles, and its update is rescaled to the mean number of steps.",
    )
    .only_when("sync.mode", LOCAL)
    .in_identity_when(|r| !r.sync.worker_steps.is_empty()),
    Key::new(
        "sync.group_workers",
        integer(0, MAX_WORKERS),
        Fixed("0"),
        field!(sync.group_workers: integer usize),
        "Size of groups of consecutive workers, such as those of a host. With local-sgd a group \
         averages after sync.local_steps and all workers after sync.inner_rounds of that; with \
         parameter servers a group reduces its gradients and its first worker pulls and pushes. 0 \
         has no groups.",
    )
    .only_when("sync.mode", GROUPED)
    .in_identity_when(|r| r.sync.group_workers > 1),
    Key::new(
        "sync.fragments",
        integer(1, 1024),
        Fixed("1"),
        field!(sync.fragments: integer usize),
        "Number of model fragments that are averaged in turn, each once in sync.local_steps, to \
         spread communication over time (Streaming DiLoCo); 1 averages the whole model at once.",
    )
    .only_when("sync.mode", LOCAL)
    .in_identity_when(|r| r.sync.fragments > 1)
    .inactive_count(1),
    Key::new(
        "sync.inner_rounds",
        integer(1, 1_000_000),
        Derived { text: "= 4 with groups or fragments, else 1", from: default_inner_rounds },
        field!(sync.inner_rounds: integer u64),
        "Number of group or fragment averages between two averages of the whole model over all \
         workers.",
    )
    .only_when("sync.mode", LOCAL)
    .in_identity_when(|r| r.sync.inner_rounds > 1)
    .inactive_count(1),
    Key::new(
        "sync.synchronous_fraction",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(sync.synchronous_fraction: f64),
        "Fraction of the run with an all-reduce in every step before the rounds begin (post-local \
         SGD).",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.average",
        ValueType::Choice(AverageScope::NAMES),
        Fixed("\"weights\""),
        field!(sync.average: choice AverageScope),
        "State averaged at the end of a round: weights only, with local optimizer state, or the \
         optimizer state as well.",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.partition",
        ValueType::Choice(SyncPartition::NAMES),
        Derived { text: "= \"iid\" for clients, else \"shared\"", from: default_partition },
        field!(sync.partition: choice SyncPartition),
        "Partition of the samples over reduction leaves or clients: shared, iid, by a Dirichlet \
         distribution over classes, or by-class with few classes each.",
    )
    .in_identity_when(Recipe::is_partitioned),
    Key::new(
        "sync.dirichlet_alpha",
        float(Open(0.0), Closed(1e6)),
        Fixed("0.5"),
        field!(sync.dirichlet_alpha: f64),
        "Concentration of the Dirichlet distribution; smaller values give more heterogeneous \
         parts.",
    )
    .only_when("sync.partition", &["dirichlet"]),
    Key::new(
        "sync.outer",
        ValueType::Choice(Outer::NAMES),
        Fixed("\"none\""),
        field!(sync.outer: choice Outer),
        "Outer optimizer of a round: none applies the mean update, nesterov uses it as the \
         gradient of SGD with Nesterov momentum (DiLoCo).",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.outer_lr",
        float(Open(0.0), Closed(10.0)),
        Fixed("0.7"),
        field!(sync.outer_lr: f64),
        "Learning rate of the outer optimizer.",
    )
    .only_when("sync.outer", &["nesterov"]),
    Key::new(
        "sync.outer_momentum",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(sync.outer_momentum: f64),
        "Momentum of the outer optimizer.",
    )
    .only_when("sync.outer", &["nesterov"]),
    GRAPH,
    DEGREE,
    THREADS,
    SERVERS,
    SPARSE_ROWS,
    ROW_SHARDING,
    ROW_CACHE,
    ROW_CACHE_EVERY,
    REPLICATED_ROWS,
    REPLICATED_ROWS_AGE,
    REPLICAS,
    CONSISTENCY,
    QUORUM,
    QUORUM_TIMEOUT,
    LATE_GRADIENTS,
    STALENESS,
    STALE_GRADIENTS,
    STALENESS_RULE,
    FINAL_STALENESS,
    CURVATURE,
    STALENESS_CONSTANT,
    STALENESS_WEIGHT,
    STALENESS_DECAY,
    SWITCH_TO_SYNC_AFTER,
    SWITCH_ON_LOSS_SPIKE,
    AGGREGATION,
    ASSUMED_BYZANTINE,
    GRADIENT_CLIP,
    BYZANTINE,
    ATTACK,
    RESET_MOMENTUM,
    READ_DELAY,
];

/// All-reduce recipes keep the hash they had before other modes existed.
fn is_not_all_reduce(recipe: &Recipe) -> bool {
    recipe.sync.mode != SyncMode::AllReduce
}

fn default_inner_rounds(recipe: &Recipe) -> Value {
    Value::Integer(if recipe.sync.group_workers.max(recipe.sync.fragments) > 1 { 4 } else { 1 })
}

fn default_final_local_steps(recipe: &Recipe) -> Value {
    Value::Integer(i64::try_from(recipe.sync.local_steps).unwrap_or(i64::MAX))
}

fn default_partition(recipe: &Recipe) -> Value {
    let usual = if recipe.is_federated() { SyncPartition::Iid } else { SyncPartition::Shared };
    Value::Text(usual.name().to_owned())
}
