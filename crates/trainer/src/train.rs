//! The spine: one worker's life, from an empty process to saved weights.

use crate::checkpoints::Saver;
use crate::evaluate::{Examination, Examiner};
use crate::hogwild::Hogwild;
use crate::journal::Journal;
use crate::lockstep::Lockstep;
use crate::saved::{self, Learner};
use crate::summary::Predicted;
use crate::way::{Way, Worker};
use crate::{RunFolder, Summary, TrainError, restore};
use crate::{check, device, evaluate, feed, pace, rounds, run_folder, servers};
use lockstep_comm::Comm;
use lockstep_config::{Recipe, Reduction, SyncMode};
use lockstep_data::{Batch, Feed};
use lockstep_model::Microbatch;
use lockstep_parallel::Groups;
use lockstep_parallel::asked::mesh_of;
pub(crate) use lockstep_parallel::asked::microbatch_shape;
use lockstep_platform::World;
use lockstep_telemetry::Sink;
use lockstep_tensor::Cpu;
use std::path::PathBuf;

/// What a run is told besides its recipe; none of it changes a bit of the result.
#[derive(Default)]
pub struct Options {
    /// Go on from where the run in this folder stopped.
    pub resume: Option<PathBuf>,
    /// Stop after this many steps of the recipe, as if the plug were pulled gently.
    pub stop_after: Option<u64>,
    /// Where events go besides the run folder.
    pub sinks: Vec<Box<dyn Sink>>,
    /// What the run was said to cost, to stand beside what it did cost.
    pub predicted: Predicted,
    /// Which life of the run this is.
    pub life: Life,
}

/// A run may have several lives: workers that were lost are started again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// How many there were before.
    pub restarts: u64,
    /// The folder that all of them share; nothing where the recipe says it all.
    pub dir: Option<PathBuf>,
}

/// Trains as the recipe says, as one of the workers of `comm`, on the device the recipe asks for.
/// The first worker keeps the run's folder and returns its figures.
pub fn train(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    let cpu = device::open(recipe, world)?;
    train_on(&cpu, recipe, world, comm, options)
}

fn train_on(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    // Do we all mean the same?
    check::agree_on_recipe(recipe, comm)?;
    if recipe.num_servers() > 0 {
        return servers::train(cpu, recipe, world, comm, options);
    }
    if recipe.sync.mode == SyncMode::Hogwild {
        return learn(cpu, recipe, None, world, [comm; 2], options, &mut Hogwild::default());
    }
    let (recipe, chosen) = pace::settled(recipe, &options, world, cpu, comm)?;
    learn(cpu, &recipe, chosen, world, [comm; 2], options, &mut Lockstep)
}

