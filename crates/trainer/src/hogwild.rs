//! Runs whose threads step shared weights without a lock; see [`lockstep_parallel::hogwild`].
//!
//! There is one worker, and `sync.threads` threads of it. Each learns from its own micro-batches of every
//! batch, at its own pace; they meet only where the model is judged or saved, and at the end. The
//! first of them is the worker's own thread, whose steps are those that the run tells about.

use crate::health::Verdict;
use crate::journal::StepRecord;
use crate::train::{microbatch_of, microbatch_shape};
use crate::way::{Way, Worker};
use crate::{TrainError, evaluate, feed, servers};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::{Cursor, Loader};
use lockstep_optim::{Clip, ClipPlan, LearningRate};
use lockstep_parallel::asked::{blueprint_on, plan_at};
use lockstep_parallel::hogwild::{Hog, SharedWeights};
use lockstep_platform::{JoinHandle, World};
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The way of a worker whose threads step as they like.
#[derive(Default)]
pub(crate) struct Hogwild {
    crew: Option<Crew>,
}

/// All threads.
struct Crew {
    shared: Arc<SharedWeights>,
    /// The worker's own.
    own: Hand,
    /// The others, each with its batches, and while they are at work their handles.
    others: Vec<Arc<Mutex<Other>>>,
    at_work: Vec<Box<dyn JoinHandle>>,
}

/// A thread that tells nobody anything but how stale its steps were, or why it ended.
struct Other {
    hand: Hand,
    loader: Loader,
    found: Result<(), TrainError>,
}

impl Way for Hogwild {
    fn begin(
        &mut self,
        worker: &mut Worker<'_>,
        first_step: u64,
        _saved: Option<&Path>,
    ) -> Result<(), TrainError> {
        let Worker { cpu, recipe, world, learner, .. } = worker;
        let other = |thread| Other::new(cpu, recipe, world, thread, first_step);
        self.crew = Some(Crew {
            shared: Arc::new(SharedWeights::new(&mut learner.replica)?),
            own: Hand::new(cpu, recipe, world, 0)?,
            others: (1..recipe.sync.threads)
                .map(|thread| Ok(Arc::new(Mutex::new(other(thread)?))))
                .collect::<Result<_, TrainError>>()?,
            at_work: Vec::new(),
        });
        Ok(())
    }

    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError> {
        let crew = self.crew.as_mut().expect("the run has begun");
        let (recipe, last_step) = (worker.recipe, steps.end);
        let is_over =
            |num_steps| num_steps == last_step || is_meeting(recipe, num_steps, last_step);
        if crew.at_work.is_empty() {
            let end = (steps.start + 1..=last_step).find(|step| is_over(*step));
            crew.spawn(recipe, worker.world, steps.start..end.unwrap_or(last_step))?;
        }
        worker.journal.begin_step();
        let record = crew.own.step(recipe, steps.start, &crew.shared, &mut worker.loader)?;
        worker.journal.finish_step(&record, &mut worker.learner.replica);
        if is_over(steps.start + 1) {
            crew.join()?;
            crew.shared.show(&mut worker.learner.replica)?;
            let missed = crew.staleness();
            servers::tell_staleness(steps.start + 1, missed, &mut worker.journal);
        }
        Ok(())
    }

    fn may_save(&mut self, worker: &mut Worker<'_>, num_steps: u64) -> Result<bool, TrainError> {
        let recipe = worker.recipe;
        Ok(is_meeting(recipe, num_steps, recipe.train.steps))
    }
}

/// Whether threads meet after so many steps.
fn is_meeting(recipe: &Recipe, num_steps: u64, last_step: u64) -> bool {
    evaluate::is_due(recipe, num_steps, last_step)
        || recipe.is_due_every(recipe.checkpoint.every, num_steps)
}

impl Crew {
    /// Lets all threads but the worker's own do these steps.
    fn spawn(
        &mut self,
        recipe: &Recipe,
        world: &World,
        steps: Range<u64>,
    ) -> Result<(), TrainError> {
        for other in &self.others {
            let (other, shared) = (Arc::clone(other), Arc::clone(&self.shared));
            let (recipe, steps) = (recipe.clone(), steps.clone());
            let body =
                move || other.lock().expect("nobody else has it").run(&recipe, &shared, steps);
            let handle = world.threads().spawn("hogwild", Box::new(body));
            self.at_work.push(handle.map_err(TrainError::Threads)?);
        }
        Ok(())
    }

