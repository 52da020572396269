//! Runs whose weights lie on servers: the life of a worker, and that of a server.
//!
//! The last ranks of the group are servers; the first are workers, and for everything that is not
//! about weights they are a group by themselves. A worker's step is pull, compute, push, and in it
//! workers wait for nobody but servers. They meet only to be judged and at the end, when all pushes
//! have been answered, so that all of them see the same weights.

use crate::checkpoints::Saver;
use crate::evaluate::Examiner;
use crate::health::Verdict;
use crate::journal::{Journal, StepRecord};
use crate::saved::{self, Learner};
use crate::train::{Options, lane_of, lane_shape};
use crate::{
    RunFolder, Summary, TrainError, check, evaluate, feed, gossip, restore, rounds, rows,
    run_folder,
};
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Consistency, Recipe};
use lockstep_data::Loader;
use lockstep_model::Blueprint;
use lockstep_optim::{LearningRate, Optimizer};
use lockstep_parallel::Groups;
use lockstep_parallel::asked::{blueprint_on, mesh_of};
use lockstep_parallel::robust::Combine;
use lockstep_parallel::server::{self, Holdings, Policy, Shard};
use lockstep_platform::World;
use lockstep_telemetry::Event;
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::path::Path;

/// Trains as one of the workers or serves as one of the servers of `comm`.
pub(crate) fn train(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    let workers = recipe.run.workers;
    let (link, team) = server::groups(comm, workers)?;
    let joined = joined(recipe, world, comm)?;
    if comm.position() < workers {
        let team = Team { comm, workers: team, link, joined };
        return work(cpu, recipe, world, &team, options);
    }
    serve(cpu, recipe, comm, &link)?;
    Ok(None)
}

/// Who is who.
fn joined(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Event, CommError> {
    let own = [u64::from(world.processes().own_id())];
    let mut processes = vec![0; comm.num_members()];
    comm.all_gather(&own, &mut processes)?;
    let server_processes = processes.split_off(recipe.run.workers);
    let holdings = holdings(recipe, &blueprint_on(recipe, 0));
    let held = |server| holdings.lens(server).into_iter().map(|len| len as u64).sum();
    Ok(Event::ServersJoined {
        worker_processes: processes,
        server_processes,
        params_by_server: (0..recipe.num_servers()).map(held).collect(),
        consistency: recipe.sync.server.consistency.name().to_owned(),
    })
}

/// What every server holds.
fn holdings(recipe: &Recipe, blueprint: &Blueprint) -> Holdings {
    Holdings::new(blueprint, recipe.num_servers(), recipe.sync.server.rows.dealt())
}

/// A server's life.
fn serve(cpu: &Cpu, recipe: &Recipe, comm: &Comm, link: &Comm) -> Result<(), TrainError> {
    let (blueprint, keys) = (blueprint_on(recipe, 0), &recipe.sync.server);
    let server = comm.position() - recipe.run.workers;
    let holdings = holdings(recipe, &blueprint);
    let (slots, lens) = (holdings.slots(&blueprint, server), holdings.lens(server));
    let policy = Policy {
        consistency: keys.consistency,
        staleness: keys.staleness,
        weight: keys.staleness_weight,
        decay: keys.staleness_decay,
        delay: keys.delay,
        combine: Some(gossip::rule_of(recipe)).filter(|rule| *rule != Combine::Mean),
    };
    let (rate, batch) = (LearningRate::new(&recipe.optim, recipe.train.steps), recipe.train.batch);
    let lr = move |step| rate.at(step, batch);
    let optimizer = Optimizer::new(&recipe.optim, &slots);
    let mut shard = Shard::new(policy, recipe.run.workers, &lens, optimizer, lr);
    if let Some(rows) = &holdings.rows {
        shard.hold_rows(rows.row_len());
    }
    run_folder::record_failures(comm, None)?;
    server::serve(link, cpu, &mut shard, recipe.run.workers)?;
    Ok(comm.barrier()?)
}

/// A worker's groups.
struct Team<'a> {
    /// Workers and servers.
    comm: &'a Comm,
    /// Workers.
    workers: Comm,
    /// For pulls and pushes.
    link: Comm,
    /// Who is who.
    joined: Event,
}

