//! When a run is saved, where, and how many of its checkpoints stay.

use std::fmt;
use std::time::Duration;

use crate::units::Seconds;

/// When the run is saved, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// The folder; empty means `checkpoints` in the folder of the run.
    pub dir: String,
    /// Steps between two checkpoints; 0 does not count steps.
    pub every: u64,
    /// Time between two checkpoints, besides.
    pub interval: Interval,
    /// How many stay; at least one.
    pub keep: usize,
    /// Whether the disk is written while training goes on.
    pub background: bool,
    /// Whether and how files are packed.
    pub compression: Compression,
    /// The time between two failures that `auto` counts on before it has seen any.
    pub mtbf: Seconds,
}

/// Time between two checkpoints.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Interval {
    /// It never makes one.
    Never,
    /// So long.
    Every(Seconds),
    /// As long as costs the least, by what writing takes and how often workers fail.
    Auto,
}

choices! {
    /// How the files of checkpoints are packed.
    Compression {
        /// They are not.
        None = "none",
        /// With zstd, at its quickest usual level.
        Zstd = "zstd",
    }
}

impl Checkpoint {
    /// Whether the run is ever saved before its end.
    pub fn is_on(&self) -> bool {
        self.every > 0 || self.interval != Interval::Never
    }

    /// The time between two failures that is counted on.
    pub fn mtbf(&self) -> Duration {
        Duration::from_secs_f64(self.mtbf.0)
    }
}
