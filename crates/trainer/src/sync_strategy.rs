//! Synchronization strategies: how a worker's steps interact with those of other workers.

use crate::TrainError;
use crate::feed::Targets;
use crate::learner::Learner;
use crate::step_log::StepLog;
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::Loader;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::path::Path;

/// State of a training rank between steps.
pub(crate) struct Worker<'a> {
    /// Compute device.
    pub cpu: &'a Cpu,
    /// Resolved recipe of the run.
    pub recipe: &'a Recipe,
    /// Clocks, threads and files.
    pub world: &'a World,
    /// Group of all workers, without parameter servers.
    pub comm: &'a Comm,
    /// Model, optimizer and loss scaler.
    pub learner: Learner,
    /// Source of batches.
    pub loader: Loader,
    /// Number of targets of each batch.
    pub targets: Targets<'a>,
    /// Telemetry and figures of this rank.
    pub step_log: StepLog,
}

/// One way to synchronize workers. All workers of a run use the same strategy.
pub(crate) trait SyncStrategy {
    /// Prepares for the first step of this attempt. `checkpoint` is the folder that the run resumes
    /// from, if it resumes.
    fn begin(
        &mut self,
        _worker: &mut Worker<'_>,
        _first_step: u64,
        _checkpoint: Option<&Path>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// Runs the step `steps.start`; `steps.end` is the end of the run.
    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError>;

    /// Gives every worker the weights to evaluate after `num_steps` steps.
    fn synchronize(&mut self, _worker: &mut Worker<'_>, _num_steps: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// Whether the run can be saved after `num_steps` steps; if so, gives every worker the weights
    /// to save.
    fn prepare_checkpoint(
        &mut self,
        worker: &mut Worker<'_>,
        num_steps: u64,
    ) -> Result<bool, TrainError>;

    /// Gives this worker the final weights after the last step.
    fn finish(&mut self, _worker: &mut Worker<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// Disconnects from other ranks after everything is saved.
    fn disconnect(&mut self, _worker: &Worker<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}
