//! Checkpoints: folder, frequency and retention.

use std::time::Duration;

use super::{Recipe, SyncMode};
use crate::field::{Field, field};
use crate::topic::{choices, topic};
use crate::units::Seconds;
use crate::value::Value;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::{MAX_STEPS, ValueType};

/// Text of an interval that minimises the lost time.
const AUTO: &str = "auto";

/// Text of an interval that bounds the overhead.
const BOUNDED: &str = "bounded";

topic! {
    /// Checkpoints. Never change a bit of the result.
    pub struct Checkpoint at checkpoint, table "checkpoint", layout() {
        /// Folder of the checkpoints, shared by all workers; empty means checkpoints in the run
        /// folder.
        dir: String = "";

        /// Steps between two checkpoints; 0 saves none by steps.
        every: u64 = 0, integer(0, MAX_STEPS);

        /// Seconds between two checkpoints; 0 saves none by time. "auto" minimises the lost time,
        /// from the measured write time and checkpoint.mtbf (Young 1974, Daly 2006). "bounded"
        /// saves after a minute and then so rarely that it takes at most 1 % of the time. With 0
        /// for both keys, Ctrl-C and SIGTERM save nothing either.
        interval: Interval = (
            "= \"bounded\", or \"auto\" where lost workers are restarted; 0 with checkpoint.every, \
             parameter servers and Hogwild",
            default_interval
        );

        /// Number of checkpoints to keep; an older one is deleted once the newest is complete.
        keep: usize = 2, integer(1, 1_000_000);

        /// Whether checkpoints are written in the background, from a copy in memory.
        background: bool = true;

        /// Whether checkpoint files are compressed with zstd: weights shrink little, optimizer
        /// state somewhat more.
        compression: Compression = "none";

        /// Mean time between failures in seconds that checkpoint.interval = "auto" assumes until it
        /// has observed failures.
        mtbf: Seconds = 86400.0, float(Open(0.0), Closed(31_536_000.0));
    }
}

/// Optimal where lost workers are restarted, since a restart resumes from a checkpoint; else with
/// bounded overhead, where the strategy can save after any step or round.
fn default_interval(recipe: &Recipe) -> Interval {
    let run = &recipe.run;
    let restarts = run.restarts > 0 || run.elastic.is_some();
    let saves_by_time = !matches!(recipe.sync.mode, SyncMode::ParameterServer | SyncMode::Hogwild);
    match recipe.checkpoint.every {
        0 if restarts => Interval::Auto,
        0 if saves_by_time => Interval::Bounded,
        _ => Interval::Never,
    }
}

/// Time between two checkpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Interval {
    /// No checkpoints by time.
    Never,
    /// A fixed time.
    Every(Seconds),
    /// Computed from write time and failure rate (Young 1974, Daly 2006).
    Auto,
    /// At least a minute, and so long that saving takes at most 1 % of the time.
    Bounded,
}

/// Seconds of an interval, up to a year.
const SECONDS: ValueType = f64::TYPE.float(Closed(0.0), Closed(31_536_000.0));

field!(
    Interval: ValueType::OrName(&SECONDS, &[AUTO, BOUNDED]),
    blank Self::Never,
    to |interval| match interval {
        Self::Never => Value::Float(0.0),
        Self::Every(seconds) => seconds.to_value(),
        Self::Auto => Value::Text(AUTO.to_owned()),
        Self::Bounded => Value::Text(BOUNDED.to_owned()),
    },
    from |v| match v {
        Value::Text(name) if name == BOUNDED => Self::Bounded,
        Value::Text(_) => Self::Auto,
        number if number.as_float() == 0.0 => Self::Never,
        number => Self::Every(Seconds::from_value(number)),
    }
);

choices! {
    /// Compression of checkpoint files.
    Compression {
        /// None.
        None = "none",
        /// zstd at level 1.
        Zstd = "zstd",
    }
}

impl Checkpoint {
    /// Whether the run saves checkpoints before its end, if only on request.
    pub fn is_on(&self) -> bool {
        self.every > 0 || self.interval != Interval::Never
    }

    /// Assumed mean time between failures.
    pub fn mtbf(&self) -> Duration {
        Duration::from_secs_f64(self.mtbf.0)
    }
}
