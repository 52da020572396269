//! Training with a replica on a thread of its own, on its part of every batch.

use crate::learner::Learner;
use crate::materialize::learner_of;
use crate::step_log::StepRecord;
use crate::training_step::{StepSetting, take_step};
use crate::{TrainError, feed};
use lockstep_comm::{Comm, Options};
use lockstep_config::Recipe;
use lockstep_data::{Batch, Cursor, Loader};
use lockstep_optim::Optimizer;
use lockstep_parallel::Replica;
use lockstep_parallel::sync_strategy::TrainingThread;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::Compute;

/// State of a thread.
pub(crate) struct ReplicaThread {
    recipe: Recipe,
    compute: Compute,
    thread: usize,
    /// Replica and learning-rate schedule; the update is that of the strategy, without state.
    learner: Learner,
    /// Source of its own batches; none where it trains on those of the worker.
    loader: Option<Loader>,
}

impl ReplicaThread {
    /// Thread number `thread`, with batches of its own from `first_step` on.
    pub(crate) fn new(
        recipe: &Recipe,
        world: &World,
        replica: Replica,
        (thread, first_step): (usize, Option<u64>),
        compute: Compute,
    ) -> Result<Self, TrainError> {
        let mut recipe = recipe.clone();
        // What a thread adds cannot be taken back, so its first faulty step ends the run.
        recipe.train.max_skipped = 0;
        let open = |first_step| {
            let alone = Comm::threads(world, 1, &Options::default())?.remove(0);
            let mut feed = feed::open(&recipe, world, &alone)?;
            let cursor = Cursor { next_step: first_step, ..Cursor::start() };
            Ok::<_, TrainError>(feed.loader(world, cursor)?)
        };
        let loader = first_step.map(open).transpose()?;
        let optimizer = Optimizer::new(&recipe.optim, &[]);
        let learner = learner_of(&recipe, &compute, world, replica, optimizer);
        Ok(Self { recipe, compute, thread, learner, loader })
    }

    /// Trains on the thread's micro-batches of a batch.
    pub(crate) fn train_on(&mut self, batch: &Batch, step: u64) -> Result<StepRecord, TrainError> {
        let Self { recipe, compute: cpu, thread, learner, .. } = self;
        train_on(recipe, cpu, *thread, learner, batch, step)
    }

    /// Replica of the thread.
    pub(crate) fn replica_mut(&mut self) -> &mut Replica {
        &mut self.learner.replica
    }
}

impl TrainingThread for ReplicaThread {
    type Error = TrainError;

    fn take_step(&mut self, step: u64) -> Result<(), TrainError> {
        let Self { recipe, compute, thread, learner, loader } = self;
        let loader = loader.as_mut().expect("it has batches of its own");
        train_on(recipe, compute, *thread, learner, loader.next_batch()?, step).map(drop)
    }

    fn replica(&self) -> &Replica {
        &self.learner.replica
    }
}

fn train_on(
    recipe: &Recipe,
    cpu: &Cpu,
    thread: usize,
    learner: &mut Learner,
    batch: &Batch,
    step: u64,
) -> Result<StepRecord, TrainError> {
    let place = ("thread", thread);
    let setting = StepSetting { cpu, recipe, step, batch, place, emulation: None, joint: None };
    let (record, _) = take_step(setting, learner)?.expect("no thread ends a step of another");
    Ok(record)
}
