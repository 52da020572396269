//! Runs whose weights lie on servers: the life of a worker, and that of a server.
//!
//! The last ranks of the group are servers; the first are workers, and for everything that is not
//! about weights they are a group by themselves. A worker's step is pull, compute, push, and in it
//! workers wait for nobody but servers. They meet only to be judged and at the end, when all pushes
//! have been answered, so that all of them see the same weights.
//!
//! - `step`: pull, compute, push
//! - `meeting`: what each has seen becomes what the run knows

mod meeting;
mod step;

pub(crate) use meeting::{Counted, tell_staleness};

use meeting::{meet, tell_losses};
use step::Walk;

use crate::saved::Learner;
use crate::train::{Options, learn};
use crate::way::{Way, Worker};
use crate::{Summary, TrainError, gossip, rounds, run_folder};
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Consistency, Recipe};
use lockstep_model::Blueprint;
use lockstep_optim::{LearningRate, Optimizer};
use lockstep_parallel::asked::{self, blueprint_on};
use lockstep_parallel::server::{self, Bound, Ends, Holdings, Part, Policy, Shard, Squeeze, Terms};
use lockstep_platform::World;
use lockstep_telemetry::Event;
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Trains as one of the workers or serves as one of the servers of `comm`.
pub(crate) fn train(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    options: Options,
) -> Result<Option<Summary>, TrainError> {
    let workers = recipe.run.workers;
    let ends = Ends::new(comm, workers, workers / recipe.num_pushers())?;
    let joined = joined(recipe, world, comm)?;
    if comm.group_rank() < workers {
        let mut served = Served { everybody: comm, ends: &ends, joined, walk: Walk::default() };
        let groups = [&ends.workers, comm];
        return learn(cpu, recipe, None, world, groups, options, &mut served);
    }
    serve(cpu, recipe, world, comm, &ends.link)?;
    Ok(None)
}

/// Who is who.
fn joined(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Event, CommError> {
    let own = [u64::from(world.processes().own_id())];
    let mut processes = vec![0; comm.group_size()];
    comm.all_gather(&own, &mut processes)?;
    let server_processes = processes.split_off(recipe.run.workers);
    let holdings = holdings(recipe, &blueprint_on(recipe, 0));
    let held = |server: usize| holdings.lens(server).into_iter().map(|len| len as u64).sum();
    Ok(Event::ServersJoined {
        worker_processes: processes,
        server_processes,
        params_by_server: (0..recipe.num_server_ranks())
            .map(|rank| held(rank % recipe.num_servers()))
            .collect(),
        consistency: recipe.sync.server.consistency.name().to_owned(),
    })
}

/// What every server holds.
fn holdings(recipe: &Recipe, blueprint: &Blueprint) -> Holdings {
    Holdings::new(blueprint, recipe.num_servers(), recipe.sync.server.rows.dealt())
}

/// A server's life.
fn serve(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    link: &Comm,
) -> Result<(), TrainError> {
    let blueprint = blueprint_on(recipe, 0);
    let (server, part) = part_of(recipe, link.group_rank());
    let holdings = holdings(recipe, &blueprint);
    let (slots, lens) = (holdings.slots(&blueprint, server), holdings.lens(server));
    let (rate, batch) = (LearningRate::new(&recipe.optim, recipe.train.steps), recipe.train.batch);
    let lr = move |step| rate.at(step, batch);
    let optimizer = Optimizer::new(&recipe.optim, &slots);
    let mut shard = Shard::new(policy(recipe), recipe.num_pushers(), &lens, optimizer, lr);
    shard.read_squeezed(squeeze(recipe));
    if let Some(rows) = &holdings.rows {
        shard.hold_rows(rows.row_len());
    }
    run_folder::record_failures(comm, None)?;
    spare(recipe, comm);
    let close_after = Duration::from_secs_f64(recipe.sync.server.close_after.0);
    let is_elastic = recipe.sync.server.consistency == Consistency::Elastic;
    let terms = Terms {
        num_workers: recipe.num_pushers(),
        part,
        num_copies: recipe.sync.server.rows.spread,
        close_after: Some(close_after).filter(|after| is_elastic && !after.is_zero()),
    };
    server::serve(link, cpu, world, &mut shard, terms)?;
    finish(recipe, comm)
}

/// How workers write their gradients, where they do.
fn squeeze(recipe: &Recipe) -> Option<Squeeze> {
    let (error_feedback, seed) = (recipe.compress.error_feedback, recipe.train.seed);
    asked::method_of(recipe).map(|method| Squeeze { method, error_feedback, seed })
}

/// How servers answer.
fn policy(recipe: &Recipe) -> Policy {
    let (keys, num_steps) = (&recipe.sync.server, recipe.train.steps);
    let switch = (keys.switch_after * num_steps as f64).round() as u64;
    Policy {
        consistency: keys.consistency,
        bound: Bound {
            staleness: keys.staleness,
            last: keys.final_staleness,
            rule: keys.staleness_rule,
            constant: keys.staleness_constant,
            curvature: keys.curvature,
            num_steps,
            beyond: keys.beyond,
        },
        weight: keys.staleness_weight,
        decay: keys.staleness_decay,
        delay: keys.delay,
        quorum: keys.quorum,
        late: keys.late,
        combine: gossip::rule_of(recipe),
        switch: (switch < num_steps).then_some(switch),
    }
}

/// Which part of the weights somebody behind those that push holds, and who holds the same.
fn part_of(recipe: &Recipe, position: usize) -> (usize, Part) {
    let (behind, servers) = (position - recipe.num_pushers(), recipe.num_servers());
    let part = match recipe.sync.server.replicas {
        0 => Part::Only,
        _ if behind < servers => Part::First { copy: position + servers },
        _ => Part::Copy { of: position - servers },
    };
    (behind % servers, part)
}

/// From here on the run goes on without a server that another stands in for.
fn spare(recipe: &Recipe, comm: &Comm) {
    let replaceable = recipe.stand_ins().concat();
    if !replaceable.is_empty() {
        comm.spare(&replaceable);
    }
}

/// Nobody ends before all are done, where nobody can have ended before.
fn finish(recipe: &Recipe, comm: &Comm) -> Result<(), TrainError> {
    if recipe.sync.server.replicas == 0 {
        comm.barrier()?;
    }
    Ok(())
}

/// The way of a worker of servers.
struct Served<'a> {
    /// Workers and servers.
    everybody: &'a Comm,
    /// Workers by themselves, those near, and who pulls and pushes.
    ends: &'a Ends,
    /// Who is who.
    joined: Event,
    walk: Walk,
}