/// A worker's life; compare with that of [`crate::train`].
fn work(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    team: &Team<'_>,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    let workers = &team.workers;
    check::groups(recipe)?;
    let groups = Groups::new(workers, mesh_of(recipe))?;
    let mut feed = feed::open(recipe, world, groups.data())?;
    let mut learner = Learner::materialize(recipe, cpu, &groups, world)?;
    // Servers step, so nothing is kept here.
    learner.optimizer = Optimizer::new(&recipe.optim, &[]);
    let start = restore::restore(&options, recipe, world, workers, &mut learner)?;
    let held_out = feed::validation(&mut feed, recipe, groups.data())?;
    let examiner = Examiner::new(recipe, held_out, workers);
    let tokenizer = feed.tokenizer_json()?;
    let mut loader = feed.loader(world, start.cursor.clone())?;
    let last_step = rounds::last_step(recipe, options.stop_after)?;
    if start.step >= last_step {
        return Err(TrainError::NothingToDo { done: start.step, asked: last_step });
    }

    let folder = RunFolder::of_worker(workers.position(), recipe, world, &options.life)?;
    saved::save_tokenizer(folder.as_ref(), world, tokenizer.as_deref())?;
    let run_dir = run_folder::record_failures(team.comm, folder.as_ref())?;
    let mut saver = Saver::open(recipe, world, workers, &run_dir, &start, &options.life)?;
    let mut journal = Journal::start(recipe, world, cpu, folder.as_ref(), options.sinks, &learner)?;
    journal.tell(&team.joined);
    let saved = start.from.clone();
    let first_step = journal.go_on(start, &options.life);
    learner.replica.work_for(team.link.clone(), recipe.num_servers(), world);
    learner.replica.work_by_rows(recipe);
    learner.replica.lie_to_servers(gossip::liar_of(recipe, workers.position()));
    begin(world, workers, &mut learner, first_step, saved.as_deref())?;

    let mut examination = None;
    for step in first_step..last_step {
        one_step(cpu, recipe, step, &mut learner, &mut loader, &mut journal)?;
        if evaluate::is_due(recipe, step + 1, last_step) {
            journal.pause(&mut learner.replica, workers)?;
            meet(workers, step + 1, &mut learner, &mut journal)?;
            let found = examiner.examine(&mut learner.replica, cpu, recipe)?;
            examination = Some(found);
            journal.evaluated(step + 1, &found, &learner.replica);
            if evaluate::is_reached(recipe, found.validation_loss) {
                break;
            }
        }
        // Whether it is time follows from the step, so workers meet here only where it is.
        if step + 1 < last_step && recipe.is_due_every(recipe.checkpoint.every, step + 1) {
            workers.barrier()?;
            learner.replica.read()?;
            saver.after_step(step + 1, &mut learner, || loader.cursor(), &mut journal)?;
        }
    }
    saver.finish(&mut journal)?;
    learner.replica.leave_servers()?;
    let figures = journal.figures_by_worker(workers, &learner, feed.held_bytes())?;
    let (cursor, losses) = (loader.cursor(), &journal.losses);
    let hash = saved::save(folder.as_ref(), recipe, world, &mut learner, &cursor, losses)?;
    team.comm.barrier()?;
    let Some(folder) = folder else { return Ok(None) };
    let summary =
        Summary::of(recipe, &feed, &folder, &learner, &journal, &figures, hash, examination);
    saved::save_summary(&folder, world, &summary)?;
    journal.finish(&summary);
    Ok(Some(summary))
}

/// Gives servers the weights that the run begins with, and where it goes on, what they had kept.
fn begin(
    world: &World,
    workers: &Comm,
    learner: &mut Learner,
    first_step: u64,
    saved: Option<&Path>,
) -> Result<(), TrainError> {
    if workers.position() > 0 {
        return Ok(workers.barrier()?);
    }
    learner.replica.load()?;
    let Some(folder) = saved else { return Ok(workers.barrier()?) };
    let reader = Reader::open(world, folder)?;
    let Learner { replica, optimizer, .. } = learner;
    replica.give_kept(first_step, optimizer.kinds(), |kept| {
        reader.read(&kept.name, &[kept.len], kept.first, kept.values).map_err(TrainError::from)
    })?;
    Ok(workers.barrier()?)
}

