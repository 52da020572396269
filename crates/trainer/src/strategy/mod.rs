//! Synchronization strategies: how a worker's steps interact with those of other workers.
//!
//! [`lockstep_parallel::strategies`] registers their step programs. The files here register what a
//! run does besides its steps; nothing else in this crate names a strategy.
//!
//! - `synchronous`: all workers take the same step at the same time
//! - `parameter_server`: workers that pull and push, and the servers
//! - `hogwild`: threads with shared weights
//! - `local_steps`: automatic length of a round

mod hogwild;
mod local_steps;
mod parameter_server;
mod synchronous;

pub(crate) use local_steps::with_recorded_local_steps;
pub(crate) use parameter_server::save;

use crate::feed::Targets;
use crate::learner::Learner;
use crate::step_log::StepLog;
use crate::{Options, TrainError};
use hogwild::Hogwild;
use lockstep_comm::Comm;
use lockstep_config::{Recipe, SyncMode};
use lockstep_data::Loader;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::Compute;
use parameter_server::{ParameterServer, ServerConnection};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use synchronous::Synchronous;

/// Role of a rank in a run.
pub(crate) enum Role<'a> {
    /// It has served until all workers had finished.
    Server,
    /// It trains in the group of all workers.
    Worker {
        /// Strategy of all workers.
        strategy: Box<dyn SyncStrategy + 'a>,
        /// All workers.
        workers: Comm,
    },
}

/// Joins the run with the strategy of its recipe; a server returns once all workers have finished.
pub(crate) fn join<'a>(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    comm: &'a Comm,
) -> Result<Role<'a>, TrainError> {
    let strategy: Box<dyn SyncStrategy + 'a> = match recipe.sync.mode {
        SyncMode::ParameterServer => {
            let connection = ServerConnection::connect(recipe, world, comm)?;
            if !connection.is_worker(recipe) {
                parameter_server::serve(cpu, recipe, world, &connection)?;
                return Ok(Role::Server);
            }
            let workers = connection.workers().clone();
            let strategy = Box::new(ParameterServer::new(connection));
            return Ok(Role::Worker { strategy, workers });
        }
        SyncMode::Hogwild => Box::new(Hogwild::default()),
        SyncMode::AllReduce | SyncMode::LocalSgd | SyncMode::Gossip | SyncMode::Federated => {
            Box::new(Synchronous)
        }
    };
    Ok(Role::Worker { strategy, workers: comm.clone() })
}

/// Whether the strategy of a recipe describes the model a second time, so that it trains model
/// families only.
pub(crate) fn needs_family(recipe: &Recipe) -> bool {
    let mode = recipe.sync.mode;
    matches!(mode, SyncMode::ParameterServer | SyncMode::Hogwild | SyncMode::Federated)
}

/// Recipe with the chosen number of local steps, and a notice about the choice, where all workers
/// step together.
pub(crate) fn choose_local_steps<'a>(
    recipe: &'a Recipe,
    options: &Options,
    world: &World,
    compute: &Compute,
    comm: &Comm,
) -> Result<(Cow<'a, Recipe>, Option<String>), TrainError> {
    if matches!(recipe.sync.mode, SyncMode::ParameterServer | SyncMode::Hogwild) {
        return Ok((Cow::Borrowed(recipe), None));
    }
    local_steps::choose_local_steps(recipe, options, world, compute, comm)
}

/// State of a training rank between steps.
pub(crate) struct Worker<'a> {
    /// Compute device.
    pub cpu: &'a Cpu,
    /// Resolved recipe of the run.
    pub recipe: &'a Recipe,
    /// Clocks, threads and files.
    pub world: &'a World,
    /// Group of all workers, without servers.
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
