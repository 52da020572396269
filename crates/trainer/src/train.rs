//! The spine: one worker's life, from an empty process to saved weights.

use crate::checkpoints::Saver;
use crate::evaluate::{Examination, Examiner};
use crate::health::Verdict;
use crate::journal::{Journal, StepRecord};
use crate::saved::{self, Learner};
use crate::summary::Predicted;
use crate::{RunFolder, Summary, TrainError, restore};
use crate::{
    check, device, evaluate, federated, feed, health, hogwild, pace, rounds, run_folder, servers,
    uneven,
};
use lockstep_comm::Comm;
use lockstep_config::{Recipe, Reduction, SyncMode};
use lockstep_data::{Batch, Loader};
use lockstep_model::Lane;
use lockstep_optim::Update;
use lockstep_parallel::Groups;
pub(crate) use lockstep_parallel::asked::lane_shape;
use lockstep_parallel::asked::mesh_of;
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
        return hogwild::train(cpu, recipe, world, comm, options);
    }
    let (recipe, chosen) = pace::settled(recipe, &options, world, cpu, comm)?;
    check::groups(&recipe)?;
    learn(cpu, &recipe, chosen, world, comm, options)
}

/// The life of a worker that knows what is meant; `chosen` is what was chosen for it, in words.
fn learn(
    cpu: &Cpu,
    recipe: &Recipe,
    chosen: Option<String>,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    // What do I learn from, what do I own, and where did I stop?
    let groups = Groups::new(comm, mesh_of(recipe))?;
    let mut feed = feed::open(recipe, world, groups.data())?;
    let mut learner = Learner::materialize(recipe, cpu, &groups, world)?;
    let mut start = restore::restore(&options, recipe, world, comm, &mut learner)?;
    start.warnings.extend(chosen);
    let held_out = feed::validation(&mut feed, recipe, groups.data())?;
    let examiner = Examiner::new(recipe, held_out, comm);
    let tokenizer = feed.tokenizer_json()?;
    let mut loader = feed.loader(world, start.cursor.clone())?;
    let mut targets = feed::Targets::new(&feed, groups.data());
    let last_step = rounds::last_step(recipe, options.stop_after)?;
    // A worker may be lost after the last step; then the next life has only its end to tell.
    if start.step >= last_step && options.life.restarts == 0 {
        return Err(TrainError::NothingToDo { done: start.step, asked: last_step });
    }

    // Everything that could be refused has been; only now does the run leave a trace.
    let life = &options.life;
    let folder = RunFolder::of_worker(comm.position(), recipe, world, life)?;
    saved::save_tokenizer(folder.as_ref(), world, tokenizer.as_deref())?;
    let run_dir = run_folder::record_failures(comm, folder.as_ref())?;
    let mut saver = Saver::open(recipe, world, comm, &run_dir, &start, life)?;
    let mut journal = Journal::start(recipe, world, cpu, folder.as_ref(), options.sinks, &learner)?;
    let first_step = journal.go_on(start, life);

    let mut examination = None;
    for step in first_step..last_step {
        learner.enter(recipe, step)?;
        one_step(cpu, recipe, step, &mut learner, &mut loader, &mut targets, &mut journal)?;
        if evaluate::is_due(recipe, step + 1, last_step) {
            let found = examine(cpu, recipe, step + 1, comm, &examiner, &mut learner, &mut journal);
            let found = *examination.insert(found?);
            // All workers know the same loss, so all of them stop here or none.
            if evaluate::is_reached(recipe, found.validation_loss) {
                break;
            }
        }
        // The last step is saved as the run's result.
        if step + 1 < last_step && recipe.is_round_over(step + 1) {
            saver.after_step(step + 1, &mut learner, || loader.cursor(), &mut journal)?;
        }
    }
    if first_step >= last_step {
        let found = examine(cpu, recipe, first_step, comm, &examiner, &mut learner, &mut journal);
        examination = Some(found?);
    }
    saver.finish(&mut journal)?;
    // What is left of workers that have weights of their own is their mean.
    learner.replica.show_mean()?;
    let figures = journal.figures_by_worker(comm, &learner, feed.held_bytes())?;
    let end = loader.cursor();
    let hash = saved::save(folder.as_ref(), recipe, world, &mut learner, &end, &journal.losses)?;
    saver.at_end(&mut learner, &end, &mut journal)?;
    let Some(folder) = folder else { return Ok(None) };
    let summary =
        Summary::of(recipe, &feed, &folder, &learner, &journal, &figures, hash, examination)
            .beside(&rounds::predicted(recipe, &options.predicted), learner.replica.bucket_len());
    saved::save_summary(&folder, world, &summary)?;
    journal.finish(&summary);
    Ok(Some(summary))
}

