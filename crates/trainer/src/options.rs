//! Options of a run that are not part of its recipe.

use lockstep_model::Blueprint;
use lockstep_telemetry::Sink;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Receives the path of a run folder.
pub(crate) type RunFolderReceiver = Box<dyn FnOnce(&Path) + Send>;

/// Called once, when the last step begins.
pub(crate) type LastStepReceiver = Box<dyn FnOnce() + Send>;

/// Options of a run. All but `model` change no result bit.
#[derive(Default)]
pub struct Options {
    /// Folder of the run to resume.
    pub resume: Option<PathBuf>,
    /// Number of steps after which the run stops early.
    pub stop_after: Option<u64>,
    /// Event sinks besides the run folder.
    pub sinks: Vec<Box<dyn Sink>>,
    /// Predicted cost, reported beside the measured one.
    pub predicted: Predicted,
    /// Peak FLOP/s of the run's machines, of which the run reports its share; none if unknown.
    pub peak_flops_per_second: Option<f64>,
    /// Number of this attempt and the shared run folder.
    pub attempt: Attempt,
    /// Signals that save a checkpoint and end the run.
    pub save_signals: SaveSignals,
    /// Receives the run folder on every rank, as soon as it exists.
    pub on_run_folder: Option<RunFolderReceiver>,
    /// Called on every rank before the last step, or after the step that reaches the target loss:
    /// no checkpoint follows.
    pub on_last_step: Option<LastStepReceiver>,
    /// Custom model, trained in place of the recipe's family; every rank passes an equal one.
    pub model: Option<Blueprint>,
}

/// Signals of this process that save a checkpoint and end the run, where it saves checkpoints. They
/// are handled from the first step on, and the caller restores their effect after the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveSignals {
    /// None.
    #[default]
    None,
    /// SIGTERM.
    Termination,
    /// SIGTERM and SIGINT.
    TerminationAndInterrupt {
        /// Time after the first SIGINT from which a further one ends the process at once.
        repeat: Duration,
    },
}

/// One start of a run under the supervisor, which restarts lost workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Number of restarts before this attempt.
    pub restarts: u64,
    /// Run folder shared by all attempts; none if the recipe names it.
    pub dir: Option<PathBuf>,
}

/// Cost of a run predicted before its start.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct Predicted {
    pub step_seconds: Option<f64>,
    /// Predictions for each possible bucket length, the most likely first.
    pub bytes: Vec<PredictedBytes>,
}

/// Predictions that depend on the bucket length, which may be measured at start-up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct PredictedBytes {
    pub bucket_len: usize,
    pub peak_bytes_by_rank: Vec<u64>,
    /// Memory of accelerators, where blocks run on them.
    pub device_bytes_by_rank: Vec<u64>,
    pub wire_bytes: u64,
}
