//! Keys of training: batches, optimizer and layout invariance.

use super::{
    MAX_BATCH, MAX_GROUPS, MAX_MICROBATCH, MAX_TENSOR_SHARDS, default_warmup, float, integer,
    integer_value,
};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{
    BatchChange, DecayShape, Group, LrScaling, LrSchedule, Milestone, OptimName, Reduction,
};
use crate::value::Value;
use crate::value_type::{Bound, Cell, MAX_STEPS, ValueType};

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

/// Text of a value that is chosen from the machine's memory.
const AUTO: &str = "auto";

pub(super) const TRAIN: &[Key] = &[
    Key::new(
        "train.steps",
        integer(1, MAX_STEPS),
        Fixed("1400"),
        field!(train.steps: integer u64),
        "Number of optimizer steps.",
    ),
    Key::new(
        "train.batch",
        integer(1, MAX_BATCH),
        Fixed("8"),
        field!(train.batch: integer usize),
        "Global batch: sequences per optimizer step over all workers; a multiple of \
         train.microbatch times numerics.invariant_up_to.",
    ),
    Key::new(
        "train.microbatch",
        ValueType::OrName { value_type: &integer(1, MAX_MICROBATCH), name: AUTO },
        Fixed("1"),
        Field {
            get: |r| {
                let train = &r.train;
                let number = || integer_value(train.microbatch_size);
                Some(if train.microbatch_is_auto { Value::Text(AUTO.to_owned()) } else { number() })
            },
            set: |r, v| {
                let number =
                    if let Value::Integer(number) = v { Some(*number as usize) } else { None };
                r.train.microbatch_is_auto = number.is_none();
                r.train.microbatch_size = number.unwrap_or(1);
            },
        },
        "Sequences per micro-batch; auto is the largest that fits into the machine's memory.",
    ),
    Key::new(
        "train.seed",
        integer(0, i64::MAX),
        Fixed("1"),
        field!(train.seed: integer u64),
        "Seed of initial weights, dropout masks and data order.",
    ),
    Key::new(
        "train.eval_every",
        integer(0, 1_000_000_000_000),
        Fixed("100"),
        field!(train.eval_every: integer u64),
        "Steps between two validations; 0 validates only at the end.",
    ),
    Key::new(
        "train.eval_batches",
        integer(1, 1_000_000),
        Fixed("8"),
        field!(train.eval_batches: integer usize),
        "Number of batches per validation.",
    ),
    Key::new(
        "train.reduction",
        ValueType::Choice(Reduction::NAMES),
        Fixed("\"mean\""),
        field!(train.reduction: choice Reduction),
        "Loss reduction over the targets of a batch: mean or sum.",
    ),
    Key::new(
        "train.max_skipped",
        integer(0, 1_000_000_000_000),
        Fixed("0"),
        field!(train.max_skipped: integer u64),
        "Maximum number of consecutive steps skipped for non-finite gradients; 0 stops at the \
         first.",
    ),
    Key::new(
        "train.batch_schedule",
        ValueType::List { of: &ValueType::Table(BATCH_CHANGE), max: 64 },
        Nothing,
        Field {
            get: |r| some_list(r.train.batch_schedule.iter().map(batch_change_value)),
            set: |r, v| r.train.batch_schedule = v.as_list().iter().map(batch_change).collect(),
        },
        "Batch-size schedule: batches that replace train.batch after a number of training tokens.",
    ),
    Key::new(
        "train.target_loss",
        float(Open(0.0), Closed(1000.0)),
        Nothing,
        Field {
            get: |r| r.train.target_loss.map(Value::Float),
            set: |r, v| r.train.target_loss = Some(v.as_float()),
        },
        "Validation loss at which the run stops; checked every train.eval_every steps.",
    ),
];

/// Cells of a change of the batch size.
const BATCH_CHANGE: &[Cell] = &[
    Cell::required("tokens", integer(0, i64::MAX)),
    Cell::required("batch", integer(1, MAX_BATCH)),
];

fn batch_change(table: &Value) -> BatchChange {
    let number = |name| table.cell(name).expect("it is required").as_integer();
    BatchChange { tokens: number("tokens") as u64, batch: number("batch") as usize }
}

fn batch_change_value(change: &BatchChange) -> Value {
    Value::Table(vec![
        ("tokens", count_value(change.tokens)),
        ("batch", integer_value(change.batch)),
    ])
}

