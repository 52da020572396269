//! Keys that emulate slower links and workers. None of them changes a bit of the result.

use super::{MAX_WORKERS, float, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{Distribution, EmulatedLink, SlowWorker};
use crate::units::{BytesPerSecond, Seconds};
use crate::value::Value;
use crate::value_type::{Bound, Cell, ValueType};

use Bound::{Closed, Open};
use Default::{Fixed, Nothing};

/// Delays in milliseconds, up to ten seconds.
const DELAY: ValueType = float(Closed(0.0), Closed(10_000.0));

/// Packet loss; no connection survives more than half.
const LOSS: ValueType = float(Closed(0.0), Closed(0.5));

/// Largest number of list entries.
const MAX_ENTRIES: usize = 256;

pub(super) const EMULATE: &[Key] = &[
    Key::new(
        "emulate.bandwidth",
        ValueType::Bytes,
        Fixed("0"),
        Field {
            get: |r| Some(Value::Integer(r.emulate.default_link.bandwidth.0 as i64)),
            set: |r, v| r.emulate.default_link.bandwidth = BytesPerSecond(v.as_integer() as f64),
        },
        "Bandwidth limit of each link in bytes per second, a number or text such as \"100MB\"; 0 \
         does not limit.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.latency_ms",
        DELAY,
        Fixed("0.0"),
        Field {
            get: |r| Some(millis(r.emulate.default_link.latency)),
            set: |r, v| r.emulate.default_link.latency = seconds(v),
        },
        "Added latency of each link in milliseconds; senders do not block on it.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.jitter_ms",
        DELAY,
        Fixed("0.0"),
        Field {
            get: |r| Some(millis(r.emulate.default_link.jitter)),
            set: |r, v| r.emulate.default_link.jitter = seconds(v),
        },
        "Maximum of a uniformly distributed extra delay per packet, in milliseconds.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.loss",
        LOSS,
        Fixed("0.0"),
        field!(emulate.default_link.loss: f64),
        "Fraction of packets that are lost and retransmitted: after a round trip, and at the end \
         of a message after 200 ms.",
    )
    .only_when("run.transport", &["tcp"]),
    Key::new(
        "emulate.links",
        ValueType::List { of: &ValueType::Table(LINK), max: MAX_ENTRIES },
        Nothing,
        Field {
            get: |r| some_list(r.emulate.links.iter().map(link_value)),
            set: |r, v| r.emulate.links = v.as_list().iter().map(link).collect(),
        },
        "Links with other conditions, each with the two ranks at its ends; omitted values are \
         those of all links. With after_s the conditions begin that many seconds after the link's \
         first byte.",
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
        "Minimum duration of a micro-batch on every worker, in milliseconds: workers that share \
         cores then behave like separate devices. 0 adds nothing.",
    ),
    Key::new(
        "emulate.slow",
        ValueType::List { of: &ValueType::Table(SLOW), max: MAX_WORKERS as usize },
        Nothing,
        Field {
            get: |r| some_list(r.emulate.slow.iter().map(slow_value)),
            set: |r, v| r.emulate.slow = v.as_list().iter().map(slow).collect(),
        },
        "Slow workers: their micro-batches take factor times as long on average.",
    ),
    Key::new(
        "emulate.seed",
        integer(0, i64::MAX),
        Fixed("0"),
        field!(emulate.seed: integer u64),
        "Seed of packet delays and losses and of the slow workers' pauses.",
    ),
];

const LINK: &[Cell] = &[
    Cell::required("ranks", ValueType::List { of: &integer(0, MAX_WORKERS - 1), max: 2 }),
    Cell::optional("bandwidth", ValueType::Bytes),
    Cell::optional("latency_ms", DELAY),
    Cell::optional("jitter_ms", DELAY),
    Cell::optional("loss", LOSS),
    Cell::optional("after_s", float(Closed(0.0), Closed(1e6))),
];

const SLOW: &[Cell] = &[
    Cell::required("rank", integer(0, MAX_WORKERS - 1)),
    Cell::required("factor", float(Closed(1.0), Open(1e6))),
    Cell::optional("distribution", ValueType::Choice(Distribution::NAMES)),
];

fn link(table: &Value) -> EmulatedLink {
    let ranks = table.cell("ranks").expect("it is required").as_list();
    // A rule refuses a link without two ends; until then it connects a rank to itself.
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

/// The list, if it is not empty.
fn some_list(values: impl Iterator<Item = Value>) -> Option<Value> {
    let values: Vec<Value> = values.collect();
    (!values.is_empty()).then_some(Value::List(values))
}

fn seconds(millis: &Value) -> Seconds {
    Seconds(millis.as_float() / 1e3)
}

/// Milliseconds rounded to a nanosecond, so that the value prints as it was written.
fn millis(seconds: Seconds) -> Value {
    Value::Float((seconds.0 * 1e9).round() / 1e6)
}
