//! The training loop of one rank, from an empty process to saved weights.
//!
//! Every synchronization strategy shares this loop and differs only behind [`SyncStrategy`];
//! [`strategies`] registers them.

use crate::checkpoint_dir::earlier_recipe;
use crate::checkpoints::CheckpointSaver;
use crate::evaluate::{Evaluator, Findings};
use crate::learner::Learner;
use crate::materialize::materialize_model;
use crate::options::{Options, Predicted};
use crate::preference::compute_references;
use crate::step_log::StepLog;
use crate::summarize::summarize;
use crate::task_evaluation::TaskRequests;
use crate::worker::Worker;
use crate::{RunFolder, Summary, TrainError};
use crate::{
    artifacts, check, custom_model, device, evaluate, event_history, failure_record, feed, restore,
    run_folder,
};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::Feed;
use lockstep_model::problem::sample_bytes;
use lockstep_parallel::figures::StrategyFigures;
use lockstep_parallel::from_recipe::{blueprint_of_rank, mesh_of};
use lockstep_parallel::groups::fix_algorithms;
use lockstep_parallel::sync_strategy::{ReadState, Role, SyncStrategy};
use lockstep_parallel::{Groups, Replica, strategies};
use lockstep_platform::World;
use lockstep_tensor::device::Compute;

/// Trains by the recipe as one rank of `comm`. Rank 0 writes the run folder and returns the
/// summary; the others return nothing.
pub fn train(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    mut options: Options,
) -> Result<Option<Summary>, TrainError> {
    let folder = failure_record::watch_run_folder(&mut options);
    let trained = train_rank(recipe, world, comm, options);
    if let (0, Err(error), Some(folder)) = (comm.rank().0, &trained, folder.get()) {
        failure_record::record_failure(folder, error, world);
    }
    trained
}

/// Trains with the synchronization strategy of the recipe.
fn train_rank(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    let compute = &device::open(recipe, world, comm)?;
    custom_model::check(recipe, options.model.as_ref())?;
    // At the start the list of algorithms names the library alone.
    let class = device::kernel_class(recipe, compute) + &compute.device().product_algorithms()?;
    check::agree_on_recipe(recipe, options.model.as_ref(), &class, comm)?;
    fix_algorithms(recipe, comm);
    let earlier = || earlier_recipe(&options, world);
    let (recipe, notice) = strategies::choose_settings(recipe, earlier, world, compute, comm)?;
    let (workers, mut strategy) = match strategies::join(&recipe, world, comm)? {
        Role::Service(serve) => {
            run_folder::record_failures(comm, None)?;
            serve(compute, world)?;
            return Ok(None);
        }
        Role::Worker { strategy, workers } => (workers, strategy),
    };
    let comms = [&workers, comm];
    run_worker(compute, &recipe, notice, world, comms, options, &mut *strategy)
}