impl Way for Served<'_> {
    fn begin(
        &mut self,
        worker: &mut Worker<'_>,
        first_step: u64,
        saved: Option<&Path>,
    ) -> Result<(), TrainError> {
        spare(worker.recipe, self.everybody);
        worker.journal.tell(&self.joined);
        give_start(worker.recipe, worker.world, self.ends, &mut worker.learner, first_step, saved)
    }

    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError> {
        let step = steps.start;
        self.walk.go_on(worker, steps)?;
        tell_losses(step, self, worker);
        Ok(())
    }

    fn meet(&mut self, worker: &mut Worker<'_>, num_steps: u64) -> Result<(), TrainError> {
        meet(self.ends, num_steps, &mut worker.learner, &mut worker.journal)?;
        tell_losses(num_steps.saturating_sub(1), self, worker);
        Ok(())
    }

    fn may_save(&mut self, worker: &mut Worker<'_>, num_steps: u64) -> Result<bool, TrainError> {
        // Whether it is time follows from the step, so workers meet here only where it is.
        let is_due = worker.recipe.is_due_every(worker.recipe.checkpoint.every, num_steps);
        if is_due {
            worker.comm.barrier()?;
            worker.learner.replica.read()?;
        }
        Ok(is_due)
    }

    fn end(&mut self, worker: &mut Worker<'_>) -> Result<(), TrainError> {
        Ok(worker.learner.replica.leave_servers()?)
    }

    fn leave(&mut self, worker: &Worker<'_>) -> Result<(), TrainError> {
        worker.comm.barrier()?;
        finish(worker.recipe, self.everybody)
    }
}

/// Gives servers the weights that the run begins with, and where it goes on, what they had kept.
fn give_start(
    recipe: &Recipe,
    world: &World,
    ends: &Ends,
    learner: &mut Learner,
    first_step: u64,
    saved: Option<&Path>,
) -> Result<(), TrainError> {
    let (workers, keys) = (&ends.workers, &recipe.sync.server);
    learner.replica.work_beside(ends.near.clone());
    if ends.pushes() {
        let link = ends.link.clone();
        learner.replica.work_for(link, recipe.num_servers(), keys.replicas, world);
    }
    if let Some(squeeze) = squeeze(recipe) {
        learner.replica.squeeze_pushes(squeeze);
    }
    learner.replica.work_by_rows(recipe);
    learner.replica.lie_as(gossip::liar_of(recipe, workers.group_rank()));
    let reader = saved.map(|folder| Reader::open(world, folder)).transpose()?;
    if let Some(reader) = &reader {
        let worker = workers.group_rank();
        learner.replica.visit_squeezed(|name, values| {
            let name = rounds::of_worker(worker, name, "residual");
            reader.read(&name, &[values.len()], 0, values).map_err(TrainError::from)
        })?;
    }
    if workers.group_rank() > 0 {
        return Ok(workers.barrier()?);
    }
    learner.replica.load()?;
    let Some(reader) = reader else { return Ok(workers.barrier()?) };
    let Learner { replica, optimizer, .. } = learner;
    replica.give_kept(first_step, optimizer.kinds(), |kept| {
        if keys.resets_momentum {
            kept.values.fill(0.0);
            return Ok(());
        }
        reader.read(&kept.name, &[kept.len], kept.first, kept.values).map_err(TrainError::from)
    })?;
    Ok(workers.barrier()?)
}

/// Copies what servers keep besides the weights, by the first worker, while all of them have met.
pub(crate) fn save(room: &mut Snapshot, learner: &mut Learner) -> Result<(), TrainError> {
    let Learner { replica, optimizer, .. } = learner;
    let worker = replica.groups().rank();
    replica.visit_squeezed(|name, values| {
        room.add(&rounds::of_worker(worker, name, "residual"), &[values.len()], 0, values);
        Ok::<_, TrainError>(())
    })?;
    if worker > 0 {
        return Ok(());
    }
    replica.fetch_kept(optimizer.kinds(), |kept| {
        room.add(&kept.name, &[kept.len], kept.first, kept.values);
        Ok::<_, TrainError>(())
    })
}
