//! Keys of gradient compression.

use super::{MAX_GROUPS, MAX_WORKERS, default_warmup, float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{CompressMethod, CompressOverride, OptimName, Recipe};
use crate::value::Value;
use crate::value_type::{Bound, Cell, MAX_STEPS, ValueType};

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

const RATIO: ValueType = float(Open(0.0), Closed(1.0));
const BITS: ValueType = integer(2, 8);
const RANK: ValueType = integer(1, 1024);

/// All methods but `none`.
const ANY: &[&str] = CompressMethod::NAMES.split_at(1).1;

pub(super) const COMPRESS: &[Key] = &[
    Key::new(
        "compress.method",
        ValueType::Choice(CompressMethod::NAMES),
        Fixed("\"none\""),
        field!(compress.method: choice CompressMethod),
        "Gradient compression: bf16 and fp16 cast to two bytes; int8 and qsgd quantize with \
         stochastic rounding; top-k, random-k and dgc send few elements; sign sends one bit per \
         element; power-sgd sends low-rank factors; one-bit-adam sends the signs of Adam's \
         momentum (the bits then depend on the number of workers).",
    )
    .in_identity_when(|r| r.compress.is_on()),
    Key::new(
        "compress.ratio",
        RATIO,
        Fixed("0.01"),
        field!(compress.ratio: f64),
        "Fraction of elements that are sent.",
    )
    .only_when("compress.method", &["top-k", "random-k", "dgc"]),
    Key::new(
        "compress.ratio_warmup_steps",
        integer(0, MAX_STEPS),
        Derived { text: "= train.steps / 10", from: default_warmup },
        field!(compress.ratio_warmup_steps: integer u64),
        "Steps over which the fraction falls from 0.25 to compress.ratio, by a factor of four each \
         time.",
    )
    .only_when("compress.method", &["dgc"])
    .inactive_count(0),
    Key::new(
        "compress.momentum",
        float(Closed(0.0), Open(1.0)),
        Derived { text: "= 0.9 for optim.name = sgd, else 0", from: default_momentum },
        field!(compress.momentum: f64),
        "Momentum of each worker's gradients before the selection, in place of the optimizer's \
         (momentum correction).",
    )
    .only_when("compress.method", &["dgc"]),
    Key::new(
        "compress.bits",
        BITS,
        Fixed("4"),
        field!(compress.bits: integer u32),
        "Bits per element.",
    )
    .only_when("compress.method", &["qsgd"]),
    Key::new(
        "compress.rank",
        RANK,
        Fixed("4"),
        field!(compress.rank: integer usize),
        "Rank of the factors.",
    )
    .only_when("compress.method", &["power-sgd"]),
    Key::new(
        "compress.overrides",
        ValueType::List { of: &ValueType::Table(OVERRIDE), max: MAX_GROUPS },
        Nothing,
        Field {
            get: |r| {
                let list: Vec<Value> = r.compress.overrides.iter().map(override_value).collect();
                (!list.is_empty()).then_some(Value::List(list))
            },
            set: |r, v| r.compress.overrides = v.as_list().iter().map(override_of).collect(),
        },
        "Settings for single tensors: dense sends them uncompressed, the others replace the key of \
         that name; the first entry whose match fits the parameter name applies.",
    )
    .only_when("compress.method", ANY),
    Key::new(
        "compress.group_workers",
        integer(0, MAX_WORKERS),
        Fixed("0"),
        field!(compress.group_workers: integer usize),
        "Size of groups of consecutive workers, such as those of a host, that reduce uncompressed \
         gradients among themselves; only traffic between groups is compressed. 0 has no groups.",
    )
    .only_when("compress.method", ANY)
    .in_identity_when(|r| r.compress.group_workers > 1),
    Key::new(
        "compress.warmup_steps",
        integer(0, 1_000_000_000_000),
        Derived {
            text: "= a fifth of train.steps for one-bit-adam, else 0",
            from: default_dense_steps,
        },
        field!(compress.warmup_steps: integer u64),
        "Steps at the beginning with uncompressed gradients.",
    )
    .only_when("compress.method", ANY),
    Key::new(
        "compress.error_feedback",
        ValueType::Bool,
        Derived {
            text: "= false for bf16, int8 and qsgd, else true",
            from: default_error_feedback,
        },
        field!(compress.error_feedback: bool),
        "Whether the compression error is added to the next gradient.",
    )
    .only_when("compress.method", ANY),
    Key::new(
        "compress.allow_biased",
        ValueType::Bool,
        Fixed("false"),
        field!(compress.allow_biased: bool),
        "Allows a biased method without error feedback, for experiments; such a run may not \
         converge.",
    )
    .only_when("compress.method", ANY),
];

fn default_dense_steps(recipe: &Recipe) -> Value {
    let steps = match recipe.compress.method {
        CompressMethod::OneBitAdam => (recipe.train.steps / 5).max(1),
        _ => 0,
    };
    Value::Integer(i64::try_from(steps).unwrap_or(i64::MAX))
}

fn default_error_feedback(recipe: &Recipe) -> Value {
    let method = recipe.compress.method;
    let is_unbiased =
        matches!(method, CompressMethod::Bf16 | CompressMethod::Int8 | CompressMethod::Qsgd);
    Value::Bool(method != CompressMethod::None && !is_unbiased)
}

/// Momentum correction (Lin et al. 2018) for plain SGD; other optimizers have momentum already.
fn default_momentum(recipe: &Recipe) -> Value {
    let is_plain = recipe.optim.name == OptimName::Sgd;
    let is_dgc = recipe.compress.method == CompressMethod::Dgc;
    Value::Float(if is_plain && is_dgc { 0.9 } else { 0.0 })
}

const OVERRIDE: &[Cell] = &[
    Cell::required("match", ValueType::Text { may_be_empty: false }),
    Cell::optional("dense", ValueType::Bool),
    Cell::optional("ratio", RATIO),
    Cell::optional("bits", BITS),
    Cell::optional("rank", RANK),
];

fn override_of(table: &Value) -> CompressOverride {
    let integer = |name| table.cell(name).map(Value::as_integer);
    CompressOverride {
        pattern: table.cell("match").expect("it is required").as_text().to_owned(),
        dense: table.cell("dense").is_some_and(Value::as_bool),
        ratio: table.cell("ratio").map(Value::as_float),
        bits: integer("bits").map(|bits| bits as u32),
        rank: integer("rank").map(|rank| rank as usize),
    }
}

fn override_value(rule: &CompressOverride) -> Value {
    let cells = [
        ("match", Some(Value::Text(rule.pattern.clone()))),
        ("dense", rule.dense.then_some(Value::Bool(true))),
        ("ratio", rule.ratio.map(Value::Float)),
        ("bits", rule.bits.map(|bits| Value::Integer(i64::from(bits)))),
        ("rank", rule.rank.map(integer_value)),
    ];
    let present = |(name, value): (_, Option<Value>)| value.map(|value| (name, value));
    Value::Table(cells.into_iter().filter_map(present).collect())
}
