//! Keys of compression: in how few bytes gradients travel.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{CompressMethod, Recipe};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

/// Every method but none.
const ANY: &[&str] = CompressMethod::NAMES.split_at(1).1;

pub(super) const COMPRESS: &[Key] = &[
    Key::new(
        "compress.method",
        Kind::Choice(CompressMethod::NAMES),
        Fixed("\"none\""),
        field!(compress.method: choice CompressMethod),
        "How gradients are written on their way: int8 and qsgd round by chance, top-k and random-k \
         send few elements, sign one bit of each, power-sgd thin matrices, one-bit-adam the signs \
         of Adam's momentum (the bits then depend on the workers).",
    )
    .counting_when(|r| r.compress.is_on()),
    Key::new(
        "compress.ratio",
        float(Open(0.0), Closed(1.0)),
        Fixed("0.01"),
        field!(compress.ratio: f64),
        "The share of elements that travel.",
    )
    .only_when("compress.method", &["top-k", "random-k"]),
    Key::new(
        "compress.bits",
        integer(2, 8),
        Fixed("4"),
        field!(compress.bits: integer u32),
        "Bits of an element.",
    )
    .only_when("compress.method", &["qsgd"]),
    Key::new(
        "compress.rank",
        integer(1, 1024),
        Fixed("4"),
        field!(compress.rank: integer usize),
        "Columns of the thin matrices.",
    )
    .only_when("compress.method", &["power-sgd"]),
    Key::new(
        "compress.warmup_steps",
        integer(0, 1_000_000_000_000),
        Derived { text: "= a fifth of train.steps for one-bit-adam, else 0", from: usual_warmup },
        field!(compress.warmup_steps: integer u64),
        "Steps at the beginning whose gradients travel as they are.",
    )
    .only_when("compress.method", ANY),
    Key::new(
        "compress.error_feedback",
        Kind::Bool,
        Derived { text: "= false for int8 and qsgd, else true", from: usual_feedback },
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

fn usual_warmup(recipe: &Recipe) -> Value {
    let steps = match recipe.compress.method {
        CompressMethod::OneBitAdam => (recipe.train.steps / 5).max(1),
        _ => 0,
    };
    Value::Integer(i64::try_from(steps).unwrap_or(i64::MAX))
}

fn usual_feedback(recipe: &Recipe) -> Value {
    let method = recipe.compress.method;
    let is_fair = matches!(method, CompressMethod::Int8 | CompressMethod::Qsgd);
    Value::Bool(method != CompressMethod::None && !is_fair)
}
