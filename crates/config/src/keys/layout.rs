//! Keys of workers and parallelism. None of them changes a bit of the result.

use super::{MAX_WORKERS, float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{
    Elastic, IsaChoice, Isolation, Partition, PipelineSchedule, Recipe, Recompute, TransportChoice,
};
use crate::units::{Bytes, Seconds};
use crate::value::Value;
use crate::value_type::{Bound, Cell, ValueType, parse_shares, shares_text};

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

pub(super) const RUN: &[Key] = &[
    Key::new(
        "run.workers",
        ValueType::IntegerOrTable { min: 1, max: MAX_WORKERS, cells: RANGE },
        Derived {
            text: "= 2, or numerics.invariant_up_to where that is less",
            from: default_workers,
        },
        Field {
            get: |r| {
                Some(match r.run.elastic {
                    None => integer_value(r.run.workers),
                    Some(Elastic { min, max }) => {
                        Value::Table(vec![("min", integer_value(min)), ("max", integer_value(max))])
                    }
                })
            },
            set: set_workers,
        },
        "Number of workers: parallel.data times parallel.pipeline times parallel.tensor. With \
         {min, max} the run is elastic: it starts with max, continues with fewer after permanent \
         losses, and grows again when workers return.",
    ),
    Key::new(
        "run.threads",
        integer(0, 1024),
        Fixed("0"),
        field!(run.threads: integer usize),
        "Compute threads per worker; 0 divides the cores of the machine among its workers.",
    ),
    Key::new(
        "run.isolation",
        ValueType::Choice(Isolation::NAMES),
        Fixed("\"processes\""),
        field!(run.isolation: choice Isolation),
        "Whether each worker is a process or a thread of one process.",
    ),
    Key::new(
        "run.transport",
        ValueType::Choice(TransportChoice::NAMES),
        Fixed("\"auto\""),
        field!(run.transport: choice TransportChoice),
        "Transport between workers; auto uses shared memory within a host and TCP between hosts. \
         threads needs run.isolation = threads, shm needs processes.",
    ),
    Key::new(
        "run.encrypt",
        ValueType::Bool,
        Fixed("false"),
        field!(run.encrypt: bool),
        "Whether TCP traffic between workers is encrypted; workers authenticate with the run's \
         secret in any case.",
    ),
    Key::new(
        "run.deadline",
        float(Open(0.0), Closed(86_400.0)),
        Fixed("60.0"),
        Field {
            get: |r| Some(Value::Float(r.run.deadline.0)),
            set: |r, v| r.run.deadline = Seconds(v.as_float()),
        },
        "Seconds after which a worker stops waiting for another and reports it as lost.",
    ),
    Key::new(
        "run.check_replicas_every",
        integer(0, 1_000_000_000_000),
        Fixed("0"),
        field!(run.check_replicas_every: integer u64),
        "Steps between two checks that the weights of all replicas are identical; 0 never checks.",
    ),
    Key::new(
        "run.isa",
        ValueType::Choice(IsaChoice::NAMES),
        Fixed("\"auto\""),
        field!(run.isa: choice IsaChoice),
        "Instruction set of the kernels; auto uses the widest available, and all give the same \
         bits.",
    ),
    Key::new(
        "run.dir",
        ValueType::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(run.dir: String),
        "Run folder; empty creates a new one under runs.",
    ),
    Key::new(
        "run.save_optimizer",
        ValueType::Bool,
        Fixed("true"),
        field!(run.save_optimizer: bool),
        "Whether the final weights are saved with the state needed to resume: optimizer, step, \
         data position.",
    ),
    Key::new(
        "run.restarts",
        integer(0, 1_000_000),
        Fixed("0"),
        field!(run.restarts: integer u64),
        "Maximum number of restarts from the newest checkpoint after a worker is lost; 0 never \
         restarts. Needs run.isolation = processes. In an elastic run, the number per worker \
         before the run continues without it.",
    ),
    Key::new(
        "run.rejoin",
        float(Open(0.0), Closed(31_536_000.0)),
        Fixed("60.0"),
        Field {
            get: |r| Some(Value::Float(r.run.rejoin.0)),
            set: |r, v| r.run.rejoin = Seconds(v.as_float()),
        },
        "Seconds after which an elastic run tries a lost worker again; doubled each time it is \
         lost again at once.",
    ),
];

/// Cells of a range of workers.
const RANGE: &[Cell] = &[
    Cell::required("min", integer(1, MAX_WORKERS)),
    Cell::required("max", integer(1, MAX_WORKERS)),
];

fn set_workers(recipe: &mut Recipe, value: &Value) {
    let number = |value: &Value| usize::try_from(value.as_integer()).expect("at least 1");
    let cell = |name| value.cell(name).map(number).expect("both are required");
    recipe.run.elastic = match value {
        Value::Table(_) => Some(Elastic { min: cell("min"), max: cell("max") }),
        _ => None,
    };
    recipe.run.workers = recipe.run.elastic.map_or_else(|| number(value), |range| range.max);
}

/// Two workers where two give the same bits as one: the fewest that exercise communication.
fn default_workers(recipe: &Recipe) -> Value {
    integer_value(recipe.num_leaves().min(2))
}

/// Interleaved 1F1B with virtual stages, else plain 1F1B.
fn default_schedule(recipe: &Recipe) -> Value {
    let several = recipe.parallel.virtual_stages > 1;
    let schedule = if several { PipelineSchedule::Interleaved } else { PipelineSchedule::OneFOneB };
    Value::Text(schedule.name().to_owned())
}

/// Workers divided by the workers of a replica.
fn default_data(recipe: &Recipe) -> Value {
    integer_value((recipe.run.workers / recipe.parallel.workers_per_replica()).max(1))
}

pub(super) const PARALLEL: &[Key] = &[
    Key::new(
        "parallel.pipeline",
        integer(1, MAX_WORKERS),
        Fixed("1"),
        field!(parallel.pipeline: integer usize),
        "Pipeline-parallel degree: number of workers among which the layers of one replica are \
         divided as stages; divides run.workers.",
    ),
    Key::new(
        "parallel.virtual_stages",
        integer(1, MAX_WORKERS),
        Fixed("1"),
        field!(parallel.virtual_stages: integer usize),
        "Virtual stages per pipeline rank; more than one needs parallel.schedule = interleaved.",
    ),
    Key::new(
        "parallel.schedule",
        ValueType::Choice(PipelineSchedule::NAMES),
        Derived {
            text: "= \"interleaved\" with several virtual stages, else \"1f1b\"",
            from: default_schedule,
        },
        field!(parallel.schedule: choice PipelineSchedule),
        "Pipeline schedule: the order of forward and backward passes of the micro-batches.",
    ),
    Key::new(
        "parallel.stage_layers",
        ValueType::Shares,
        Fixed("\"\""),
        Field {
            get: |r| Some(Value::Text(shares_text(&r.parallel.stage_layers))),
            set: |r, v| {
                r.parallel.stage_layers = parse_shares(v.as_text()).expect("the kind accepted it");
            },
        },
        "Layers of each pipeline stage, such as \"3,2\", in model order; empty balances the stages \
         automatically.",
    ),
    Key::new(
        "parallel.partition",
        ValueType::Choice(Partition::NAMES),
        Fixed("\"flops\""),
        field!(parallel.partition: choice Partition),
        "Cost that balances the pipeline stages where parallel.stage_layers is empty: FLOPs of the \
         layers, or their time as measured before the first step.",
    ),
    Key::new(
        "parallel.tensor",
        integer(1, MAX_WORKERS),
        Fixed("1"),
        field!(parallel.tensor: integer usize),
        "Tensor-parallel degree: number of workers among which every layer of a replica is \
         sharded; same bits as on one worker only up to numerics.invariant_tensor_up_to.",
    ),
    Key::new(
        "parallel.sequence",
        ValueType::Bool,
        Fixed("false"),
        field!(parallel.sequence: bool),
        "Sequence parallelism: whether tensor-parallel ranks also shard the activations between \
         the sharded linears (norms, dropout, residual stream) by rows.",
    ),
    Key::new(
        "parallel.data",
        integer(1, MAX_WORKERS),
        Derived { text: "= run.workers / (parallel.pipeline parallel.tensor)", from: default_data },
        field!(parallel.data: integer usize),
        "Data-parallel degree: number of replicas of the model that share each batch.",
    ),
    Key::new(
        "parallel.zero",
        integer(0, 3),
        Fixed("0"),
        field!(parallel.zero: integer u8),
        "ZeRO stage: 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the \
         weights.",
    ),
    Key::new(
        "parallel.recompute",
        ValueType::ChoiceOrEvery(Recompute::NAMES),
        Fixed("\"none\""),
        Field {
            get: |r| Some(Value::Text(r.parallel.recompute.to_string())),
            set: |r, v| {
                r.parallel.recompute =
                    Recompute::from_name(v.as_text()).expect("the kind accepted it");
            },
        },
        "Activation recomputation in the backward pass: none, selective (attention and activation \
         functions), full (whole layers), every-K (every K-th layer).",
    ),
    Key::new(
        "parallel.bucket_bytes",
        ValueType::Bytes,
        Fixed("0"),
        Field {
            get: |r| Some(Value::Integer(r.parallel.bucket_bytes.0.cast_signed())),
            set: |r, v| r.parallel.bucket_bytes = Bytes(v.as_integer() as u64),
        },
        "Size of a gradient bucket, in bytes or as text such as \"4MiB\"; 0 lets the engine \
         choose.",
    ),
    Key::new(
        "parallel.overlap",
        ValueType::Bool,
        Fixed("true"),
        field!(parallel.overlap: bool),
        "Whether gradient communication overlaps the backward pass.",
    ),
    Key::new(
        "parallel.leaf_shares",
        ValueType::Shares,
        Fixed("\"\""),
        Field {
            get: |r| Some(Value::Text(shares_text(&r.parallel.leaf_shares))),
            set: |r, v| {
                r.parallel.leaf_shares = parse_shares(v.as_text()).expect("the kind accepted it");
            },
        },
        "Reduction leaves of each data-parallel replica, such as \"5,3\", with the sum \
         numerics.invariant_up_to; empty divides them evenly. Needs parallel.zero = 0 or 1.",
    ),
];