/// Copies what servers keep besides the weights, by the first worker, while all of them have met.
pub(crate) fn save(room: &mut Snapshot, learner: &mut Learner) -> Result<(), TrainError> {
    let Learner { replica, optimizer, .. } = learner;
    if replica.groups().rank() > 0 {
        return Ok(());
    }
    replica.fetch_kept(optimizer.kinds(), |kept| {
        room.add(&kept.name, &[kept.len], kept.first, kept.values);
        Ok::<_, TrainError>(())
    })
}

/// Learns from this worker's part of one batch.
fn one_step(
    cpu: &Cpu,
    recipe: &Recipe,
    step: u64,
    learner: &mut Learner,
    loader: &mut Loader,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    let in_lockstep = recipe.sync.server.consistency == Consistency::Sync;
    journal.begin_step();
    let batch = loader.next_batch()?;
    rows::touch(step, batch, &mut learner.replica);
    learner.replica.pull(step)?;
    learner.replica.tell_own_losses(!in_lockstep);
    let slow = &journal.slow;
    // By the targets of all workers, so that the gradients of all are that of the batch.
    let lane = |index| {
        slow.before_lane(step, index, &|| false);
        lane_of(recipe, batch, index, batch.num_targets)
    };
    let loss = learner.replica.run_lanes(cpu, recipe.train.seed, step, &lane)?;
    slow.after_lanes();
    let own_targets = rounds::own_targets(batch, &learner.replica);
    let num_targets = if in_lockstep { batch.num_targets } else { own_targets };
    let loss = loss / num_targets as f64;
    let sums = learner.replica.finish_reduce(cpu)?;
    let sums = learner.replica.unscale(cpu, sums);
    let clip = learner.replica.clip(cpu, sums, &learner.clip)?;
    let is_finite = loss.is_finite() && clip.norm.is_finite();
    learner.replica.push(step, is_finite.then_some(&clip))?;
    learner.num_skipped = if is_finite { 0 } else { learner.num_skipped + 1 };
    if learner.num_skipped > recipe.train.max_skipped {
        let what = if loss.is_finite() { "the gradient norm" } else { "the loss" }.to_owned();
        let value = if loss.is_finite() { clip.norm } else { loss };
        let source_of = format!(" (on worker {})", learner.replica.groups().rank());
        return Err(TrainError::Diverged { step, what, value, source_of });
    }
    let record = StepRecord {
        step,
        loss,
        lr: learner.lr(step),
        clip,
        num_tokens: batch.num_lanes() * lane_shape(recipe).rows(),
        data_wait_seconds: loader.wait_seconds(),
        verdict: if is_finite { Verdict::Step } else { Verdict::Skip },
        loss_scale: None,
    };
    journal.finish_step(&record, &mut learner.replica);
    Ok(())
}

/// Waits until all workers are here, takes the weights that all pushes have led to, and tells how
/// stale gradients were.
fn meet(
    workers: &Comm,
    step: u64,
    learner: &mut Learner,
    journal: &mut Journal,
) -> Result<(), TrainError> {
    workers.barrier()?;
    learner.replica.read()?;
    let own = learner.replica.staleness().into_iter().flatten();
    let rank = workers.position() as u64;
    let own: Vec<u64> = own.flat_map(|(staleness, count)| [rank, *staleness, *count]).collect();
    let mut all = Vec::new();
    workers.all_gather_v(&own, &mut all)?;
    let mut by_worker = vec![BTreeMap::new(); workers.num_members()];
    for &[worker, staleness, count] in all.as_chunks().0 {
        by_worker[worker as usize].insert(staleness, count);
    }
    journal.stale(step, by_worker);
    rows::tell(workers, step, learner, journal)
}
