//! Keys of training: portions, update rule, number formats, and the promise about bits.

use super::{MAX_BATCH, MAX_MICROBATCH, float, integer, usual_warmup};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Dtype, LrSchedule, OptimName, Reduction};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

pub(super) const TRAIN: &[Key] = &[
    Key::new(
        "train.steps",
        integer(1, 1_000_000_000_000),
        Fixed("600"),
        field!(train.steps: integer u64),
        "Number of optimizer steps.",
    ),
    Key::new(
        "train.batch",
        integer(1, MAX_BATCH),
        Fixed("16"),
        field!(train.batch: integer usize),
        "Sequences per optimizer step over all workers; a multiple of train.microbatch times \
         numerics.invariant_up_to.",
    ),
    Key::new(
        "train.microbatch",
        integer(1, MAX_MICROBATCH),
        Fixed("2"),
        field!(train.microbatch: integer usize),
        "Sequences per lane, the portion that goes through the model at once.",
    ),
    Key::new(
        "train.seed",
        integer(0, i64::MAX),
        Fixed("1"),
        field!(train.seed: integer u64),
        "Decides initial weights, dropout masks and the order of the data.",
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
        "Number of batches in one validation.",
    ),
    Key::new(
        "train.reduction",
        Kind::Choice(Reduction::NAMES),
        Fixed("\"mean\""),
        field!(train.reduction: choice Reduction),
        "Whether the gradient is the mean over the targets of a batch or their sum.",
    ),
    Key::new(
        "train.max_skipped",
        integer(0, 1_000_000_000_000),
        Fixed("0"),
        field!(train.max_skipped: integer u64),
        "How many steps in a row may be skipped because a gradient is not finite; 0 stops at the \
         first.",
    ),
];

pub(super) const OPTIM: &[Key] = &[
    Key::new(
        "optim.name",
        Kind::Choice(OptimName::NAMES),
        Fixed("\"adamw\""),
        field!(optim.name: choice OptimName),
        "The update rule.",
    ),
    Key::new(
        "optim.lr",
        float(Open(0.0), Closed(1000.0)),
        Fixed("3e-3"),
        field!(optim.lr: f64),
        "Highest learning rate of the schedule.",
    ),
    Key::new(
        "optim.weight_decay",
        float(Closed(0.0), Closed(1000.0)),
        Fixed("0.1"),
        field!(optim.weight_decay: f64),
        "Pull of the weights towards zero.",
    ),
    Key::new(
        "optim.clip",
        float(Closed(0.0), Closed(1e30)),
        Fixed("1.0"),
        field!(optim.clip: f64),
        "Largest global norm of the gradient; 0 switches clipping off.",
    ),
    Key::new(
        "optim.warmup_steps",
        integer(0, 1_000_000_000_000),
        Derived { text: "= train.steps / 10", from: usual_warmup },
        field!(optim.warmup_steps: integer u64),
        "Steps over which the learning rate rises to optim.lr; at most train.steps.",
    ),
    Key::new(
        "optim.schedule",
        Kind::Choice(LrSchedule::NAMES),
        Fixed("\"cosine\""),
        field!(optim.schedule: choice LrSchedule),
        "Course of the learning rate after the warm-up.",
    ),
    Key::new(
        "optim.final_lr_fraction",
        float(Closed(0.0), Closed(1.0)),
        Fixed("0.1"),
        field!(optim.final_lr_fraction: f64),
        "Learning rate at the last step, as a fraction of optim.lr.",
    )
    .only_when("optim.schedule", &["cosine", "linear"]),
    Key::new(
        "optim.beta1",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(optim.beta1: f64),
        "Decay of the running mean of gradients.",
    )
    .only_when("optim.name", &["adamw"]),
    Key::new(
        "optim.beta2",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.95"),
        field!(optim.beta2: f64),
        "Decay of the running mean of squared gradients.",
    )
    .only_when("optim.name", &["adamw"]),
    Key::new(
        "optim.eps",
        float(Closed(1e-30), Closed(1.0)),
        Fixed("1e-8"),
        field!(optim.eps: f64),
        "Added to the denominator of the update.",
    )
    .only_when("optim.name", &["adamw"]),
    Key::new(
        "optim.momentum",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(optim.momentum: f64),
        "Decay of the velocity.",
    )
    .only_when("optim.name", &["momentum"]),
];

pub(super) const PRECISION: &[Key] = &[Key::new(
    "precision.compute",
    Kind::Choice(Dtype::NAMES),
    Fixed("\"f32\""),
    field!(precision.compute: choice Dtype),
    "Format of activations, weights and gradients.",
)];

pub(super) const NUMERICS: &[Key] = &[Key::new(
    "numerics.invariant_up_to",
    Kind::PowerOfTwo { max: 64 },
    Fixed("8"),
    field!(numerics.invariant_up_to: integer usize),
    "Number of leaves of the gradient sum: any number of workers up to it gives the same bits.",
)];
