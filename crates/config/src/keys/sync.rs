//! Keys of how often workers agree: after every step, or after rounds of steps of their own.

use super::loose::{
    CONSISTENCY, DEGREE, DELAY, GRAPH, REPLICAS, SERVERS, STALENESS, STALENESS_DECAY,
    STALENESS_WEIGHT, THREADS,
};
use super::rows::{HOT_EVERY, HOT_ROWS, ROWS_BY, SPARSE_ROWS, SPREAD_AGE, SPREAD_ROWS};
use super::served::{
    ATTACK, BEYOND, BYZANTINE, CLOSE_AFTER, COMBINE, CURVATURE, FINAL_STALENESS, GRADIENT_CLIP,
    LATE, LIARS, QUORUM, RESETS_MOMENTUM, SPIKE, STALENESS_CONSTANT, STALENESS_RULE, SWITCH_AFTER,
};
use super::{MAX_WORKERS, float, integer};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Averaged, Outer, Recipe, Stragglers, SyncMode, SyncPartition};
use crate::units::Seconds;
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

/// Where gradients are added up in every step.
const SYNCHRONOUS: &[&str] = &["all-reduce"];

/// Where rounds mean anything.
const LOCAL: &[&str] = &["local-sgd"];
const GROUPED: &[&str] = &["local-sgd", "parameter-server"];
const ROUNDS: &[&str] = &["local-sgd", "federated"];

/// The word for what is chosen when the links are known.
const AUTO: &str = "auto";