/// Runs one worker. `notice` reports a setting that was chosen at start-up. `workers` are the ranks
/// that train; the run also records failures of the others among `all_ranks`.
fn run_worker<'a>(
    compute: &'a Compute,
    recipe: &'a Recipe,
    notice: Option<String>,
    world: &'a World,
    [workers, all_ranks]: [&'a Comm; 2],
    mut options: Options,
    strategy: &mut dyn SyncStrategy<Worker<'a>>,
) -> Result<Option<Summary>, TrainError> {
    // Build the mesh, open the data, allocate the model and restore the checkpoint.
    check::groups(recipe, options.model.as_ref())?;
    let groups = Groups::new(workers, mesh_of(recipe))?;
    let mut feed = feed::open(recipe, world, groups.data())?;
    let is_custom = options.model.is_some();
    let model = options.model.take().unwrap_or_else(|| blueprint_of_rank(recipe, groups.rank()));
    let mut learner = materialize_model(model, recipe, compute, &groups, world)?;
    strategy.attach(recipe, world, &mut learner.replica);
    compute_references(recipe, world, compute, &mut learner, &mut feed)?;
    let mut start = restore::restore(&options, recipe, world, workers, &mut learner)?;
    start.warnings.extend(notice);
    let validation = feed::validation(&mut feed, recipe, groups.data())?;
    let tasks = TaskRequests::of_recipe(recipe, feed.tokenizer(), world)?;
    let evaluator = Evaluator::new(recipe, validation, tasks, workers, is_custom);
    let tokenizer = feed.tokenizer_json()?;
    let loader = feed::loader(&mut feed, recipe, world, start.cursor.clone())?;
    let targets = feed::Targets::new(&feed, groups.data());
    let last_step = last_step(recipe, options.stop_after)?;
    // After a restart the last step may be done already; then only the final save is left.
    if start.step >= last_step && options.attempt.restarts == 0 {
        return Err(TrainError::NothingToDo { done: start.step, requested: last_step });
    }

    // Write to disk only now, after every check has passed.
    let folder = RunFolder::of_worker(workers.group_rank(), recipe, world, &options.attempt)?;
    let json = tokenizer.as_deref();
    artifacts::save_vocabulary(folder.as_ref(), recipe, world, json, feed.tokenizer())?;
    let run_dir = run_folder::record_failures(all_ranks, folder.as_ref())?;
    if let Some(receive) = options.on_run_folder.take() {
        receive(&run_dir);
    }
    let mut saver =
        CheckpointSaver::open(recipe, world, workers, &run_dir, &start, &mut options, &learner)?;
    event_history::carry_over(&options, folder.as_ref(), world, &mut start)?;
    let peak = options.peak_flops_per_second;
    let mut step_log =
        StepLog::start(recipe, world, compute, folder.as_ref(), options.sinks, &learner, peak)?;
    let checkpoint = start.reader.take();
    step_log.record_links(workers);
    step_log.record_conversations(feed.conversations());
    let first_step = step_log.resume(start, &options.attempt);
    step_log.begin_measurements(recipe, workers, &mut learner, first_step)?;
    let mut worker =
        Worker { cpu: compute, recipe, world, comm: workers, learner, loader, targets, step_log };
    let read = checkpoint.as_ref().map(|reader| {
        |name: &str, len: usize, first: usize, values: &mut [f32]| {
            Ok(reader.read(name, &[len], first, values)?)
        }
    });
    let read = read.as_ref().map(|read| read as &ReadState<'_, TrainError>);
    strategy.begin(&mut worker, first_step..last_step, read)?;

    let mut found = Findings::default();
    for step in first_step..last_step {
        saver.before_step(step..last_step);
        strategy.step(&mut worker, step..last_step)?;
        if found.evaluate(step + 1, last_step, &evaluator, &mut worker, strategy)? {
            break;
        }
        // The last step is saved as the final weights.
        if step + 1 < last_step && strategy.prepare_checkpoint(&mut worker, step + 1)? {
            let Worker { learner, loader, step_log, .. } = &mut worker;
            let cursor = || feed::cursor(loader, workers);
            saver.after_step(step + 1, learner, cursor, step_log)?;
        }
    }
    if first_step >= last_step {
        found.evaluate(first_step, first_step, &evaluator, &mut worker, strategy)?;
    }
    saver.finish(&mut worker.step_log)?;
    strategy.finish(&mut worker)?;
    save_and_summarize(
        worker,
        strategy,
        &mut saver,
        folder.as_ref(),
        &feed,
        found,
        &options.predicted,
    )
}

/// Last step of the run. A run can stop early only where all workers hold equal weights.
fn last_step(recipe: &Recipe, stop_after: Option<u64>) -> Result<u64, TrainError> {
    let last_step = stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
    if recipe.is_round_over(last_step) {
        return Ok(last_step);
    }
    let round = recipe.round_at(last_step);
    let (mode, requested) = (recipe.sync.mode.name(), last_step);
    Err(TrainError::InsideRound { mode, requested, before: round.start, after: round.end })
}

/// Saves the final weights and state, then summarizes the run.
fn save_and_summarize<'a>(
    mut worker: Worker<'a>,
    strategy: &mut dyn SyncStrategy<Worker<'a>>,
    saver: &mut CheckpointSaver,
    folder: Option<&RunFolder>,
    feed: &Feed,
    found: Findings,
    predicted: &Predicted,
) -> Result<Option<Summary>, TrainError> {
    let Worker { recipe, world, comm, learner, loader, step_log, .. } = &mut worker;
    let samples = sample_bytes(&recipe.model, comm.group_rank() == 0);
    let data_bytes = feed.held_bytes() + samples;
    let figures = step_log.gather_figures(comm, learner, data_bytes)?;
    step_log.write_trace(comm, folder.map(RunFolder::trace).as_deref())?;
    let cursor = feed::cursor(loader, comm)?;
    let hash = artifacts::save(folder, recipe, world, learner, &cursor, &step_log.losses)?;
    saver.at_end(learner, &cursor, step_log)?;
    strategy.disconnect(&worker)?;
    let Some(folder) = folder else { return Ok(None) };
    let Worker { recipe, world, learner, step_log, .. } = worker;
    let mut of_strategy = StrategyFigures::of(recipe, &learner.replica, step_log.epsilon);
    strategy.add_figures(&mut of_strategy);
    let mut summary =
        summarize(recipe, feed, folder, &learner, &step_log, &figures, hash, found, of_strategy)
            .beside(predicted, learner.replica.bucket_len());
    summary.sources = feed::tokens_by_source(recipe, &cursor);
    summary.conversations = feed.conversations().map(Into::into);
    artifacts::save_summary(folder, world, &summary)?;
    step_log.finish(&summary);
    Ok(Some(summary))
}

