//! Keys of when a run is saved. None of them changes a bit of the result.

use super::{float, integer};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind};
use crate::recipe::{Compression, Interval, Recipe};
use crate::units::Seconds;
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed};

/// The word for an interval that is computed.
const AUTO: &str = "auto";

pub(super) const CHECKPOINT: &[Key] = &[
    Key::new(
        "checkpoint.dir",
        Kind::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(checkpoint.dir: String),
        "Folder of the checkpoints, which all workers share; empty is checkpoints in the folder of \
         the run.",
    ),
    Key::new(
        "checkpoint.every",
        integer(0, 1_000_000_000_000),
        Fixed("0"),
        field!(checkpoint.every: integer u64),
        "Steps between two checkpoints; 0 does not count steps.",
    ),
    Key::new(
        "checkpoint.interval",
        Kind::FloatOrWord { low: Closed(0.0), high: Closed(31_536_000.0), words: &[AUTO] },
        Derived {
            text: "= \"auto\" where workers are replaced and checkpoint.every is 0, else 0",
            from: usual_interval,
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
        "Seconds between two checkpoints; 0 never makes one by the clock. \"auto\" takes what \
         costs the least, by how long writing takes and checkpoint.mtbf (Young and Daly).",
    ),
    Key::new(
        "checkpoint.keep",
        integer(1, 1_000_000),
        Fixed("2"),
        field!(checkpoint.keep: integer usize),
        "How many checkpoints stay; an older one goes once the newest is whole.",
    ),
    Key::new(
        "checkpoint.background",
        Kind::Bool,
        Fixed("true"),
        field!(checkpoint.background: bool),
        "Whether the disk is written while training goes on, from a copy in memory.",
    ),
    Key::new(
        "checkpoint.compression",
        Kind::Choice(Compression::NAMES),
        Fixed("\"none\""),
        field!(checkpoint.compression: choice Compression),
        "Whether the files are packed with zstd: weights get little smaller, optimizer state \
         somewhat.",
    ),
    Key::new(
        "checkpoint.mtbf",
        float(Open(0.0), Closed(31_536_000.0)),
        Fixed("86400.0"),
        Field {
            get: |r| Some(Value::Float(r.checkpoint.mtbf.0)),
            set: |r, v| r.checkpoint.mtbf = Seconds(v.as_float()),
        },
        "Seconds between two failures of the run that checkpoint.interval = \"auto\" counts on, \
         until it has seen some.",
    ),
];

/// Who wants lost workers replaced does not want to begin from the start with them.
fn usual_interval(recipe: &Recipe) -> Value {
    let run = &recipe.run;
    let goes_on = run.restarts > 0 || run.elastic.is_some();
    if goes_on && recipe.checkpoint.every == 0 {
        return Value::Text(AUTO.to_owned());
    }
    Value::Float(0.0)
}
