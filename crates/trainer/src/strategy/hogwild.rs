//! Hogwild training (Niu et al. 2011): threads update shared weights without locks.
//! [`lockstep_parallel::hogwild`] implements the updates.
//!
//! One worker has `sync.threads` threads. Each one trains on its own micro-batches of every batch
//! at its own speed. They synchronize only for evaluations, checkpoints and the end. The run
//! reports the steps of the first thread, which is the worker's own.

use crate::health::Verdict;
use crate::microbatch::{microbatch_of, microbatch_shape};
use crate::step_log::StepRecord;
use crate::strategy::{SyncStrategy, Worker};
use crate::{TrainError, evaluate, feed};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::{Batch, Cursor, Loader};
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, ClipPlan, LearningRate, Optimizer, Update};
use lockstep_parallel::from_recipe::{blueprint_of_rank, plan_at};
use lockstep_parallel::hogwild::SharedWeights;
use lockstep_parallel::{Replica, StepHost, StepLoss};
use lockstep_platform::{JoinHandle, World};
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Hogwild strategy of a worker.
#[derive(Default)]
pub(crate) struct Hogwild {
    pool: Option<ThreadPool>,
}

/// All threads of the worker.
struct ThreadPool {
    shared: Arc<SharedWeights>,
    /// The worker's own thread.
    own: ThreadState,
    /// Background threads with their loaders, and their handles while they run.
    others: Vec<Arc<Mutex<BackgroundThread>>>,
    handles: Vec<Box<dyn JoinHandle>>,
}

/// A background thread, which reports only its staleness and its error.
struct BackgroundThread {
    thread_state: ThreadState,
    loader: Loader,
    found: Result<(), TrainError>,
}

impl SyncStrategy for Hogwild {
    fn begin(
        &mut self,
        worker: &mut Worker<'_>,
        first_step: u64,
        _checkpoint: Option<&Path>,
    ) -> Result<(), TrainError> {
        let Worker { cpu, recipe, world, learner, .. } = worker;
        let shared = Arc::new(SharedWeights::new(&mut learner.replica)?);
        let other = |thread| {
            let thread_state = ThreadState::new(cpu, recipe, world, thread, &shared)?;
            BackgroundThread::new(recipe, world, thread_state, first_step)
        };
        self.pool = Some(ThreadPool {
            own: ThreadState::new(cpu, recipe, world, 0, &shared)?,
            others: (1..recipe.sync.threads)
                .map(|thread| Ok(Arc::new(Mutex::new(other(thread)?))))
                .collect::<Result<_, TrainError>>()?,
            handles: Vec::new(),
            shared: Arc::clone(&shared),
        });
        Ok(())
    }

    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError> {
        let pool = self.pool.as_mut().expect("the run has begun");
        let (recipe, last_step) = (worker.recipe, steps.end);
        let is_over =
            |num_steps| num_steps == last_step || is_sync_point(recipe, num_steps, last_step);
        if pool.handles.is_empty() {
            let end = (steps.start + 1..=last_step).find(|step| is_over(*step));
            pool.spawn(recipe, worker.world, steps.start..end.unwrap_or(last_step))?;
        }
        worker.step_log.begin_step();
        let record = pool.own.step(recipe, steps.start, &mut worker.loader)?;
        worker.step_log.record_spans(steps.start + 1, &mut pool.own.replica);
        worker.step_log.finish_step(&record, &mut worker.learner.replica);
        if is_over(steps.start + 1) {
            pool.join()?;
            pool.shared.show(&mut worker.learner.replica)?;
            let missed = pool.staleness();
            worker.step_log.record_staleness(steps.start + 1, missed);
        }
        Ok(())
    }

    fn prepare_checkpoint(
        &mut self,
        worker: &mut Worker<'_>,
        num_steps: u64,
    ) -> Result<bool, TrainError> {
        let recipe = worker.recipe;
        Ok(is_sync_point(recipe, num_steps, recipe.train.steps))
    }
}

/// Whether the threads synchronize after `num_steps` steps.
fn is_sync_point(recipe: &Recipe, num_steps: u64, last_step: u64) -> bool {
    evaluate::is_due(recipe, num_steps, last_step)
        || recipe.is_due_every(recipe.checkpoint.every, num_steps)
}

