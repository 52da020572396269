//! The spine: one worker's life, from an empty process to saved weights.

use crate::journal::{Journal, StepRecord};
use crate::saved::{self, Learner};
use crate::{RunFolder, Summary, TrainError, check, device, evaluate, health, run_folder};
use lockstep_comm::Comm;
use lockstep_config::{Recipe, Reduction};
use lockstep_data::{Batch, Corpus, Loader, validation_lanes};
use lockstep_model::{Lane, LaneShape};
use lockstep_optim::Update;
use lockstep_platform::World;
use lockstep_telemetry::Sink;
use lockstep_tensor::Cpu;
use std::path::PathBuf;
use std::sync::Arc;

/// What a run is told besides its recipe; none of it changes a bit of the result.
#[derive(Default)]
pub struct Options {
    /// Go on from where the run in this folder stopped.
    pub resume: Option<PathBuf>,
    /// Stop after this many steps of the recipe, as if the plug were pulled gently.
    pub stop_after: Option<u64>,
    /// Where events go besides the run folder.
    pub sinks: Vec<Box<dyn Sink>>,
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
    // Do we all mean the same? What do I learn from, what do I own, and where did I stop?
    check::agree_on_recipe(recipe, comm)?;
    let corpus = Arc::new(Corpus::load(recipe, world)?);
    let mut learner = Learner::materialize(recipe, cpu, comm, world)?;
    let start = saved::restore(options.resume.as_deref(), recipe, world, &mut learner)?;
    let mut loader = Loader::open(recipe, world, Arc::clone(&corpus), start.cursor)?;
    let validation = validation_lanes(recipe, &corpus);
    let last_step = options.stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
    if start.step >= last_step {
        return Err(TrainError::NothingToDo { done: start.step, asked: last_step });
    }

    // Everything that could be refused has been; only now does the run leave a trace.
    let folder = RunFolder::of_worker(comm.position(), recipe, world)?;
    run_folder::record_failures(comm, folder.as_ref())?;
    let mut journal = Journal::start(recipe, world, cpu, folder.as_ref(), options.sinks, &learner)?;
    journal.losses = start.losses;

    let mut validation_loss = None;
    for step in start.step..last_step {
        journal.begin_step();
        let batch = loader.next_batch()?;
        let lane = |index| lane_of(recipe, batch, index);
        let loss = learner.replica.run_lanes(cpu, recipe.train.seed, step, &lane)?;
        let loss = loss / batch.num_targets as f64;
        learner.replica.finish_reduce(cpu)?;
        let clip = learner.replica.clip(cpu, recipe.optim.clip)?;
        let lr = learner.lr.at(step);
        let is_healthy = health::agree(cpu, recipe, step, loss, &clip, &mut learner, &lane)?;
        if is_healthy {
            let update = Update { count: step + 1, lr, grad_scale: clip.scale };
            learner.replica.step(cpu, &mut learner.optimizer, &update)?;
        }
        let (grad_norm, data_wait_seconds) = (clip.norm, loader.wait_seconds());
        let record = StepRecord { step, loss, lr, grad_norm, data_wait_seconds, is_healthy };
        journal.finish_step(&record, &mut learner.replica);
        health::compare_replicas(recipe, step + 1, &mut learner.replica)?;
        if evaluate::is_due(recipe, step + 1, last_step) {
            journal.pause(&mut learner.replica)?;
            let loss = evaluate::validation_loss(&mut learner.replica, cpu, recipe, &validation)?;
            validation_loss = Some(loss);
            journal.evaluated(step + 1, loss, &learner.replica);
        }
    }
    let figures = journal.figures_by_worker(comm, &learner)?;
    let hash = saved::save(
        folder.as_ref(),
        recipe,
        world,
        &mut learner,
        &loader.cursor(),
        &journal.losses,
    )?;
    let Some(folder) = folder else { return Ok(None) };
    let summary =
        Summary::of(recipe, &corpus, &folder, &learner, &journal, &figures, hash, validation_loss);
    saved::save_summary(&folder, world, &summary)?;
    journal.finish(&summary);
    Ok(Some(summary))
}

/// A lane of a batch as the model takes it. Gradients are divided by the number of targets of the
/// batch, unless the recipe asks for their sum.
pub(crate) fn lane_of<'a>(recipe: &Recipe, batch: &'a Batch, index: usize) -> Lane<'a> {
    let shape = lane_shape(recipe);
    let (inputs, targets) = batch.lane(index);
    let first_sample = (index * shape.sequences) as u64;
    let num_targets = match recipe.train.reduction {
        Reduction::Mean => batch.num_targets,
        Reduction::Sum => 1,
    };
    Lane { shape, inputs, targets, first_sample, num_targets }
}

/// The shape of every lane of a recipe, in training and evaluation.
pub(crate) fn lane_shape(recipe: &Recipe) -> LaneShape {
    LaneShape { sequences: recipe.train.microbatch, tokens: recipe.model.context }
}
