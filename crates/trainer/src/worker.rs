//! A training rank between steps, and what its synchronization strategy needs of it.

use crate::feed::Targets;
use crate::health::compare_replicas;
use crate::learner::Learner;
use crate::replica_thread::ReplicaThread;
use crate::step_log::{StepLog, StepRecord};
use crate::training_step::{JointStep, StepSetting, take_step};
use crate::{TrainError, evaluate};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::Loader;
use lockstep_parallel::Replica;
use lockstep_parallel::sync_strategy::TrainingHost;
use lockstep_platform::World;
use lockstep_telemetry::Event;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::Compute;

/// State of a training rank between steps.
pub(crate) struct Worker<'a> {
    /// Compute device.
    pub cpu: &'a Cpu,
    /// Resolved recipe of the run.
    pub recipe: &'a Recipe,
    /// Clocks, threads and files.
    pub world: &'a World,
    /// Group of all workers.
    pub comm: &'a Comm,
    /// Model, optimizer and loss scaler.
    pub learner: Learner,
    /// Source of batches.
    pub loader: Loader,
    /// Number of targets of each batch.
    pub targets: Targets,
    /// Telemetry and figures of this rank.
    pub step_log: StepLog,
}

impl TrainingHost for Worker<'_> {
    type Error = TrainError;
    type Thread = ReplicaThread;

    fn recipe(&self) -> &Recipe {
        self.recipe
    }

    fn cpu(&self) -> &Cpu {
        self.cpu
    }

    fn world(&self) -> &World {
        self.world
    }

    fn replica(&mut self) -> &mut Replica {
        &mut self.learner.replica
    }

    fn take_step(&mut self, step: u64) -> Result<(), TrainError> {
        let Worker { cpu, recipe, learner, loader, targets, step_log, .. } = self;
        learner.enter(recipe, step)?;
        step_log.begin_step();
        let batch = loader.next_batch()?;
        let StepLog { emulation, stragglers, noise, telemetry, .. } = step_log;
        let place = ("worker", learner.replica.groups().rank());
        let joint = Some(JointStep { targets, stragglers, noise, telemetry });
        let emulation = Some(&*emulation);
        let setting = StepSetting { cpu, recipe, step, batch, place, emulation, joint };
        let Some((record, participation)) = take_step(setting, learner)? else {
            step_log.record_missed_step();
            return Ok(());
        };
        let replica = &mut learner.replica;
        let data_wait_seconds = loader.wait_seconds();
        step_log.finish_step(&StepRecord { data_wait_seconds, ..record }, replica);
        step_log.record_participation(step + 1, &participation);
        step_log.record_measurements(step + 1, replica.take_measurements());
        compare_replicas(recipe, step + 1, replica)
    }

    fn is_due(&self, num_steps: u64, last_step: u64) -> bool {
        evaluate::is_due(self.recipe, num_steps, last_step)
            || self.recipe.is_due_every(self.recipe.checkpoint.every, num_steps)
    }

    fn thread(
        &self,
        replica: Replica,
        thread: usize,
        first_step: Option<u64>,
    ) -> Result<ReplicaThread, TrainError> {
        let compute = Compute::single(self.cpu.isa());
        ReplicaThread::new(self.recipe, self.world, replica, (thread, first_step), compute)
    }

    fn take_step_of(&mut self, thread: &mut ReplicaThread, step: u64) -> Result<(), TrainError> {
        let Worker { learner, loader, step_log, .. } = self;
        step_log.begin_step();
        let record = thread.train_on(loader.next_batch()?, step)?;
        step_log.record_spans(step + 1, thread.replica_mut());
        let data_wait_seconds = loader.wait_seconds();
        step_log.finish_step(&StepRecord { data_wait_seconds, ..record }, &mut learner.replica);
        Ok(())
    }

    fn missed_steps(&mut self) -> &mut [u64] {
        &mut self.step_log.stragglers.missed
    }

    fn record(&mut self, event: &Event) {
        self.step_log.record(event);
    }

    fn warn_once(&mut self, message: String) {
        self.step_log.warn_once(message);
    }
}
