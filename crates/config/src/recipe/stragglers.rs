//! Straggler policies of synchronous training.

use std::fmt;

use super::Recipe;
use crate::units::Seconds;

/// Settings for stragglers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stragglers {
    /// The policy.
    pub policy: StragglerPolicy,
    /// Number of workers a step may leave out (`backup`).
    pub backups: usize,
    /// Time limit of a step (`timeout`).
    pub timeout: Seconds,
    /// Multiple of the median time above which a worker is slow; at least 1.
    pub factor: f64,
    /// Number of steps observed before the policy acts; at least 1.
    pub window: u64,
}

choices! {
    /// Policy of a step towards slow workers.
    StragglerPolicy {
        /// Waits for it.
        Wait = "wait",
        /// Takes the fastest gradients and leaves out the backup workers (Chen et al. 2016).
        Backup = "backup",
        /// Takes the gradients that arrive within the timeout.
        Timeout = "timeout",
        /// Leaves out workers that take much longer than the median.
        DropSlowest = "drop-slowest",
        /// Gives a persistently slow worker no micro-batches until it is fast again.
        Exclude = "exclude",
        /// Assigns micro-batches in proportion to measured speed.
        Shares = "shares",
    }
}

impl StragglerPolicy {
    /// Whether a step may finish before all workers have finished their micro-batches.
    pub const fn leaves_out(self) -> bool {
        matches!(self, Self::Backup | Self::Timeout | Self::DropSlowest)
    }

    /// Whether gradients of some micro-batches may be missing from a step.
    pub const fn loses_microbatches(self) -> bool {
        self.leaves_out() || matches!(self, Self::Exclude)
    }
}

impl Recipe {
    /// Reason why the result depends on timing, if it does.
    pub(crate) fn timing_dependence(&self) -> Option<String> {
        let policy = self.sync.stragglers.policy;
        policy.loses_microbatches().then(|| {
            format!(
                "sync.stragglers = {policy}: the gradients of a step depend on which workers are \
                 in time, so the same command may give other bits"
            )
        })
    }
}
