//! Runs whose threads step shared weights without a lock; see [`lockstep_parallel::hogwild`].
//!
//! There is one worker, and `sync.threads` threads of it. Each learns from its own lanes of every
//! batch, at its own pace; they meet only where the model is judged or saved, and at the end. The
//! first of them is the worker's own thread, whose steps are those that the run tells about.

use crate::checkpoints::Saver;
use crate::evaluate::{Examination, Examiner};
use crate::health::Verdict;
use crate::journal::{Journal, StepRecord};
use crate::saved::{self, Learner};
use crate::train::{Options, lane_of, lane_shape};
use crate::{
    RunFolder, Summary, TrainError, check, evaluate, feed, restore, rounds, run_folder, servers,
};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::{Cursor, Loader};
use lockstep_optim::{Clip, ClipPlan, LearningRate};
use lockstep_parallel::Groups;
use lockstep_parallel::asked::{blueprint_on, mesh_of, plan_at};
use lockstep_parallel::hogwild::{Hog, SharedWeights};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// How many steps of a thread missed how many of others', or why it ended.
type Found = Result<BTreeMap<u64, u64>, TrainError>;

/// A worker's life whose threads step as they like.
pub(crate) fn train(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    check::groups(recipe)?;
    let groups = Groups::new(comm, mesh_of(recipe))?;
    let mut feed = feed::open(recipe, world, groups.data())?;
    let mut learner = Learner::materialize(recipe, cpu, &groups, world)?;
    let start = restore::restore(&options, recipe, world, comm, &mut learner)?;
    let held_out = feed::validation(&mut feed, recipe, groups.data())?;
    let examiner = Examiner::new(recipe, held_out, comm);
    let tokenizer = feed.tokenizer_json()?;
    let mut loader = feed.loader(world, start.cursor.clone())?;
    let last_step = rounds::last_step(recipe, options.stop_after)?;
    if start.step >= last_step {
        return Err(TrainError::NothingToDo { done: start.step, asked: last_step });
    }
    let folder = RunFolder::of_worker(comm.position(), recipe, world, &options.life)?;
    saved::save_tokenizer(folder.as_ref(), world, tokenizer.as_deref())?;
    let run_dir = run_folder::record_failures(comm, folder.as_ref())?;
    let mut saver = Saver::open(recipe, world, comm, &run_dir, &start, &options.life)?;
    let mut journal = Journal::start(recipe, world, cpu, folder.as_ref(), options.sinks, &learner)?;
    let step = journal.go_on(start, &options.life);
    let judged = Judged { comm, examiner, last_step };
    let examination = learn(
        cpu,
        recipe,
        world,
        step,
        &judged,
        &mut learner,
        &mut loader,
        &mut journal,
        &mut saver,
    )?;
    saver.finish(&mut journal)?;
    let figures = journal.figures_by_worker(comm, &learner, feed.held_bytes())?;
    let (cursor, losses) = (loader.cursor(), &journal.losses);
    let hash = saved::save(folder.as_ref(), recipe, world, &mut learner, &cursor, losses)?;
    let Some(folder) = folder else { return Ok(None) };
    let summary =
        Summary::of(recipe, &feed, &folder, &learner, &journal, &figures, hash, examination);
    saved::save_summary(&folder, world, &summary)?;
    journal.finish(&summary);
    Ok(Some(summary))
}

/// Who judges, and when for the last time.
struct Judged<'a> {
    comm: &'a Comm,
    examiner: Examiner,
    last_step: u64,
}

/// Steps until the end, from meeting to meeting.
fn learn(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    mut step: u64,
    judged: &Judged<'_>,
    learner: &mut Learner,
    loader: &mut Loader,
    journal: &mut Journal,
    saver: &mut Saver,
) -> Result<Option<Examination>, TrainError> {
    let last_step = judged.last_step;
    let shared = Arc::new(SharedWeights::new(&mut learner.replica)?);
    let mut own = Worker::new(cpu, recipe, world, 0)?;
    let mut others = vec![BTreeMap::new(); recipe.sync.threads - 1];
    let mut examination = None;
    while step < last_step {
        let end = (step + 1..last_step).find(|s| is_meeting(recipe, *s, last_step));
        let end = end.unwrap_or(last_step);
        let threads = spawn(cpu, recipe, world, &shared, step..end)?;
        for step in step..end {
            journal.begin_step();
            let record = own.step(recipe, step, &shared, loader)?;
            journal.finish_step(&record, &mut learner.replica);
        }
        for (all, found) in others.iter_mut().zip(join(threads)) {
            found?.into_iter().for_each(|(missed, count)| *all.entry(missed).or_default() += count);
        }
        step = end;
        shared.show(&mut learner.replica)?;
        let by_thread = [&[own.hog.staleness.clone()][..], &others].concat();
        servers::tell_staleness(step, by_thread, journal);
        if evaluate::is_due(recipe, step, last_step) {
            journal.pause(&mut learner.replica, judged.comm)?;
            let found = judged.examiner.examine(&mut learner.replica, cpu, recipe)?;
            examination = Some(found);
            journal.evaluated(step, &found, &learner.replica);
            if evaluate::is_reached(recipe, found.validation_loss) {
                break;
            }
        }
        if step < last_step {
            saver.after_step(step, learner, || loader.cursor(), journal)?;
        }
    }
    Ok(examination)
}