/// Value of a count of tokens or steps.
fn count_value(count: u64) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// The list, if it is not empty.
fn some_list(values: impl Iterator<Item = Value>) -> Option<Value> {
    let values: Vec<Value> = values.collect();
    (!values.is_empty()).then_some(Value::List(values))
}

pub(super) const OPTIM: &[Key] = &[
    Key::new(
        "optim.name",
        ValueType::Choice(OptimName::NAMES),
        Fixed("\"adamw\""),
        field!(optim.name: choice OptimName),
        "Optimizer.",
    ),
    Key::new(
        "optim.lr",
        float(Open(0.0), Closed(1000.0)),
        Fixed("1e-2"),
        field!(optim.lr: f64),
        "Peak learning rate.",
    ),
    Key::new(
        "optim.weight_decay",
        float(Closed(0.0), Closed(1000.0)),
        Fixed("0.1"),
        field!(optim.weight_decay: f64),
        "Weight decay.",
    ),
    Key::new(
        "optim.clip",
        float(Closed(0.0), Closed(1e30)),
        Fixed("1.0"),
        field!(optim.clip: f64),
        "Maximum global gradient norm; 0 disables clipping.",
    ),
    Key::new(
        "optim.warmup_steps",
        integer(0, 1_000_000_000_000),
        Derived { text: "= train.steps / 10", from: default_warmup },
        field!(optim.warmup_steps: integer u64),
        "Steps of linear warm-up to optim.lr; at most train.steps.",
    ),
    Key::new(
        "optim.schedule",
        ValueType::Choice(LrSchedule::NAMES),
        Fixed("\"cosine\""),
        field!(optim.schedule: choice LrSchedule),
        "Learning-rate schedule after the warm-up.",
    ),
    Key::new(
        "optim.final_lr_fraction",
        float(Closed(0.0), Closed(1.0)),
        Fixed("0.1"),
        field!(optim.final_lr_fraction: f64),
        "Learning rate at the last step, as a fraction of optim.lr.",
    )
    .only_when("optim.schedule", &["cosine", "linear", "wsd"]),
    Key::new(
        "optim.drop_at",
        ValueType::List { of: &ValueType::Milestone, max: 64 },
        Fixed("[0.5, 0.75]"),
        Field {
            get: |r| Some(Value::List(r.optim.drop_at.iter().map(milestone_value).collect())),
            set: |r, v| r.optim.drop_at = v.as_list().iter().map(milestone).collect(),
        },
        "Milestones at which the learning rate drops.",
    )
    .only_when("optim.schedule", &["step"]),
    Key::new(
        "optim.drop_factor",
        float(Open(0.0), Closed(1.0)),
        Fixed("0.1"),
        field!(optim.drop_factor: f64),
        "Factor of the learning rate at each milestone.",
    )
    .only_when("optim.schedule", &["step"]),
    Key::new(
        "optim.decay_fraction",
        float(Open(0.0), Closed(1.0)),
        Fixed("0.2"),
        field!(optim.decay_fraction: f64),
        "Fraction of train.steps with learning-rate decay at the end.",
    )
    .only_when("optim.schedule", &["wsd"]),
    Key::new(
        "optim.decay_shape",
        ValueType::Choice(DecayShape::NAMES),
        Fixed("\"linear\""),
        field!(optim.decay_shape: choice DecayShape),
        "Shape of the final learning-rate decay.",
    )
    .only_when("optim.schedule", &["wsd"]),
    Key::new(
        "optim.lr_scaling",
        ValueType::Choice(LrScaling::NAMES),
        Fixed("\"none\""),
        field!(optim.lr_scaling: choice LrScaling),
        "Scaling of the learning rate with the batch size; never with the number of workers.",
    ),
    Key::new(
        "optim.lr_base_batch",
        integer(1, MAX_BATCH),
        Derived { text: "= train.batch", from: |recipe| integer_value(recipe.train.batch) },
        field!(optim.lr_base_batch: integer usize),
        "Batch size to which optim.lr refers.",
    )
    .only_when("optim.lr_scaling", &["linear", "sqrt"]),
    Key::new(
        "optim.beta1",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(optim.beta1: f64),
        "Decay of the first moment.",
    )
    .only_when("optim.name", &["adam", "adamw", "lamb"]),
    Key::new(
        "optim.beta2",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.95"),
        field!(optim.beta2: f64),
        "Decay of the second moment.",
    )
    .only_when("optim.name", &["adam", "adamw", "lamb"]),
    Key::new(
        "optim.eps",
        float(Closed(1e-30), Closed(1.0)),
        Fixed("1e-8"),
        field!(optim.eps: f64),
        "Epsilon in the denominator of the update.",
    )
    .only_when("optim.name", &["adam", "adamw", "lamb"]),
    Key::new(
        "optim.momentum",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(optim.momentum: f64),
        "Momentum factor.",
    )
    .only_when("optim.name", &["momentum", "nesterov", "lars"]),
    Key::new(
        "optim.trust_coefficient",
        float(Open(0.0), Closed(1000.0)),
        Fixed("1e-3"),
        field!(optim.trust_coefficient: f64),
        "Trust coefficient of LARS: norm of an update relative to the norm of its tensor, at a \
         learning rate of 1.",
    )
    .only_when("optim.name", &["lars"]),
    Key::new(
        "optim.groups",
        ValueType::List { of: &ValueType::Table(GROUP), max: MAX_GROUPS },
        Nothing,
        Field {
            get: |r| some_list(r.optim.groups.iter().map(group_value)),
            set: |r, v| r.optim.groups = v.as_list().iter().map(group).collect(),
        },
        "Parameter groups with settings of their own; the first group whose match fits a parameter \
         name applies. clip limits the norm of the group by itself; freeze_after and unfreeze_at \
         count steps.",
    ),
];

