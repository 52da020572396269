//! Keys of checkpoints. None of them changes a bit of the result.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{Compression, Interval, Recipe, SyncMode};
use crate::units::Seconds;
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

/// Text of an interval that minimises the lost time.
const AUTO: &str = "auto";

/// Text of an interval that bounds the overhead.
const BOUNDED: &str = "bounded";

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
        ValueType::FloatOrName {
            low: Closed(0.0),
            high: Closed(31_536_000.0),
            names: &[AUTO, BOUNDED],
        },
        Derived {
            text: "= \"bounded\", or \"auto\" where lost workers are restarted; 0 with \
                   checkpoint.every, parameter servers and Hogwild",
            from: default_interval,
        },
        Field {
            get: |r| {
                Some(match r.checkpoint.interval {
                    Interval::Never => Value::Float(0.0),
                    Interval::Every(seconds) => Value::Float(seconds.0),
                    Interval::Auto => Value::Text(AUTO.to_owned()),
                    Interval::Bounded => Value::Text(BOUNDED.to_owned()),
                })
            },
            set: |r, v| {
                r.checkpoint.interval = match v {
                    Value::Text(name) if name == BOUNDED => Interval::Bounded,
                    Value::Text(_) => Interval::Auto,
                    number if number.as_float() == 0.0 => Interval::Never,
                    number => Interval::Every(Seconds(number.as_float())),
                };
            },
        },
        "Seconds between two checkpoints; 0 saves none by time. \"auto\" minimises the lost time, \
         from the measured write time and checkpoint.mtbf (Young 1974, Daly 2006). \"bounded\" \
         saves after a minute and then so rarely that it takes at most 1 % of the time. With 0 for \
         both keys, Ctrl-C and SIGTERM save nothing either.",
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

/// Optimal where lost workers are restarted, since a restart resumes from a checkpoint; else with
/// bounded overhead, where the strategy can save after any step or round.
fn default_interval(recipe: &Recipe) -> Value {
    let run = &recipe.run;
    let restarts = run.restarts > 0 || run.elastic.is_some();
    let saves_by_time = !matches!(recipe.sync.mode, SyncMode::ParameterServer | SyncMode::Hogwild);
    match recipe.checkpoint.every {
        0 if restarts => Value::Text(AUTO.to_owned()),
        0 if saves_by_time => Value::Text(BOUNDED.to_owned()),
        _ => Value::Float(0.0),
    }
}