impl Findings {
    /// Evaluates the model after a step, where that is due. Returns whether the target loss is
    /// reached: every rank has the same validation loss, so all ranks stop at the same step.
    fn evaluate<'a>(
        &mut self,
        num_steps: u64,
        last_step: u64,
        evaluator: &Evaluator,
        worker: &mut Worker<'a>,
        strategy: &mut dyn SyncStrategy<Worker<'a>>,
    ) -> Result<bool, TrainError> {
        let mut is_reached = false;
        let is_due = evaluate::is_due(worker.recipe, num_steps, last_step);
        worker.step_log.record_noise(is_due, worker.comm)?;
        if is_due {
            let (cpu, recipe) = (worker.cpu, worker.recipe);
            let evaluate = |replica: &mut _| Ok(evaluator.evaluate(replica, cpu, recipe)?);
            let evaluation = between_steps(num_steps, worker, strategy, evaluate)?;
            worker.step_log.record_evaluation(num_steps, &evaluation, &worker.learner.replica);
            if recipe.data.mixture.is_on() {
                let cursor = feed::cursor(&worker.loader, worker.comm)?;
                let sources = feed::tokens_by_source(recipe, &cursor);
                worker.step_log.record_sources(num_steps, sources);
            }
            is_reached = evaluate::is_reached(worker.recipe, evaluation.validation_loss);
            self.evaluation = Some(evaluation);
        }
        if evaluate::tasks_are_due(worker.recipe, num_steps, is_reached || num_steps == last_step) {
            let cpu = worker.cpu;
            let evaluate = |replica: &mut _| evaluator.evaluate_tasks(replica, cpu);
            self.tasks = between_steps(num_steps, worker, strategy, evaluate)?;
            worker.step_log.record_tasks(num_steps, &self.tasks, &worker.learner.replica);
        }
        Ok(is_reached)
    }
}

/// Runs an evaluation between two steps, with the weights that are saved there.
fn between_steps<'a, T>(
    num_steps: u64,
    worker: &mut Worker<'a>,
    strategy: &mut dyn SyncStrategy<Worker<'a>>,
    evaluate: impl FnOnce(&mut Replica) -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let start = worker.world.clock().now();
    worker.step_log.pause_traffic_count(&mut worker.learner, worker.comm)?;
    strategy.synchronize(worker, num_steps)?;
    let Learner { replica, optimizer, .. } = &mut worker.learner;
    replica.swap_averages(optimizer)?;
    let found = evaluate(replica)?;
    replica.swap_averages(optimizer)?;
    worker.step_log.trace_evaluation(num_steps, start);
    Ok(found)
}
