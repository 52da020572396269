//! Checkpoint settings: folder, frequency and retention.

use std::fmt;
use std::time::Duration;

use crate::units::Seconds;

/// Checkpoint settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Folder; empty means `checkpoints` in the run folder.
    pub dir: String,
    /// Steps between two checkpoints; 0 saves none by steps.
    pub every: u64,
    /// Time between two checkpoints.
    pub interval: Interval,
    /// Number of checkpoints to keep; at least one.
    pub keep: usize,
    /// Whether checkpoints are written in the background.
    pub background: bool,
    /// Compression of the files.
    pub compression: Compression,
    /// Mean time between failures that `auto` assumes before it has observed any.
    pub mtbf: Seconds,
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