/// Cells of a parameter group.
const GROUP: &[Cell] = &[
    Cell::required("match", ValueType::Text { may_be_empty: false }),
    Cell::optional("lr_scale", float(Open(0.0), Closed(1e6))),
    Cell::optional("weight_decay", float(Closed(0.0), Closed(1000.0))),
    Cell::optional("clip", float(Closed(0.0), Closed(1e30))),
    Cell::optional("frozen", ValueType::Bool),
    Cell::optional("freeze_after", integer(1, MAX_STEPS)),
    Cell::optional("unfreeze_at", integer(1, MAX_STEPS)),
];

fn group(table: &Value) -> Group {
    let float = |name| table.cell(name).map(Value::as_float);
    let step = |name| table.cell(name).map(|value| value.as_integer() as u64);
    Group {
        pattern: table.cell("match").expect("it is required").as_text().to_owned(),
        lr_scale: float("lr_scale").unwrap_or(1.0),
        weight_decay: float("weight_decay"),
        clip: float("clip"),
        frozen: table.cell("frozen").is_some_and(Value::as_bool),
        freeze_after: step("freeze_after"),
        unfreeze_at: step("unfreeze_at"),
    }
}

/// Only settings that differ from the default, so that equivalent recipes are equal.
fn group_value(group: &Group) -> Value {
    let scale = (group.lr_scale.to_bits() != 1.0f64.to_bits()).then_some(group.lr_scale);
    let step = |step: Option<u64>| step.map(count_value);
    let cells = [
        ("match", Some(Value::Text(group.pattern.clone()))),
        ("lr_scale", scale.map(Value::Float)),
        ("weight_decay", group.weight_decay.map(Value::Float)),
        ("clip", group.clip.map(Value::Float)),
        ("frozen", group.frozen.then_some(Value::Bool(true))),
        ("freeze_after", step(group.freeze_after)),
        ("unfreeze_at", step(group.unfreeze_at)),
    ];
    let present = |(name, value): (_, Option<Value>)| value.map(|value| (name, value));
    Value::Table(cells.into_iter().filter_map(present).collect())
}

fn milestone(value: &Value) -> Milestone {
    match value {
        Value::Float(fraction) => Milestone::Fraction(*fraction),
        other => Milestone::Step(other.as_integer() as u64),
    }
}

fn milestone_value(milestone: &Milestone) -> Value {
    match milestone {
        Milestone::Step(step) => count_value(*step),
        Milestone::Fraction(fraction) => Value::Float(*fraction),
    }
}

pub(super) const NUMERICS: &[Key] = &[
    Key::new(
        "numerics.invariant_up_to",
        ValueType::PowerOfTwo { max: 64 },
        Fixed("8"),
        field!(numerics.invariant_up_to: integer usize),
        "Number of reduction leaves: every data-parallel degree up to it gives the same bits.",
    ),
    Key::new(
        "numerics.invariant_tensor_up_to",
        integer(1, MAX_TENSOR_SHARDS),
        Fixed("1"),
        field!(numerics.invariant_tensor_up_to: integer usize),
        "Number of tensor shards in whose fixed order the sums of a layer are made, so that any \
         parallel.tensor up to it gives the same bits; it divides model.heads, model.kv_heads, \
         model.ffn and model.vocab.",
    )
    .in_identity_when(|r| r.numerics.invariant_tensor_up_to != 1),
];
