//! Keys of checkpoints. None of them changes a bit of the result.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{Compression, Interval, Recipe};
use crate::units::Seconds;
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

/// Text of an interval that is computed.
const AUTO: &str = "auto";

pub(super) const CHECKPOINT: &[Key] = &[
    Key::new(
        "checkpoint.dir",
        ValueType::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(checkpoint.dir: String),
        "Folder of the checkpoints, shared by all workers; empty means checkpoints in the run \
         folder.",
    ),
    Key::new(
        "checkpoint.every",
        integer(0, 1_000_000_000_000),
        Fixed("0"),
        field!(checkpoint.every: integer u64),
        "Steps between two checkpoints; 0 saves none by steps.",
    ),
    Key::new(
        "checkpoint.interval",
        ValueType::FloatOrName { low: Closed(0.0), high: Closed(31_536_000.0), names: &[AUTO] },
        Derived {
            text: "= \"auto\" where lost workers are restarted and checkpoint.every is 0, else 0",
            from: default_interval,
        },
        Field {
            get: |r| {
                Some(match r.checkpoint.interval {
                    Interval::Never => Value::Float(0.0),
                    Interval::Every(seconds) => Value::Float(seconds.0),
                    Interval::Auto => Value::Text(AUTO.to_owned()),
                })
            },
            set: |r, v| {
                r.checkpoint.interval = match v {
                    Value::Text(_) => Interval::Auto,
                    number if number.as_float() == 0.0 => Interval::Never,
                    number => Interval::Every(Seconds(number.as_float())),
                };
            },
        },
        "Seconds between two checkpoints; 0 saves none by time. \"auto\" minimises the lost time, \
         from the measured write time and checkpoint.mtbf (Young 1974, Daly 2006).",
    ),
    Key::new(
        "checkpoint.keep",
        integer(1, 1_000_000),
        Fixed("2"),
        field!(checkpoint.keep: integer usize),
        "Number of checkpoints to keep; an older one is deleted once the newest is complete.",
    ),
    Key::new(
        "checkpoint.background",
        ValueType::Bool,
        Fixed("true"),
        field!(checkpoint.background: bool),
        "Whether checkpoints are written in the background, from a copy in memory.",
    ),
    Key::new(
        "checkpoint.compression",
        ValueType::Choice(Compression::NAMES),
        Fixed("\"none\""),
        field!(checkpoint.compression: choice Compression),
        "Whether checkpoint files are compressed with zstd: weights shrink little, optimizer state \
         somewhat more.",
    ),
    Key::new(
        "checkpoint.mtbf",
        float(Open(0.0), Closed(31_536_000.0)),
        Fixed("86400.0"),
        Field {
            get: |r| Some(Value::Float(r.checkpoint.mtbf.0)),
            set: |r, v| r.checkpoint.mtbf = Seconds(v.as_float()),
        },
        "Mean time between failures in seconds that checkpoint.interval = \"auto\" assumes until \
         it has observed failures.",
    ),
];

/// Computed where lost workers are restarted, so that a restart resumes from a checkpoint.
fn default_interval(recipe: &Recipe) -> Value {
    let run = &recipe.run;
    let restarts = run.restarts > 0 || run.elastic.is_some();
    if restarts && recipe.checkpoint.every == 0 {
        return Value::Text(AUTO.to_owned());
    }
    Value::Float(0.0)
}
