//! Keys of worse hardware than there is. None of them changes a bit of the result.

use super::{MAX_WORKERS, float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Cell, Kind};
use crate::recipe::{Distribution, EmulatedLink, SlowWorker};
use crate::units::{BytesPerSecond, Seconds};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Fixed, Nothing};

/// The longest that anything on the way takes: ten seconds, in milliseconds.
const DELAY: Kind = float(Closed(0.0), Closed(10_000.0));

/// Half of all packets is more than any connection survives.
const LOSS: Kind = float(Closed(0.0), Closed(0.5));

/// Most entries of a list.
const MAX_ENTRIES: usize = 256;

pub(super) const EMULATE: &[Key] = &[
    Key::new(
        "emulate.bandwidth",
        Kind::Bytes,
        Fixed("0"),
        Field {
            get: |r| Some(Value::Integer(r.emulate.usual.bandwidth.0 as i64)),
            set: |r, v| r.emulate.usual.bandwidth = BytesPerSecond(v.as_integer() as f64),
        },
        "Bytes per second that each link carries at most, a number or text such as \"100MB\"; 0 \
         does not limit.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.latency_ms",
        DELAY,
        Fixed("0.0"),
        Field {
            get: |r| Some(millis(r.emulate.usual.latency)),
            set: |r, v| r.emulate.usual.latency = seconds(v),
        },
        "Milliseconds that every byte is longer on its way. Whoever sends does not wait for it.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.jitter_ms",
        DELAY,
        Fixed("0.0"),
        Field {
            get: |r| Some(millis(r.emulate.usual.jitter)),
            set: |r, v| r.emulate.usual.jitter = seconds(v),
        },
        "The most milliseconds that a packet takes longer still; all up to that are as likely.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.loss",
        LOSS,
        Fixed("0.0"),
        field!(emulate.usual.loss: f64),
        "Share of packets that are lost and sent again: after a round trip, and at the end of a \
         message after 200 ms.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.links",
        Kind::List { of: &Kind::Table(LINK), max: MAX_ENTRIES },
        Nothing,
        Field {
            get: |r| some_list(r.emulate.links.iter().map(link_value)),
            set: |r, v| r.emulate.links = v.as_list().iter().map(link).collect(),
        },
        "Links that differ from the others, each with the two ranks at its ends; what is left out \
         is as for all. With after_s a link becomes like that only so many seconds after its first \
         byte.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.microbatch_ms",
        DELAY,
        Fixed("0.0"),
        Field {
            get: |r| Some(millis(r.emulate.microbatch)),
            set: |r, v| r.emulate.microbatch = seconds(v),
        },
        "Milliseconds that a micro-batch takes every worker, who waits for what computing it leaves of \
         them: so workers that share cores play devices of their own. 0 lets a micro-batch take what it \
         takes.",
    ),
    Key::new(
        "emulate.slow",
        Kind::List { of: &Kind::Table(SLOW), max: MAX_WORKERS as usize },
        Nothing,
        Field {
            get: |r| some_list(r.emulate.slow.iter().map(slow_value)),
            set: |r, v| r.emulate.slow = v.as_list().iter().map(slow).collect(),
        },
        "Workers that compute more slowly than they could: a micro-batch takes one of them factor times \
         as long in the mean.",
    ),
    Key::new(
        "emulate.seed",
        integer(0, i64::MAX),
        Fixed("0"),
        field!(emulate.seed: integer u64),
        "Decides which packets are late or lost, and when slow workers are slow.",
    ),
];

const LINK: &[Cell] = &[
    Cell::required("ranks", Kind::List { of: &integer(0, MAX_WORKERS - 1), max: 2 }),
    Cell::optional("bandwidth", Kind::Bytes),
    Cell::optional("latency_ms", DELAY),
    Cell::optional("jitter_ms", DELAY),
    Cell::optional("loss", LOSS),
    Cell::optional("after_s", float(Closed(0.0), Closed(1e6))),
];

const SLOW: &[Cell] = &[
    Cell::required("rank", integer(0, MAX_WORKERS - 1)),
    Cell::required("factor", float(Closed(1.0), Open(1e6))),
    Cell::optional("distribution", Kind::Choice(Distribution::NAMES)),
];

fn link(table: &Value) -> EmulatedLink {
    let ranks = table.cell("ranks").expect("it is required").as_list();
    // A link with other than two ends is refused by a rule; until then it is one to itself.
    let rank = |index: usize| ranks.get(index).map_or(0, |rank| rank.as_integer() as usize);
    let ranks = if ranks.len() == 2 { [rank(0), rank(1)] } else { [rank(0), rank(0)] };
    EmulatedLink {
        ranks,
        bandwidth: table.cell("bandwidth").map(|v| BytesPerSecond(v.as_integer() as f64)),
        latency: table.cell("latency_ms").map(seconds),
        jitter: table.cell("jitter_ms").map(seconds),
        loss: table.cell("loss").map(Value::as_float),
        after: Seconds(table.cell("after_s").map_or(0.0, Value::as_float)),
    }
}

fn link_value(link: &EmulatedLink) -> Value {
    let mut cells = vec![("ranks", Value::List(link.ranks.map(integer_value).to_vec()))];
    let bandwidth = link.bandwidth.map(|rate| Value::Integer(rate.0 as i64));
    cells.extend(bandwidth.map(|value| ("bandwidth", value)));
    cells.extend(link.latency.map(|value| ("latency_ms", millis(value))));
    cells.extend(link.jitter.map(|value| ("jitter_ms", millis(value))));
    cells.extend(link.loss.map(|value| ("loss", Value::Float(value))));
    if link.after.0 > 0.0 {
        cells.push(("after_s", Value::Float(link.after.0)));
    }
    Value::Table(cells)
}

fn slow(table: &Value) -> SlowWorker {
    let named = table.cell("distribution").and_then(|name| Distribution::from_name(name.as_text()));
    SlowWorker {
        rank: table.cell("rank").expect("it is required").as_integer() as usize,
        factor: table.cell("factor").expect("it is required").as_float(),
        distribution: named.unwrap_or(Distribution::Constant),
    }
}

fn slow_value(slow: &SlowWorker) -> Value {
    Value::Table(vec![
        ("rank", integer_value(slow.rank)),
        ("factor", Value::Float(slow.factor)),
        ("distribution", Value::Text(slow.distribution.name().to_owned())),
    ])
}

/// A list that has anything in it.
fn some_list(values: impl Iterator<Item = Value>) -> Option<Value> {
    let values: Vec<Value> = values.collect();
    (!values.is_empty()).then_some(Value::List(values))
}

fn seconds(millis: &Value) -> Seconds {
    Seconds(millis.as_float() / 1e3)
}

/// Rounded to what a person would write: a thousandth of a thousandth is a nanosecond.
fn millis(seconds: Seconds) -> Value {
    Value::Float((seconds.0 * 1e9).round() / 1e6)
}