/// The life of a worker that knows what is meant; `chosen` is what was chosen for it, in words. The
/// groups are all workers, and everybody whose failures the run records.
pub(crate) fn learn(
    cpu: &Cpu,
    recipe: &Recipe,
    chosen: Option<String>,
    world: &World,
    [comm, everybody]: [&Comm; 2],
    options: Options,
    way: &mut dyn Way,
) -> Result<Option<Summary>, TrainError> {
    // What do I learn from, what do I own, and where did I stop?
    check::groups(recipe)?;
    let groups = Groups::new(comm, mesh_of(recipe))?;
    let mut feed = feed::open(recipe, world, groups.data())?;
    let mut learner = Learner::materialize(recipe, cpu, &groups, world)?;
    let mut start = restore::restore(&options, recipe, world, comm, &mut learner)?;
    start.warnings.extend(chosen);
    let held_out = feed::validation(&mut feed, recipe, groups.data())?;
    let examiner = Examiner::new(recipe, held_out, comm);
    let tokenizer = feed.tokenizer_json()?;
    let loader = feed.loader(world, start.cursor.clone())?;
    let targets = feed::Targets::new(&feed, groups.data());
    let last_step = rounds::last_step(recipe, options.stop_after)?;
    // A worker may be lost after the last step; then the next life has only its end to tell.
    if start.step >= last_step && options.life.restarts == 0 {
        return Err(TrainError::NothingToDo { done: start.step, asked: last_step });
    }

    // Everything that could be refused has been; only now does the run leave a trace.
    let life = &options.life;
    let folder = RunFolder::of_worker(comm.group_rank(), recipe, world, life)?;
    saved::save_tokenizer(folder.as_ref(), world, tokenizer.as_deref())?;
    let run_dir = run_folder::record_failures(everybody, folder.as_ref())?;
    let mut saver = Saver::open(recipe, world, comm, &run_dir, &start, life)?;
    let mut journal = Journal::start(recipe, world, cpu, folder.as_ref(), options.sinks, &learner)?;
    let saved = start.from.clone();
    let first_step = journal.go_on(start, life);
    let mut worker = Worker { cpu, recipe, world, comm, learner, loader, targets, journal };
    way.begin(&mut worker, first_step, saved.as_deref())?;

    let mut examination = None;
    for step in first_step..last_step {
        way.step(&mut worker, step..last_step)?;
        if evaluate::is_due(recipe, step + 1, last_step) {
            let found = *examination.insert(examine(step + 1, &examiner, &mut worker, way)?);
            // All workers know the same loss, so all of them stop here or none.
            if evaluate::is_reached(recipe, found.validation_loss) {
                break;
            }
        }
        // The last step is saved as the run's result.
        if step + 1 < last_step && way.may_save(&mut worker, step + 1)? {
            let Worker { learner, loader, journal, .. } = &mut worker;
            saver.after_step(step + 1, learner, || loader.cursor(), journal)?;
        }
    }
    if first_step >= last_step {
        examination = Some(examine(first_step, &examiner, &mut worker, way)?);
    }
    saver.finish(&mut worker.journal)?;
    way.end(&mut worker)?;
    leave(worker, way, &mut saver, folder.as_ref(), &feed, examination, &options.predicted)
}

/// Saves what is left of the run, and sums it up.
fn leave(
    mut worker: Worker<'_>,
    way: &mut dyn Way,
    saver: &mut Saver,
    folder: Option<&RunFolder>,
    feed: &Feed,
    examination: Option<Examination>,
    predicted: &Predicted,
) -> Result<Option<Summary>, TrainError> {
    let Worker { recipe, world, comm, learner, loader, journal, .. } = &mut worker;
    let figures = journal.figures_by_worker(comm, learner, feed.held_bytes())?;
    let end = loader.cursor();
    let hash = saved::save(folder, recipe, world, learner, &end, &journal.losses)?;
    saver.at_end(learner, &end, journal)?;
    way.leave(&worker)?;
    let Some(folder) = folder else { return Ok(None) };
    let Worker { recipe, world, learner, journal, .. } = worker;
    let summary =
        Summary::of(recipe, feed, folder, &learner, &journal, &figures, hash, examination)
            .beside(predicted, learner.replica.bucket_len());
    saved::save_summary(folder, world, &summary)?;
    journal.finish(&summary);
    Ok(Some(summary))
}

/// Judges the model between two steps.
fn examine(
    num_steps: u64,
    examiner: &Examiner,
    worker: &mut Worker<'_>,
    way: &mut dyn Way,
) -> Result<Examination, TrainError> {
    worker.journal.pause(&mut worker.learner.replica, worker.comm)?;
    way.meet(worker, num_steps)?;
    let Worker { cpu, recipe, learner, journal, .. } = worker;
    let found = examiner.examine(&mut learner.replica, cpu, recipe)?;
    journal.evaluated(num_steps, &found, &learner.replica);
    Ok(found)
}

/// A micro-batch of a batch as the model takes it. Gradients are divided by the number of targets of the
/// batch, over all workers, unless the recipe asks for their sum.
pub(crate) fn microbatch_of<'a>(
    recipe: &Recipe,
    batch: &'a Batch,
    index: usize,
    num_targets: u64,
) -> Microbatch<'a> {
    let shape = microbatch_shape(recipe);
    let (inputs, targets) = batch.microbatch(index);
    let first_sample = (index * shape.sequences) as u64;
    let num_targets = match recipe.train.reduction {
        Reduction::Mean => num_targets,
        Reduction::Sum => 1,
    };
    Microbatch { shape, inputs, targets, first_sample, num_targets }
}