impl ThreadPool {
    /// Runs `steps` on all background threads.
    fn spawn(
        &mut self,
        recipe: &Recipe,
        world: &World,
        steps: Range<u64>,
    ) -> Result<(), TrainError> {
        for other in &self.others {
            let (other, recipe, steps) = (Arc::clone(other), recipe.clone(), steps.clone());
            let body = move || {
                other.lock().expect("only this thread locks it").run(&recipe, steps);
            };
            let handle = world.threads().spawn("hogwild", Box::new(body));
            self.handles.push(handle.map_err(TrainError::Threads)?);
        }
        Ok(())
    }

    /// Waits for the background threads.
    fn join(&mut self) -> Result<(), TrainError> {
        for handle in self.handles.drain(..) {
            handle.join().unwrap_or_else(|panicked| panic!("{panicked}"));
        }
        for other in &self.others {
            let mut other = other.lock().expect("its thread has ended");
            std::mem::replace(&mut other.found, Ok(()))?;
        }
        Ok(())
    }

    /// Staleness histogram of each thread: number of steps by missed updates.
    fn staleness(&self) -> Vec<BTreeMap<u64, u64>> {
        let others = self
            .others
            .iter()
            .map(|other| other.lock().expect("its thread has ended").thread_state.staleness());
        [self.own.staleness()].into_iter().chain(others).collect()
    }
}

impl BackgroundThread {
    fn new(
        recipe: &Recipe,
        world: &World,
        thread_state: ThreadState,
        first_step: u64,
    ) -> Result<Self, TrainError> {
        let alone = Comm::threads(world, 1, &lockstep_comm::Options::default())?.remove(0);
        let mut feed = feed::open(recipe, world, &alone)?;
        let loader = feed.loader(world, Cursor { next_step: first_step, ..Cursor::start() })?;
        Ok(Self { thread_state, loader, found: Ok(()) })
    }

    fn run(&mut self, recipe: &Recipe, mut steps: Range<u64>) {
        let Self { thread_state, loader, found } = self;
        *found = steps.try_for_each(|step| thread_state.step(recipe, step, loader).map(drop));
    }
}

/// State of one thread.
struct ThreadState {
    replica: Replica,
    cpu: Cpu,
    thread: usize,
    lr: LearningRate,
    clip: ClipPlan,
    /// Without state: threads step shared weights by plain SGD.
    optimizer: Optimizer,
}

impl ThreadState {
    fn new(
        cpu: &Cpu,
        recipe: &Recipe,
        world: &World,
        thread: usize,
        shared: &Arc<SharedWeights>,
    ) -> Result<Self, TrainError> {
        let blueprint = blueprint_of_rank(recipe, 0);
        let (plan, cpu) = (plan_at(recipe, &blueprint, 0), Cpu::single(cpu.isa()));
        let tensors = blueprint.tensors();
        let clip = ClipPlan::new(&recipe.optim, tensors.iter().map(|(_, p)| p.name.as_str()));
        let replica = shared.replica_of_thread(recipe, (thread, &plan), blueprint, &cpu, world)?;
        let lr = LearningRate::new(&recipe.optim, recipe.train.steps);
        let optimizer = Optimizer::new(&recipe.optim, &[]);
        Ok(Self { replica, cpu, thread, lr, clip, optimizer })
    }

    /// Number of this thread's steps by missed updates.
    fn staleness(&self) -> BTreeMap<u64, u64> {
        self.replica.staleness().cloned().unwrap_or_default()
    }

    /// Trains on this thread's micro-batches of one batch.
    fn step(
        &mut self,
        recipe: &Recipe,
        step: u64,
        loader: &mut Loader,
    ) -> Result<StepRecord, TrainError> {
        let Self { replica, cpu, thread, lr, clip, optimizer } = self;
        let (batch, lr) = (loader.next_batch()?, lr.at(step, recipe.train.batch));
        let own = replica.own_microbatches().len();
        let num_targets = batch.targets_in(*thread * own..(*thread + 1) * own).max(1);
        let mut host =
            ThreadStep { recipe, step, batch, num_targets, thread: *thread, lr, loss: 0.0 };
        let seed = recipe.train.seed;
        let clip = replica.run_step(cpu, seed, step, optimizer, clip, &mut host)?;
        Ok(StepRecord {
            step,
            loss: host.loss,
            lr,
            clip: clip.expect("threads never end a step of another"),
            num_tokens: batch.num_microbatches() * microbatch_shape(recipe).rows(),
            data_wait_seconds: loader.wait_seconds(),
            verdict: Verdict::Step,
            loss_scale: None,
        })
    }
}