pub(super) const SYNC: &[Key] = &[
    Key::new(
        "sync.mode",
        Kind::Choice(SyncMode::NAMES),
        Fixed("\"all-reduce\""),
        field!(sync.mode: choice SyncMode),
        "When workers agree: all-reduce adds up gradients in every step; local-sgd lets each \
         worker take steps of its own and averages the weights at the end of a round; gossip \
         lets it average with a few neighbours after every step; parameter-server keeps weights \
         on servers that workers pull from and push gradients to (the bits then depend on the \
         workers); federated lets clients of their own take steps, under a coordinator; hogwild \
         lets threads of one worker step the same memory without a lock.",
    )
    .counting_when(is_lazy),
    Key::new(
        "sync.stragglers",
        Kind::Choice(Stragglers::NAMES),
        Fixed("\"wait\""),
        field!(sync.uneven.stragglers: choice Stragglers),
        "What a step does about a worker that is late: wait; backup takes the gradients of the \
         fastest, timeout those that are there in time, drop-slowest all but those of workers that \
         take much longer than the middle one (the bits then depend on time); exclude lets a \
         worker that is slow for long pause until it is fast again; shares moves micro-batches to workers \
         that are faster, and changes no bit.",
    )
    .only_when("sync.mode", SYNCHRONOUS)
    .counting_when(|r| r.sync.uneven.stragglers.loses_microbatches()),
    Key::new(
        "sync.backups",
        integer(1, MAX_WORKERS - 1),
        Fixed("1"),
        field!(sync.uneven.backups: integer usize),
        "Workers that a step can do without.",
    )
    .only_when("sync.stragglers", &["backup"]),
    Key::new(
        "sync.timeout_ms",
        float(Open(0.0), Closed(3_600_000.0)),
        Fixed("1000.0"),
        Field {
            get: |r| Some(Value::Float((r.sync.uneven.timeout.0 * 1e9).round() / 1e6)),
            set: |r, v| r.sync.uneven.timeout = Seconds(v.as_float() / 1e3),
        },
        "Milliseconds that a step gives its workers; it waits for one of them in any case.",
    )
    .only_when("sync.stragglers", &["timeout"]),
    Key::new(
        "sync.slack",
        float(Closed(1.0), Closed(1000.0)),
        Fixed("1.5"),
        field!(sync.uneven.slack: f64),
        "How many times as long as the middle one a worker may take before it counts as slow.",
    )
    .only_when("sync.stragglers", &["drop-slowest", "exclude"]),
    Key::new(
        "sync.patience",
        integer(1, 1_000_000),
        Fixed("5"),
        field!(sync.uneven.patience: integer u64),
        "Steps in a row that a worker is slow, or fast again, before it is left out, or taken in; \
         steps that micro-batches are timed for before they are divided anew.",
    )
    .only_when("sync.stragglers", &["exclude", "shares"])
    .counting_when(|r| r.sync.uneven.stragglers.loses_microbatches()),
    Key::new(
        "sync.delay",
        integer(0, 1),
        Fixed("0"),
        field!(sync.uneven.delay: integer u64),
        "How many steps old the gradients are that a step goes by: with 1 they are added up while \
         the next ones are computed, and the first step changes nothing.",
    )
    .only_when("sync.mode", SYNCHRONOUS)
    .else_count(0)
    .counting_when(|r| r.sync.uneven.delay > 0),
    Key::new(
        "sync.local_steps",
        Kind::OrWord { kind: &integer(1, 1_000_000), word: AUTO },
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
        "Steps of a round, K. A round of one step is an all-reduce of gradients; auto measures \
         before the first step, and takes as few as let workers exchange a tenth of the time.",
    )
    .only_when("sync.mode", ROUNDS)
    .else_count(1),
    Key::new(
        "sync.final_local_steps",
        integer(1, 1_000_000),
        Derived { text: "= sync.local_steps", from: same_at_the_end },
        field!(sync.final_local_steps: integer u64),
        "Steps of a round at the end of the run; in between the number changes evenly.",
    )
    .only_when("sync.mode", ROUNDS)
    .else_count(1),
    Key::new(
        "sync.worker_steps",
        Kind::List { of: &integer(1, 1_000_000), max: MAX_WORKERS as usize },
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
        "Steps of a round that each worker takes, one number for each: a slow one takes fewer and \
         rests, and its change counts as if it had taken as many as the others in the mean.",
    )
    .only_when("sync.mode", LOCAL)
    .counting_when(|r| !r.sync.worker_steps.is_empty()),
    Key::new(
        "sync.group_workers",
        integer(0, MAX_WORKERS),
        Fixed("0"),
        field!(sync.group_workers: integer usize),
        "Consecutive workers, such as those of a host, that average among themselves after \
         sync.local_steps, while all average after sync.inner_rounds of that; with servers, that \
         add up their gradients, of which the first pulls and pushes for all; 0 has no groups.",
    )
    .only_when("sync.mode", GROUPED)
    .counting_when(|r| r.sync.group_workers > 1),
    Key::new(
        "sync.fragments",
        integer(1, 1024),
        Fixed("1"),
        field!(sync.fragments: integer usize),
        "Fragments of the model that are averaged in turn, each once in sync.local_steps, so that \
         bytes are spread over the time (streaming); 1 averages all of it at once.",
    )
    .only_when("sync.mode", LOCAL)
    .counting_when(|r| r.sync.fragments > 1)
    .else_count(1),
    Key::new(
        "sync.inner_rounds",
        integer(1, 1_000_000),
        Derived { text: "= 4 with groups or fragments, else 1", from: usual_rounds },
        field!(sync.inner_rounds: integer u64),
        "How often groups or fragments average until all workers average everything.",
    )
    .only_when("sync.mode", LOCAL)
    .counting_when(|r| r.sync.inner_rounds > 1)
    .else_count(1),
    Key::new(
        "sync.synchronous",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(sync.synchronous: f64),
        "The share of the run that adds up gradients in every step before rounds begin \
         (post-local SGD).",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.average",
        Kind::Choice(Averaged::NAMES),
        Fixed("\"weights\""),
        field!(sync.average: choice Averaged),
        "What is averaged at the end of a round: weights alone, each worker keeping its own \
         momentum, or the optimizer's state too.",
    )
    .only_when("sync.mode", LOCAL),
    Key::new(
        "sync.partition",
        Kind::Choice(SyncPartition::NAMES),
        Derived { text: "= \"iid\" for clients, else \"shared\"", from: usual_partition },
        field!(sync.partition: choice SyncPartition),
        "Which samples each leaf of the gradient sum, or each client, learns from: all of them, or \
         its own part, by chance, by Dirichlet's distribution over classes, or of few classes.",
    )
    .counting_when(Recipe::has_parts),
    Key::new(
        "sync.alpha",
        float(Open(0.0), Closed(1e6)),
        Fixed("0.5"),
        field!(sync.alpha: f64),
        "Dirichlet's: the smaller, the more parts differ.",
    )
    .only_when("sync.partition", &["dirichlet"]),
    Key::new(
        "sync.outer",
        Kind::Choice(Outer::NAMES),
        Fixed("\"none\""),
        field!(sync.outer: choice Outer),
        "What becomes of the mean change of a round: none takes it as it is, nesterov gives it to \
         an optimizer with momentum, as if it were a gradient (DiLoCo).",
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
    ROWS_BY,
    HOT_ROWS,
    HOT_EVERY,
    SPREAD_ROWS,
    SPREAD_AGE,
    REPLICAS,
    CONSISTENCY,
    QUORUM,
    CLOSE_AFTER,
    LATE,
    STALENESS,
    BEYOND,
    STALENESS_RULE,
    FINAL_STALENESS,
    CURVATURE,
    STALENESS_CONSTANT,
    STALENESS_WEIGHT,
    STALENESS_DECAY,
    SWITCH_AFTER,
    SPIKE,
    COMBINE,
    LIARS,
    GRADIENT_CLIP,
    BYZANTINE,
    ATTACK,
    RESETS_MOMENTUM,
    DELAY,
];

/// Recipes from before there was a choice keep their identity.
fn is_lazy(recipe: &Recipe) -> bool {
    recipe.sync.mode != SyncMode::AllReduce
}

fn usual_rounds(recipe: &Recipe) -> Value {
    Value::Integer(if recipe.sync.group_workers.max(recipe.sync.fragments) > 1 { 4 } else { 1 })
}

fn same_at_the_end(recipe: &Recipe) -> Value {
    Value::Integer(i64::try_from(recipe.sync.local_steps).unwrap_or(i64::MAX))
}

fn usual_partition(recipe: &Recipe) -> Value {
    let usual = if recipe.is_federated() { SyncPartition::Iid } else { SyncPartition::Shared };
    Value::Text(usual.name().to_owned())
}