/// Judges the model between two steps.
fn examine(
    cpu: &Cpu,
    recipe: &Recipe,
    num_steps: u64,
    comm: &Comm,
    examiner: &Examiner,
    learner: &mut Learner,
    journal: &mut Journal,
) -> Result<Examination, TrainError> {
    journal.pause(&mut learner.replica, comm)?;
    let found = examiner.examine(&mut learner.replica, cpu, recipe)?;
    journal.evaluated(num_steps, &found, &learner.replica);
    Ok(found)
}

/// Learns from one batch.
fn one_step(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
    loader: &mut Loader,
    targets: &mut feed::Targets<'_>,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    if recipe.is_federated() {
        return federated::one_step(cpu, recipe, step, learner, loader, journal);
    }
    journal.begin_step();
    let batch = loader.next_batch()?;
    let num_targets = targets.of(batch)?;
    rounds::begin_step(recipe, step, &mut learner.replica);
    let num_own = rounds::num_targets(recipe, step, batch, num_targets, &learner.replica);
    journal.pace.begin_step(recipe, step, &mut learner.replica)?;
    let slow = &journal.slow;
    let lane = |index| lane_of(recipe, batch, index, num_own);
    let before_lane = |index, is_over: &dyn Fn() -> bool| slow.before_lane(step, index, is_over);
    let loss_scale = learner.scaler.scale();
    learner.replica.scale_loss(loss_scale);
    let Learner { replica, .. } = &mut *learner;
    let loss = replica.run_lanes_after(cpu, recipe.train.seed, step, &lane, &before_lane)?;
    slow.after_lanes();
    let participation = journal.pace.end_lanes(batch, num_targets, replica)?;
    let loss = loss / participation.num_targets as f64;
    learner.optimizer.read_ahead();
    let replica = &mut learner.replica;
    let sums = replica.finish_reduce(cpu)?;
    let sums = replica.unscale(cpu, sums);
    uneven::rescale(cpu, &participation, replica);
    let observed = rounds::exchange(recipe, step, learner)?;
    let clip = learner.replica.clip(cpu, sums, &learner.clip)?;
    let clip = rounds::agree(recipe, step, clip, &mut learner.replica)?;
    let lr = learner.lr(step);
    let verdict = health::agree(cpu, recipe, step, loss, &clip, learner, &lane)?;
    if !learner.replica.has_gradients() {
        learner.num_skipped_in_phase += 1;
    } else if verdict == Verdict::Step
        && let Some(count) = rounds::count(recipe, step, learner)
    {
        let update = Update { count, lr, clip };
        learner.replica.step(cpu, &mut learner.optimizer, &update)?;
        learner.optimizer.check().map_err(TrainError::StateLost)?;
    }
    let drift = rounds::end_step(cpu, recipe, step, learner)?;
    let num_tokens = participation.tokens(batch.num_lanes() * lane_shape(recipe).rows());
    let data_wait_seconds = loader.wait_seconds();
    let record =
        StepRecord { step, loss, lr, clip, num_tokens, data_wait_seconds, verdict, loss_scale };
    journal.finish_step(&record, &mut learner.replica);
    journal.straggled(step + 1, &participation);
    journal.drifted(step + 1, drift);
    journal.compressed(step + 1, observed);
    health::compare_replicas(recipe, step + 1, &mut learner.replica)
}

/// A lane of a batch as the model takes it. Gradients are divided by the number of targets of the
/// batch, over all workers, unless the recipe asks for their sum.
pub(crate) fn lane_of<'a>(
    recipe: &Recipe,
    batch: &'a Batch,
    index: usize,
    num_targets: u64,
) -> Lane<'a> {
    let shape = lane_shape(recipe);
    let (inputs, targets) = batch.lane(index);
    let first_sample = (index * shape.sequences) as u64;
    let num_targets = match recipe.train.reduction {
        Reduction::Mean => num_targets,
        Reduction::Sum => 1,
    };
    Lane { shape, inputs, targets, first_sample, num_targets }
}
