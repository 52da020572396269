//! Keys of how a run is laid out over workers. None of them changes a bit of the result.

use super::{MAX_WORKERS, float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Cell, Kind, parse_shares, shares_text};
use crate::recipe::{
    Elastic, IsaChoice, Isolation, Partition, PipelineSchedule, Recipe, Recompute, TransportChoice,
};
use crate::units::{Bytes, Seconds};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

pub(super) const RUN: &[Key] = &[
    Key::new(
        "run.workers",
        Kind::IntegerOrTable { min: 1, max: MAX_WORKERS, cells: RANGE },
        Derived {
            text: "= 2, or numerics.invariant_up_to where that is less",
            from: usual_workers,
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
        "Number of workers: the product of parallel.data, parallel.pipeline and parallel.tensor. \
         With {min, max} the run begins with the most, goes on with fewer when one is gone for \
         good, and takes it back when it returns.",
    ),
    Key::new(
        "run.threads",
        integer(0, 1024),
        Fixed("0"),
        field!(run.threads: integer usize),
        "Threads per worker; 0 divides the cores of the machine among its workers.",
    ),
    Key::new(
        "run.isolation",
        Kind::Choice(Isolation::NAMES),
        Fixed("\"processes\""),
        field!(run.isolation: choice Isolation),
        "Whether each worker is a process of its own or all are threads of one.",
    ),
    Key::new(
        "run.transport",
        Kind::Choice(TransportChoice::NAMES),
        Fixed("\"auto\""),
        field!(run.transport: choice TransportChoice),
        "How workers reach each other; auto takes shared memory inside a host and TCP between \
         hosts. threads needs run.isolation = threads, and shm needs processes.",
    ),
    Key::new(
        "run.encrypt",
        Kind::Bool,
        Fixed("false"),
        field!(run.encrypt: bool),
        "Whether all that workers send each other over TCP is encrypted; that they know the run's \
         secret is proven in any case.",
    ),
    Key::new(
        "run.deadline",
        float(Open(0.0), Closed(86_400.0)),
        Fixed("60.0"),
        Field {
            get: |r| Some(Value::Float(r.run.deadline.0)),
            set: |r, v| r.run.deadline = Seconds(v.as_float()),
        },
        "Seconds that a worker waits for another before it gives up and names it.",
    ),
    Key::new(
        "run.check_replicas_every",
        integer(0, 1_000_000_000_000),
        Fixed("0"),
        field!(run.check_replicas_every: integer u64),
        "Steps between two checks that all workers hold the same weights; 0 never checks.",
    ),
    Key::new(
        "run.isa",
        Kind::Choice(IsaChoice::NAMES),
        Fixed("\"auto\""),
        field!(run.isa: choice IsaChoice),
        "Instruction set of the kernels; auto takes the widest one, and all give the same bits.",
    ),
    Key::new(
        "run.dir",
        Kind::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(run.dir: String),
        "Folder of the run; empty makes a fresh one under runs.",
    ),
    Key::new(
        "run.save_optimizer",
        Kind::Bool,
        Fixed("true"),
        field!(run.save_optimizer: bool),
        "Whether the final weights are saved with what resuming needs: optimizer, step, cursor.",
    ),
    Key::new(
        "run.restarts",
        integer(0, 1_000_000),
        Fixed("0"),
        field!(run.restarts: integer u64),
        "How often workers are started again, from the newest checkpoint, after one was lost; 0 \
         never. Needs run.isolation = processes. Where run.workers is a range, how often each of \
         them is, before the run goes on without it.",
    ),
    Key::new(
        "run.rejoin",
        float(Open(0.0), Closed(31_536_000.0)),
        Fixed("60.0"),
        Field {
            get: |r| Some(Value::Float(r.run.rejoin.0)),
            set: |r, v| r.run.rejoin = Seconds(v.as_float()),
        },
        "Seconds after which a worker that was gone is tried again, where run.workers is a range; \
         doubled each time that it is gone again at once.",
    ),
];

/// What a range of workers is made of.
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

/// Two workers, the least that show everything that several do, where two give the same bits.
fn usual_workers(recipe: &Recipe) -> Value {
    integer_value(recipe.num_leaves().min(2))
}

/// What several stages a worker need, and one stage a worker is best served with.
fn usual_schedule(recipe: &Recipe) -> Value {
    let several = recipe.parallel.virtual_stages > 1;
    let schedule = if several { PipelineSchedule::Interleaved } else { PipelineSchedule::OneFOneB };
    Value::Text(schedule.name().to_owned())
}

/// The workers that a copy of the model does not take share the batch.
fn usual_data(recipe: &Recipe) -> Value {
    integer_value((recipe.run.workers / recipe.parallel.workers_per_copy()).max(1))
}

pub(super) const PARALLEL: &[Key] = &[
    Key::new(
        "parallel.pipeline",
        integer(1, MAX_WORKERS),
        Fixed("1"),
        field!(parallel.pipeline: integer usize),
        "Workers that the blocks of one copy of the model are dealt out to, as stages of a \
         pipeline; divides run.workers.",
    ),
    Key::new(
        "parallel.virtual_stages",
        integer(1, MAX_WORKERS),
        Fixed("1"),
        field!(parallel.virtual_stages: integer usize),
        "Stages of each worker of a pipeline; more than one needs parallel.schedule = interleaved.",
    ),
    Key::new(
        "parallel.schedule",
        Kind::Choice(PipelineSchedule::NAMES),
        Derived {
            text: "= \"interleaved\" with several virtual stages, else \"1f1b\"",
            from: usual_schedule,
        },
        field!(parallel.schedule: choice PipelineSchedule),
        "The order in which a pipeline runs its microbatches forward and backward.",
    ),
    Key::new(
        "parallel.stages",
        Kind::Shares,
        Fixed("\"\""),
        Field {
            get: |r| Some(Value::Text(shares_text(&r.parallel.stages))),
            set: |r, v| {
                r.parallel.stages = parse_shares(v.as_text()).expect("the kind accepted it");
            },
        },
        "Layers of each stage of a pipeline, such as \"3,2\", in the order of the model; empty \
         divides the work of all blocks as evenly as it can be.",
    ),
    Key::new(
        "parallel.partition",
        Kind::Choice(Partition::NAMES),
        Fixed("\"flops\""),
        field!(parallel.partition: choice Partition),
        "What stages of a pipeline have equal parts of, where parallel.stages is empty: the FLOPs \
         of blocks, or the time that they are measured to take before the first step.",
    ),
    Key::new(
        "parallel.tensor",
        integer(1, MAX_WORKERS),
        Fixed("1"),
        field!(parallel.tensor: integer usize),
        "Workers that the slices of every layer of one copy of the model are dealt out to; same \
         bits as on one worker only up to numerics.invariant_tensor_up_to.",
    ),
    Key::new(
        "parallel.sequence",
        Kind::Bool,
        Fixed("false"),
        field!(parallel.sequence: bool),
        "Whether those workers also divide the rows of what lies between the products: norms, \
         dropout and the stream.",
    ),
    Key::new(
        "parallel.data",
        integer(1, MAX_WORKERS),
        Derived { text: "= run.workers / (parallel.pipeline parallel.tensor)", from: usual_data },
        field!(parallel.data: integer usize),
        "Copies of the model that share each batch among them.",
    ),
    Key::new(
        "parallel.zero",
        integer(0, 3),
        Fixed("0"),
        field!(parallel.zero: integer u8),
        "What each worker keeps only its part of: 0 nothing, 1 the optimizer's state, 2 the \
         gradients too, 3 the weights too.",
    ),
    Key::new(
        "parallel.recompute",
        Kind::ChoiceOrEvery(Recompute::NAMES),
        Fixed("\"none\""),
        Field {
            get: |r| Some(Value::Text(r.parallel.recompute.to_string())),
            set: |r, v| {
                r.parallel.recompute =
                    Recompute::from_name(v.as_text()).expect("the kind accepted it");
            },
        },
        "What the backward pass computes again rather than keeps: none, selective (attention and \
         activation functions), full (whole blocks), every-K (every K-th block).",
    ),
    Key::new(
        "parallel.bucket_bytes",
        Kind::Bytes,
        Fixed("0"),
        Field {
            get: |r| Some(Value::Integer(r.parallel.bucket_bytes.0.cast_signed())),
            set: |r, v| r.parallel.bucket_bytes = Bytes(v.as_integer() as u64),
        },
        "Gradients that travel together, in bytes or as text such as \"4MiB\"; 0 lets the engine \
         choose.",
    ),
    Key::new(
        "parallel.overlap",
        Kind::Bool,
        Fixed("true"),
        field!(parallel.overlap: bool),
        "Whether gradients travel while the backward pass still computes others.",
    ),
    Key::new(
        "parallel.shares",
        Kind::Shares,
        Fixed("\"\""),
        Field {
            get: |r| Some(Value::Text(shares_text(&r.parallel.shares))),
            set: |r, v| {
                r.parallel.shares = parse_shares(v.as_text()).expect("the kind accepted it");
            },
        },
        "Leaves of each copy of the model, such as \"5,3\", one number a copy, together \
         numerics.invariant_up_to; empty divides them evenly. Needs parallel.zero = 0 or 1.",
    ),
];
