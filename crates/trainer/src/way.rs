//! How a worker's steps meet those of others: the part in which kinds of runs differ.

use crate::TrainError;
use crate::feed::Targets;
use crate::journal::Journal;
use crate::saved::Learner;
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::Loader;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::path::Path;

/// A worker at work, with all that a step needs.
pub(crate) struct Worker<'a> {
    /// What it computes on.
    pub cpu: &'a Cpu,
    /// What it is to do.
    pub recipe: &'a Recipe,
    /// Clocks, threads and files.
    pub world: &'a World,
    /// All workers.
    pub comm: &'a Comm,
    /// The model and everything that changes it.
    pub learner: Learner,
    /// Where batches come from.
    pub loader: Loader,
    /// How many targets they have.
    pub targets: Targets<'a>,
    /// Whom everything is told.
    pub journal: Journal,
}

/// See the module's text. All workers of a run go the same way.
pub(crate) trait Way {
    /// Takes its place before the first step of this life; where the run goes on, what was saved
    /// lies in a folder.
    fn begin(
        &mut self,
        _worker: &mut Worker<'_>,
        _first_step: u64,
        _saved: Option<&Path>,
    ) -> Result<(), TrainError> {
        Ok(())
    }

    /// Does the first of these steps, the last of which is that of the run.
    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError>;

    /// Sees to it that all workers hold what is to be judged after so many steps.
    fn meet(&mut self, _worker: &mut Worker<'_>, _num_steps: u64) -> Result<(), TrainError> {
        Ok(())
    }

    /// Whether the run can be saved after so many steps, and sees to it that all workers hold what
    /// is.
    fn may_save(&mut self, worker: &mut Worker<'_>, num_steps: u64) -> Result<bool, TrainError>;

    /// All steps are done: sees to it that this worker holds what is left of the run.
    fn end(&mut self, _worker: &mut Worker<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// Everything is saved.
    fn leave(&mut self, _worker: &Worker<'_>) -> Result<(), TrainError> {
        Ok(())
    }
}