    /// Waits for all of them.
    fn join(&mut self) -> Result<(), TrainError> {
        for handle in self.at_work.drain(..) {
            handle.join().unwrap_or_else(|panicked| panic!("{panicked}"));
        }
        for other in &self.others {
            let mut other = other.lock().expect("its thread has ended");
            std::mem::replace(&mut other.found, Ok(()))?;
        }
        Ok(())
    }

    /// How many steps of each thread missed how many of others'.
    fn staleness(&self) -> Vec<BTreeMap<u64, u64>> {
        let others = self
            .others
            .iter()
            .map(|other| other.lock().expect("its thread has ended").hand.hog.staleness.clone());
        [self.own.hog.staleness.clone()].into_iter().chain(others).collect()
    }
}

impl Other {
    fn new(
        cpu: &Cpu,
        recipe: &Recipe,
        world: &World,
        thread: usize,
        first_step: u64,
    ) -> Result<Self, TrainError> {
        let alone = Comm::threads(world, 1, &lockstep_comm::Options::default())?.remove(0);
        let mut feed = feed::open(recipe, world, &alone)?;
        let loader = feed.loader(world, Cursor { next_step: first_step, corpus: None })?;
        Ok(Self { hand: Hand::new(cpu, recipe, world, thread)?, loader, found: Ok(()) })
    }

    fn run(&mut self, recipe: &Recipe, shared: &SharedWeights, mut steps: Range<u64>) {
        let Self { hand, loader, found } = self;
        *found = steps.try_for_each(|step| hand.step(recipe, step, shared, loader).map(drop));
    }
}

/// A thread at work.
struct Hand {
    hog: Hog,
    cpu: Cpu,
    thread: usize,
    num_microbatches: usize,
    lr: LearningRate,
    clip: ClipPlan,
}

impl Hand {
    fn new(cpu: &Cpu, recipe: &Recipe, world: &World, thread: usize) -> Result<Self, TrainError> {
        let (blueprint, seed) = (blueprint_on(recipe, 0), recipe.train.seed);
        let (plan, cpu) = (plan_at(recipe, &blueprint, 0), Cpu::single(cpu.isa()));
        let tensors = blueprint.tensors();
        let clip = ClipPlan::new(&recipe.optim, tensors.iter().map(|(_, p)| p.name.as_str()));
        let num_microbatches = recipe.num_microbatches() / recipe.sync.threads;
        let hog = Hog::new(blueprint, seed, &cpu, &plan, num_microbatches, world)?;
        let lr = LearningRate::new(&recipe.optim, recipe.train.steps);
        Ok(Self { hog, cpu, thread, num_microbatches, lr, clip })
    }

    /// Learns from this thread's micro-batches of one batch.
    fn step(
        &mut self,
        recipe: &Recipe,
        step: u64,
        shared: &SharedWeights,
        loader: &mut Loader,
    ) -> Result<StepRecord, TrainError> {
        let batch = loader.next_batch()?;
        let microbatches =
            self.thread * self.num_microbatches..(self.thread + 1) * self.num_microbatches;
        // By the targets of all threads, so that the steps of all are one of the batch.
        let microbatch = |index: usize| {
            microbatch_of(recipe, batch, microbatches.start + index, batch.num_targets)
        };
        let solo = self.hog.pull(shared)?;
        let loss = solo.run_microbatches(&self.cpu, recipe.train.seed, step, &microbatch)?;
        let loss = loss / batch.targets_in(microbatches.clone()).max(1) as f64;
        let sums = solo.finish_reduce(&self.cpu)?;
        let sums = solo.unscale(&self.cpu, sums);
        let clip: Clip = solo.clip(&self.cpu, sums, &self.clip)?;
        if !loss.is_finite() || !clip.norm.is_finite() {
            let what = if loss.is_finite() { "the gradient norm" } else { "the loss" }.to_owned();
            let value = if loss.is_finite() { clip.norm } else { loss };
            let source_of = format!(" (on thread {})", self.thread);
            return Err(TrainError::Diverged { step, what, value, source_of });
        }
        let lr = self.lr.at(step, recipe.train.batch);
        self.hog.push(shared, lr, &clip);
        Ok(StepRecord {
            step,
            loss,
            lr,
            clip,
            num_tokens: batch.num_microbatches() * microbatch_shape(recipe).rows(),
            data_wait_seconds: loader.wait_seconds(),
            verdict: Verdict::Step,
            loss_scale: None,
        })
    }
}
