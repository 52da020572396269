//! The spine: one worker's life, from an empty process to saved weights.

use crate::journal::{Journal, StepRecord};
use crate::saved::{self, Learner};
use crate::{RunFolder, Summary, TrainError, device, evaluate, health};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::{Batch, Corpus, Loader, validation_lanes};
use lockstep_mesh::Rank;
use lockstep_model::{Lane, LaneShape};
use lockstep_optim::Update;
use lockstep_parallel::Replica;
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

/// One worker's life: trains as the recipe says, on the device it asks for, together with the
/// other members of `comm`. Rank 0 brings back the figures.
pub fn train(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    if comm.rank() != Rank(0) {
        let resume = options.resume.as_deref();
        let first = resume.map_or(Ok(0), |dir| Ok(saved::open(dir, recipe, world)?.1.step));
        let last = options.stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
        for _ in first.map_err(|error: TrainError| error)?..last {
            comm.barrier()?;
        }
        return Ok(None);
    }
    let cpu = device::open(recipe, world)?;
    train_on(&cpu, recipe, world, comm, options).map(Some)
}

fn train_on(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Summary, TrainError> {
    // What do I learn from, what do I own, and where did I stop?
    let corpus = Arc::new(Corpus::load(recipe, world)?);
    let mut learner = Learner::materialize(recipe, cpu);
    let start = saved::restore(options.resume.as_deref(), recipe, world, &mut learner)?;
    let mut loader = Loader::open(recipe, world, Arc::clone(&corpus), start.cursor)?;
    let validation = validation_lanes(recipe, &corpus);
    let last_step = options.stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
    if start.step >= last_step {
        return Err(TrainError::NothingToDo { done: start.step, asked: last_step });
    }

    // Everything that could be refused has been; only now does the run leave a trace.
    let folder = RunFolder::create(recipe, world)?;
    let mut journal = Journal::start(recipe, world, cpu, &folder, options.sinks, &learner)?;
    journal.losses = start.losses;

    let mut validation_loss = None;
    for step in start.step..last_step {
        journal.begin_step();
        comm.barrier()?;
        let batch = loader.next_batch()?;
        let loss = run_lanes(&mut learner.replica, cpu, recipe, batch);
        learner.replica.finish_reduce(cpu);
        let clip = learner.norm.clip(cpu, learner.replica.grads(), recipe.optim.clip);
        health::require_finite(cpu, step, loss, &clip, &learner.replica)?;
        let lr = learner.lr.at(step);
        let update = Update { count: step + 1, lr, grad_scale: clip.scale };
        learner.replica.step(cpu, &mut learner.optimizer, &update);
        let (grad_norm, data_wait_seconds) = (clip.norm, loader.wait_seconds());
        journal.finish_step(&StepRecord { step, loss, lr, grad_norm, data_wait_seconds });
        if evaluate::is_due(recipe, step + 1, last_step) {
            let loss = evaluate::validation_loss(&mut learner.replica, cpu, recipe, &validation);
            validation_loss = Some(loss);
            journal.evaluated(step + 1, loss);
        }
    }
    saved::save(&folder, recipe, world, &learner, &loader.cursor(), &journal.losses)?;
    let summary = Summary::of(recipe, world, &corpus, &folder, &learner, &journal, validation_loss);
    saved::save_summary(&folder, world, &summary)?;
    journal.finish(&summary);
    Ok(summary)
}

/// Forward and backward of every lane, in ascending order; returns the mean loss of the batch.
pub(crate) fn run_lanes(replica: &mut Replica, cpu: &Cpu, recipe: &Recipe, batch: &Batch) -> f64 {
    let shape = lane_shape(recipe);
    let mut loss_sum = 0.0;
    for index in 0..batch.num_lanes() {
        let (inputs, targets) = batch.lane(index);
        let first_sample = (index * shape.sequences) as u64;
        let num_targets = batch.num_targets;
        let lane = Lane { shape, inputs, targets, first_sample, num_targets };
        loss_sum += replica.run_lane(cpu, recipe.train.seed, batch.step, &lane);
    }
    loss_sum / batch.num_targets as f64
}

/// The shape of every lane of a recipe, in training and evaluation.
pub(crate) fn lane_shape(recipe: &Recipe) -> LaneShape {
    LaneShape { sequences: recipe.train.microbatch, tokens: recipe.model.context }
}
