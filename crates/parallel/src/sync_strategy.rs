//! Synchronization strategy of a run: what its workers do between steps, and what ranks do that do
//! not train.
//!
//! The training loop is one for all strategies. It takes steps ([`crate::step`]), evaluates, saves
//! and summarizes; a [`SyncStrategy`] says before and after which of them ranks synchronize, and
//! reaches the loop through [`TrainingHost`]. [`crate::strategies::join`] registers strategies.

use crate::figures::StrategyFigures;
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError};
use lockstep_config::Recipe;
use lockstep_platform::{ThreadError, World};
use lockstep_telemetry::Event;
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::ops::Range;

/// Training loop of a worker, as its strategy sees it.
pub trait TrainingHost {
    /// Errors of the training loop.
    type Error: From<CommError> + From<ThreadError> + Send;

    /// Training on a thread of its own.
    type Thread: TrainingThread<Error = Self::Error>;

    /// Recipe of the run.
    fn recipe(&self) -> &Recipe;

    /// Compute device.
    fn cpu(&self) -> &Cpu;

    /// Clocks and threads.
    fn world(&self) -> &World;

    /// Replica of the worker.
    fn replica(&mut self) -> &mut Replica;

    /// Takes a step with the worker's replica.
    fn take_step(&mut self, step: u64) -> Result<(), Self::Error>;

    /// Whether ranks must have the weights to evaluate or to save after `num_steps` of `last_step`
    /// steps.
    fn is_due(&self, num_steps: u64, last_step: u64) -> bool;

    /// Training with a replica as thread number `thread` of this process, with batches of its own
    /// from `first_step` on or those of the worker.
    fn thread(
        &self,
        replica: Replica,
        thread: usize,
        first_step: Option<u64>,
    ) -> Result<Self::Thread, Self::Error>;

    /// Takes a step with the replica of a thread on the worker's batch, as the worker's step.
    fn take_step_of(&mut self, thread: &mut Self::Thread, step: u64) -> Result<(), Self::Error>;

    /// Number of steps that each rank has missed; that of this worker is known.
    fn missed_steps(&mut self) -> &mut [u64];

    /// Records an event.
    fn record(&mut self, event: &Event);

    /// Records a warning once.
    fn warn_once(&mut self, message: String);
}

/// Training on a thread.
pub trait TrainingThread: Send + 'static {
    /// Errors of the training loop.
    type Error: Send;

    /// Takes a step on its own batch.
    fn take_step(&mut self, step: u64) -> Result<(), Self::Error>;

    /// Replica of the thread.
    fn replica(&self) -> &Replica;
}

/// Reads a saved tensor: its name, length, the index of the first element, and the elements.
pub type ReadState<'a, E> = dyn Fn(&str, usize, usize, &mut [f32]) -> Result<(), E> + 'a;

/// Synchronization of a run's workers between their steps. The defaults are those of workers that
/// take each step together.
pub trait SyncStrategy<H: TrainingHost> {
    /// Prepares the replica before its state is restored.
    fn attach(&mut self, _recipe: &Recipe, _world: &World, _replica: &mut Replica) {}

    /// Prepares for the first of `steps`; `read` reads the checkpoint that the run resumes from.
    fn begin(
        &mut self,
        _host: &mut H,
        _steps: Range<u64>,
        _read: Option<&ReadState<'_, H::Error>>,
    ) -> Result<(), H::Error> {
        Ok(())
    }

    /// Takes the step `steps.start`; `steps.end` is the end of the run.
    fn step(&mut self, host: &mut H, steps: Range<u64>) -> Result<(), H::Error> {
        host.take_step(steps.start)
    }

    /// Gives every worker the weights to evaluate after `num_steps` steps.
    fn synchronize(&mut self, _host: &mut H, _num_steps: u64) -> Result<(), H::Error> {
        Ok(())
    }

    /// Whether the run can be saved after `num_steps` steps; if so, gives every worker the weights
    /// to save.
    fn prepare_checkpoint(&mut self, host: &mut H, num_steps: u64) -> Result<bool, H::Error> {
        Ok(host.recipe().is_round_over(num_steps))
    }

    /// Gives this worker the final weights after the last step: the mean, where workers have their
    /// own.
    fn finish(&mut self, host: &mut H) -> Result<(), H::Error> {
        Ok(host.replica().install_mean_weights()?)
    }

    /// Disconnects from other ranks after everything is saved.
    fn disconnect(&mut self, _host: &H) -> Result<(), CommError> {
        Ok(())
    }

    /// Adds what the strategy has counted.
    fn add_figures(&self, _figures: &mut StrategyFigures) {}
}

/// Strategy of workers that take each step together.
pub(crate) struct Together;

impl<H: TrainingHost> SyncStrategy<H> for Together {}

/// Work of a rank that does not train, until all workers have finished.
pub type Service = Box<dyn FnOnce(&Cpu, &World) -> Result<(), CommError>>;

/// Role of a rank in a run.
pub enum Role<H> {
    /// It does not train.
    Service(Service),
    /// It trains in the group of all workers.
    Worker {
        /// Strategy of all workers.
        strategy: Box<dyn SyncStrategy<H>>,
        /// All workers.
        workers: Comm,
    },
}

/// Records the staleness histogram of each worker, over all steps so far.
pub(crate) fn record_staleness(
    host: &mut impl TrainingHost,
    step: u64,
    by_worker: &[BTreeMap<u64, u64>],
) {
    for (worker, found) in by_worker.iter().enumerate() {
        let count = found.values().sum::<u64>().max(1) as f64;
        let sum: u64 = found.iter().map(|(staleness, count)| staleness * count).sum();
        host.record(&Event::Staleness {
            step,
            worker,
            mean: sum as f64 / count,
            max: found.keys().last().copied().unwrap_or(0),
            counts: found.iter().map(|(staleness, count)| (*staleness, *count)).collect(),
        });
    }
}