/// Whether threads meet after so many steps.
fn is_meeting(recipe: &Recipe, num_steps: u64, last_step: u64) -> bool {
    evaluate::is_due(recipe, num_steps, last_step)
        || recipe.is_due_every(recipe.checkpoint.every, num_steps)
}

/// A thread, and where it leaves what it has found.
type Spawned = (Box<dyn lockstep_platform::JoinHandle>, Arc<Mutex<Option<Found>>>);

/// Starts all threads but the worker's own.
fn spawn(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    shared: &Arc<SharedWeights>,
    steps: Range<u64>,
) -> Result<Vec<Spawned>, TrainError> {
    let spawn = |thread: usize| {
        let found = Arc::new(Mutex::new(None));
        let (recipe, shared, isa) = (recipe.clone(), Arc::clone(shared), cpu.isa());
        let (own_world, steps, left) = (World::clone(world), steps.clone(), Arc::clone(&found));
        let body = move || {
            let found = run(&Cpu::single(isa), &recipe, &own_world, thread, &shared, steps);
            *left.lock().expect("nobody panics with it") = Some(found);
        };
        let handle = world.threads().spawn("hogwild", Box::new(body));
        handle.map(|handle| (handle, found)).map_err(TrainError::Threads)
    };
    (1..recipe.sync.threads).map(spawn).collect()
}

/// Waits for all threads, and gives what they have found in their order.
fn join(threads: Vec<Spawned>) -> Vec<Found> {
    let found = |(handle, found): Spawned| {
        handle.join().unwrap_or_else(|panicked| panic!("{panicked}"));
        let found = found.lock().expect("its thread has ended").take();
        found.expect("a thread that ends leaves word")
    };
    threads.into_iter().map(found).collect()
}

/// The life of a thread that tells nobody anything but how stale its steps were.
fn run(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    thread: usize,
    shared: &SharedWeights,
    steps: Range<u64>,
) -> Found {
    let alone = Comm::threads(world, 1, &lockstep_comm::Options::default())?.remove(0);
    let mut feed = feed::open(recipe, world, &alone)?;
    let mut loader = feed.loader(world, Cursor { next_step: steps.start, corpus: None })?;
    let mut worker = Worker::new(cpu, recipe, world, thread)?;
    for step in steps {
        worker.step(recipe, step, shared, &mut loader)?;
    }
    Ok(worker.hog.staleness)
}

/// A thread at work.
struct Worker {
    hog: Hog,
    cpu: Cpu,
    thread: usize,
    num_lanes: usize,
    lr: LearningRate,
    clip: ClipPlan,
}

impl Worker {
    fn new(cpu: &Cpu, recipe: &Recipe, world: &World, thread: usize) -> Result<Self, TrainError> {
        let (blueprint, seed) = (blueprint_on(recipe, 0), recipe.train.seed);
        let (plan, cpu) = (plan_at(recipe, &blueprint, 0), Cpu::single(cpu.isa()));
        let tensors = blueprint.tensors();
        let clip = ClipPlan::new(&recipe.optim, tensors.iter().map(|(_, p)| p.name.as_str()));
        let num_lanes = recipe.num_lanes() / recipe.sync.threads;
        let hog = Hog::new(blueprint, seed, &cpu, &plan, num_lanes, world)?;
        let lr = LearningRate::new(&recipe.optim, recipe.train.steps);
        Ok(Self { hog, cpu, thread, num_lanes, lr, clip })
    }

    /// Learns from this thread's lanes of one batch.
    fn step(
        &mut self,
        recipe: &Recipe,
        step: u64,
        shared: &SharedWeights,
        loader: &mut Loader,
    ) -> Result<StepRecord, TrainError> {
        let batch = loader.next_batch()?;
        let lanes = self.thread * self.num_lanes..(self.thread + 1) * self.num_lanes;
        // By the targets of all threads, so that the steps of all are one of the batch.
        let lane = |index: usize| lane_of(recipe, batch, lanes.start + index, batch.num_targets);
        let solo = self.hog.pull(shared)?;
        let loss = solo.run_lanes(&self.cpu, recipe.train.seed, step, &lane)?;
        let loss = loss / batch.targets_in(lanes.clone()).max(1) as f64;
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
            num_tokens: batch.num_lanes() * lane_shape(recipe).rows(),
            data_wait_seconds: loader.wait_seconds(),
            verdict: Verdict::Step,
            loss_scale: None,
        })
    }
}
