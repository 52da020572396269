//! Keys of compression: in how few bytes gradients travel.

use super::{MAX_GROUPS, MAX_WORKERS, float, integer, integer_value, usual_warmup};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Cell, Kind, MAX_STEPS};
use crate::recipe::{CompressMethod, Level, OptimName, Recipe};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

const RATIO: Kind = float(Open(0.0), Closed(1.0));
const BITS: Kind = integer(2, 8);
const RANK: Kind = integer(1, 1024);

/// Every method but none.
const ANY: &[&str] = CompressMethod::NAMES.split_at(1).1;

pub(super) const COMPRESS: &[Key] = &[
    Key::new(
        "compress.method",
        Kind::Choice(CompressMethod::NAMES),
        Fixed("\"none\""),
        field!(compress.method: choice CompressMethod),
        "How gradients are written on their way: bf16 and fp16 in two bytes, int8 and qsgd in \
         fewer, rounded by chance; top-k, random-k and dgc send few elements, sign one bit of \
         each, power-sgd thin matrices, one-bit-adam the signs of Adam's momentum (the bits then \
         depend on the workers).",
    )
    .counting_when(|r| r.compress.is_on()),
    Key::new(
        "compress.ratio",
        RATIO,
        Fixed("0.01"),
        field!(compress.ratio: f64),
        "The share of elements that travel.",
    )
    .only_when("compress.method", &["top-k", "random-k", "dgc"]),
    Key::new(
        "compress.ratio_warmup_steps",
        integer(0, MAX_STEPS),
        Derived { text: "= train.steps / 10", from: usual_warmup },
        field!(compress.ratio_warmup_steps: integer u64),
        "Steps in which the share of elements falls from a quarter to compress.ratio, to a quarter \
         of itself each time.",
    )
    .only_when("compress.method", &["dgc"])
    .else_count(0),
    Key::new(
        "compress.momentum",
        float(Closed(0.0), Open(1.0)),
        Derived { text: "= 0.9 for optim.name = sgd, else 0", from: usual_momentum },
        field!(compress.momentum: f64),
        "Momentum of each worker's gradients before it chooses among them, in place of the \
         optimizer's.",
    )
    .only_when("compress.method", &["dgc"]),
    Key::new(
        "compress.bits",
        BITS,
        Fixed("4"),
        field!(compress.bits: integer u32),
        "Bits of an element.",
    )
    .only_when("compress.method", &["qsgd"]),
    Key::new(
        "compress.rank",
        RANK,
        Fixed("4"),
        field!(compress.rank: integer usize),
        "Columns of the thin matrices.",
    )
    .only_when("compress.method", &["power-sgd"]),
    Key::new(
        "compress.levels",
        Kind::List { of: &Kind::Table(LEVEL), max: MAX_GROUPS },
        Nothing,
        Field {
            get: |r| {
                let list: Vec<Value> = r.compress.levels.iter().map(level_value).collect();
                (!list.is_empty()).then_some(Value::List(list))
            },
            set: |r, v| r.compress.levels = v.as_list().iter().map(level).collect(),
        },
        "Tensors that are written in a way of their own: dense lets them travel as they are, the \
         others replace the key of that name; the first whose match describes a name counts.",
    )
    .only_when("compress.method", ANY),
    Key::new(
        "compress.group_workers",
        integer(0, MAX_WORKERS),
        Fixed("0"),
        field!(compress.group_workers: integer usize),
        "Consecutive workers, such as those of a host, that add up their gradients as they are, so \
         that only what travels between groups is compressed; 0 has no groups.",
    )
    .only_when("compress.method", ANY)
    .counting_when(|r| r.compress.group_workers > 1),
    Key::new(
        "compress.warmup_steps",
        integer(0, 1_000_000_000_000),
        Derived { text: "= a fifth of train.steps for one-bit-adam, else 0", from: usual_dense },
        field!(compress.warmup_steps: integer u64),
        "Steps at the beginning whose gradients travel as they are.",
    )
    .only_when("compress.method", ANY),
    Key::new(
        "compress.error_feedback",
        Kind::Bool,
        Derived { text: "= false for bf16, int8 and qsgd, else true", from: usual_feedback },
        field!(compress.error_feedback: bool),
        "Whether what is left out is added to the next gradient.",
    )
    .only_when("compress.method", ANY),
    Key::new(
        "compress.force",
        Kind::Bool,
        Fixed("false"),
        field!(compress.force: bool),
        "Allows a method that leaves out the same every time without error feedback, to see it \
         fail.",
    )
    .only_when("compress.method", ANY),
];

fn usual_dense(recipe: &Recipe) -> Value {
    let steps = match recipe.compress.method {
        CompressMethod::OneBitAdam => (recipe.train.steps / 5).max(1),
        _ => 0,
    };
    Value::Integer(i64::try_from(steps).unwrap_or(i64::MAX))
}

fn usual_feedback(recipe: &Recipe) -> Value {
    let method = recipe.compress.method;
    let is_fair =
        matches!(method, CompressMethod::Bf16 | CompressMethod::Int8 | CompressMethod::Qsgd);
    Value::Bool(method != CompressMethod::None && !is_fair)
}

/// Other optimizers have momentum of their own.
fn usual_momentum(recipe: &Recipe) -> Value {
    let is_plain = recipe.optim.name == OptimName::Sgd;
    let is_dgc = recipe.compress.method == CompressMethod::Dgc;
    Value::Float(if is_plain && is_dgc { 0.9 } else { 0.0 })
}

const LEVEL: &[Cell] = &[
    Cell::required("match", Kind::Text { may_be_empty: false }),
    Cell::optional("dense", Kind::Bool),
    Cell::optional("ratio", RATIO),
    Cell::optional("bits", BITS),
    Cell::optional("rank", RANK),
];

fn level(table: &Value) -> Level {
    let integer = |name| table.cell(name).map(Value::as_integer);
    Level {
        pattern: table.cell("match").expect("it is required").as_text().to_owned(),
        dense: table.cell("dense").is_some_and(Value::as_bool),
        ratio: table.cell("ratio").map(Value::as_float),
        bits: integer("bits").map(|bits| bits as u32),
        rank: integer("rank").map(|rank| rank as usize),
    }
}

fn level_value(level: &Level) -> Value {
    let cells = [
        ("match", Some(Value::Text(level.pattern.clone()))),
        ("dense", level.dense.then_some(Value::Bool(true))),
        ("ratio", level.ratio.map(Value::Float)),
        ("bits", level.bits.map(|bits| Value::Integer(i64::from(bits)))),
        ("rank", level.rank.map(integer_value)),
    ];
    let given = |(name, value): (_, Option<Value>)| value.map(|value| (name, value));
    Value::Table(cells.into_iter().filter_map(given).collect())
}
