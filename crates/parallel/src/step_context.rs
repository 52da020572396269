//! State of a rank's step: its duty, the cutoff agreement, and measurements of the last step.

use crate::stragglers::{CutoffAgreement, StepDuty};
use crate::task_spans::Recording;
use lockstep_comm::Counters;
use std::cell::RefCell;
use std::time::Duration;

/// Duty of a rank in a step, and measurements of the last one.
#[derive(Default)]
pub(crate) struct StepContext {
    /// Cutoff agreement on the ranks whose gradients count, with straggler mitigation.
    pub(crate) agreement: Option<RefCell<CutoffAgreement>>,
    /// Duty of this rank in the next step.
    pub(crate) duty: StepDuty,
    /// Whether this rank's gradients counted in the last step.
    pub(crate) counted_in_step: bool,
    /// Number of targets by which the gradients of the last micro-batch were divided.
    pub(crate) num_targets: u64,
    /// Oldest version of the weights that parameter servers have let this rank read in the step,
    /// and the one from which on the run is over without it.
    pub(crate) version: u64,
    pub(crate) last_version: Option<u64>,
    /// First step that neither this rank nor the others have done.
    pub(crate) next_step: u64,
    /// Whether only the embedding rows of the step's tokens are pulled.
    pub(crate) pulls_rows: bool,
    /// Whether spans of the next step are recorded, and those of the last sampled step.
    pub(crate) is_sampled: bool,
    pub(crate) samples: Recording,
    /// Micro-batches run in the last step, and their computation time.
    pub(crate) num_run: usize,
    pub(crate) computed: Duration,
    /// Time in passes without any wait for other ranks, not reported yet.
    pub(crate) pass_time: Duration,
    /// End of the last exchange with all ranks, and the exposed communication since then.
    pub(crate) exchanged_at: Duration,
    pub(crate) exposed_since: Duration,
    /// Exposed communication and the part of it that was a wait for a later rank, not reported yet.
    pub(crate) exposed: Duration,
    pub(crate) straggler_wait: Duration,
    /// Number of times the leaves were rebalanced, and the traffic of the groups replaced by that.
    pub(crate) num_divisions: usize,
    pub(crate) past_counters: Counters,
}
