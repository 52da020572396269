//! Workers that are not equally fast: what a step does about one that is late, and how old the
//! gradients are that it goes by.

use std::fmt;

use crate::recipe::Recipe;
use crate::units::Seconds;

/// What becomes of workers that are late, and of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Uneven {
    /// What a step does about a worker that is late.
    pub stragglers: Stragglers,
    /// Workers that a step can do without.
    pub backups: usize,
    /// Time that a step gives its workers.
    pub timeout: Seconds,
    /// How many times as long as the middle one a worker may take; at least 1.
    pub slack: f64,
    /// Steps after which what was seen is acted on; at least 1.
    pub patience: u64,
    /// How many steps old the gradients are that a step goes by.
    pub delay: u64,
}

choices! {
    /// What a step does about a worker that is late.
    Stragglers {
        /// It waits.
        Wait = "wait",
        /// It takes the gradients of the fastest and leaves out as many workers as it can do
        /// without.
        Backup = "backup",
        /// It takes the gradients that are there in time.
        Timeout = "timeout",
        /// It leaves out who takes much longer than the middle one.
        DropSlowest = "drop-slowest",
        /// Who is slow for long does no more micro-batches until it is fast again.
        Exclude = "exclude",
        /// Workers get micro-batches by how fast they are.
        Shares = "shares",
    }
}

impl Stragglers {
    /// Whether a step may go without a worker that is in the middle of its micro-batches.
    pub const fn leaves_out(self) -> bool {
        matches!(self, Self::Backup | Self::Timeout | Self::DropSlowest)
    }

    /// Whether gradients of some micro-batches may be missing in a step.
    pub const fn loses_microbatches(self) -> bool {
        self.leaves_out() || matches!(self, Self::Exclude)
    }
}

impl Recipe {
    /// Why the bits of a run depend on how long things took, in words, if they do.
    pub(crate) fn depends_on_time(&self) -> Option<String> {
        let stragglers = self.sync.uneven.stragglers;
        stragglers.loses_microbatches().then(|| {
            format!(
                "sync.stragglers = {stragglers}: which gradients a step goes by depends on which \
                 workers are in time, so the same command may give other bits"
            )
        })
    }
}