/// Batch of a thread's step, and the decision about it.
struct ThreadStep<'a> {
    recipe: &'a Recipe,
    step: u64,
    batch: &'a Batch,
    /// Number of targets of the thread's micro-batches.
    num_targets: u64,
    thread: usize,
    lr: f64,
    loss: f64,
}

impl<'a> StepHost<'a> for ThreadStep<'a> {
    type Error = TrainError;

    fn microbatch(&self, index: usize) -> Microbatch<'a> {
        // Divide by the targets of all threads, so that their updates sum to one of the batch.
        microbatch_of(self.recipe, self.batch, index, self.batch.num_targets)
    }

    fn after_microbatches(
        &mut self,
        _replica: &mut Replica,
        loss: &StepLoss,
    ) -> Result<Option<f32>, TrainError> {
        self.loss = loss.sum / self.num_targets as f64;
        Ok(None)
    }

    fn decide(
        &mut self,
        _replica: &mut Replica,
        clip: &Clip,
    ) -> Result<Option<Update>, TrainError> {
        let (step, loss) = (self.step, self.loss);
        if !loss.is_finite() || !clip.norm.is_finite() {
            let what = if loss.is_finite() { "the gradient norm" } else { "the loss" }.to_owned();
            let value = if loss.is_finite() { clip.norm } else { loss };
            let source_of = format!(" (on thread {})", self.thread);
            return Err(TrainError::Diverged { step, what, value, source_of });
        }
        Ok(Some(Update { count: step + 1, lr: self.lr, clip: *clip }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::materialize::materialize;
    use lockstep_config::{Sources, resolve};
    use lockstep_parallel::Groups;
    use lockstep_parallel::from_recipe::mesh_of;
    use lockstep_tensor::Isa;
    use lockstep_tensor::device::Compute;

    #[test]
    fn a_gradient_that_is_thrown_away_counts_as_no_step() {
        // Every step multiplies the distance from the optimum, until the loss overflows.
        let optim = ["optim.lr=1000", "optim.clip=0", "optim.schedule=constant", "optim.name=sgd"];
        let threads = ["sync.mode=hogwild", "sync.threads=1", "run.workers=1"];
        let sets = [&threads[..], &optim].concat();
        let sets = sets.into_iter().map(str::to_owned).collect();
        let preset = Some("quadratic".to_owned());
        let recipe = resolve(&Sources { preset, sets, ..Sources::default() });
        let recipe = recipe.unwrap_or_else(|errors| panic!("{errors}"));
        let (world, cpu) = (lockstep_platform::real(), Compute::single(Isa::detect()));
        let comm = &Comm::threads(&world, 1, &lockstep_comm::Options::default()).unwrap()[0];
        let groups = Groups::new(comm, mesh_of(&recipe)).unwrap();
        let mut learner = materialize(&recipe, &cpu, &groups, &world).unwrap();
        let shared = Arc::new(SharedWeights::new(&mut learner.replica).unwrap());
        let state = ThreadState::new(&cpu, &recipe, &world, 0, &shared).unwrap();
        let mut other = BackgroundThread::new(&recipe, &world, state, 0).unwrap();
        let mut num_applied = 0;
        let thrown_away = loop {
            let BackgroundThread { thread_state, loader, .. } = &mut other;
            match thread_state.step(&recipe, num_applied, loader) {
                Ok(_) => num_applied += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(thrown_away, TrainError::Diverged { .. }), "{thrown_away}");
        assert!(num_applied > 0, "the first step is sound");
        assert_eq!(shared.num_updates(), num_applied);
        assert_eq!(other.thread_state.staleness().values().sum::<u64>(), num_applied);
    }
}
