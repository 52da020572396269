//! Training with parameter servers (Li et al. 2014): the workers' strategy and the server process.
//!
//! The last ranks of the group are servers, the first ones workers. Workers form a group of their
//! own for everything but weights. A worker's step is pull, compute, push; in it a worker waits for
//! servers only. Workers synchronize for evaluations, checkpoints and the end, after all pushes are
//! acknowledged, so that all of them read the same weights.
//!
//! - `step`: pull, compute, push
//! - `sync_round`: synchronization of workers, counters and warnings; `sparse_rows`: those of
//!   embedding rows

mod sparse_rows;
mod step;
mod sync_round;

use step::PullPush;
use sync_round::{record_lost_servers, synchronize};

use crate::learner::Learner;
use crate::strategy::{SyncStrategy, Worker};
use crate::{TrainError, run_folder, worker_state};
use lockstep_checkpoint::sharded::{Reader, Snapshot};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Consistency, Recipe};
use lockstep_optim::{LearningRate, Optimizer};
use lockstep_parallel::from_recipe::{self, blueprint_of_rank};
use lockstep_parallel::parameter_server::{
    self, Bound, Policy, PushCompression, Role, ServeOptions, ServerGroups, Shard, ShardLayout,
};
use lockstep_platform::World;
use lockstep_telemetry::Event;
use lockstep_tensor::Cpu;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Communicators of a run with parameter servers, on one rank.
pub(crate) struct ServerConnection<'a> {
    /// Workers and servers.
    all_ranks: &'a Comm,
    /// Groups of the workers and the link to the servers.
    groups: ServerGroups,
    /// Process ids and shard sizes, as the run reports them.
    join_event: Event,
}

impl<'a> ServerConnection<'a> {
    /// Splits the ranks of `comm` into workers and servers. All ranks call it together.
    pub(crate) fn connect(
        recipe: &Recipe,
        world: &World,
        comm: &'a Comm,
    ) -> Result<Self, TrainError> {
        let workers = recipe.run.workers;
        let groups = ServerGroups::new(comm, workers, workers / recipe.num_pushers())?;
        let join_event = join_event(recipe, world, comm)?;
        Ok(Self { all_ranks: comm, groups, join_event })
    }

    /// Whether this rank is a worker.
    pub(crate) fn is_worker(&self, recipe: &Recipe) -> bool {
        self.all_ranks.group_rank() < recipe.run.workers
    }

    /// Group of all workers.
    pub(crate) fn workers(&self) -> &Comm {
        &self.groups.workers
    }
}

/// Event with the process ids of all ranks and the shard sizes.
fn join_event(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Event, CommError> {
    let own = [u64::from(world.processes().own_id())];
    let mut processes = vec![0; comm.group_size()];
    comm.all_gather(&own, &mut processes)?;
    let server_processes = processes.split_off(recipe.run.workers);
    let shard_layout = ShardLayout::of(recipe, &blueprint_of_rank(recipe, 0));
    let held = |server: usize| shard_layout.lens(server).into_iter().map(|len| len as u64).sum();
    Ok(Event::ServersJoined {
        worker_processes: processes,
        server_processes,
        params_by_server: (0..recipe.num_server_ranks())
            .map(|rank| held(rank % recipe.num_servers()))
            .collect(),
        consistency: recipe.sync.server.consistency.name().to_owned(),
    })
}

/// Runs a parameter server until all workers have finished.
pub(crate) fn serve(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    connection: &ServerConnection<'_>,
) -> Result<(), TrainError> {
    let (comm, link) = (connection.all_ranks, &connection.groups.link);
    let blueprint = blueprint_of_rank(recipe, 0);
    let (server, role) = role_of(recipe, link.group_rank());
    let shard_layout = ShardLayout::of(recipe, &blueprint);
    let (slots, lens) = (shard_layout.slots(&blueprint, server), shard_layout.lens(server));
    let (rate, batch) = (LearningRate::new(&recipe.optim, recipe.train.steps), recipe.train.batch);
    let lr = move |step| rate.at(step, batch);
    let optimizer = Optimizer::new(&recipe.optim, &slots);
    let mut shard = Shard::new(policy(recipe), recipe.num_pushers(), &lens, optimizer, lr);
    shard.set_push_compression(PushCompression::of(recipe));
    if let Some(rows) = &shard_layout.rows {
        shard.set_row_len(rows.row_len());
    }
    run_folder::record_failures(comm, None)?;
    mark_expendable_servers(recipe, comm);
    let close_after = Duration::from_secs_f64(recipe.sync.server.quorum_timeout.0);
    let is_elastic = recipe.sync.server.consistency == Consistency::Elastic;
    let terms = ServeOptions {
        num_workers: recipe.num_pushers(),
        role,
        num_row_replicas: recipe.sync.server.rows.replicated,
        close_after: Some(close_after).filter(|after| is_elastic && !after.is_zero()),
    };
    parameter_server::serve(link, cpu, world, &mut shard, terms)?;
    finish(recipe, comm)
}

/// Consistency policy of the servers.
fn policy(recipe: &Recipe) -> Policy {
    let (keys, num_steps) = (&recipe.sync.server, recipe.train.steps);
    let switch = (keys.switch_to_sync_after * num_steps as f64).round() as u64;
    Policy {
        consistency: keys.consistency,
        bound: Bound {
            staleness: keys.staleness,
            last: keys.final_staleness,
            rule: keys.staleness_rule,
            constant: keys.staleness_constant,
            curvature: keys.curvature,
            num_steps,
            beyond: keys.stale_gradients,
        },
        weight: keys.staleness_weight,
        decay: keys.staleness_decay,
        delay: keys.read_delay,
        quorum: keys.quorum,
        overdue: keys.late_gradients,
        aggregator: from_recipe::aggregation_rule(recipe),
        switch: (switch < num_steps).then_some(switch),
    }
}

/// Shard of a server rank, and the rank of its replica.
fn role_of(recipe: &Recipe, position: usize) -> (usize, Role) {
    let (behind, servers) = (position - recipe.num_pushers(), recipe.num_servers());
    let role = match recipe.sync.server.replicas {
        0 => Role::Sole,
        _ if behind < servers => Role::Primary { backup: position + servers },
        _ => Role::Backup { primary: position - servers },
    };
    (behind % servers, role)
}

/// Lets the run continue after the loss of a server that has a replica.
fn mark_expendable_servers(recipe: &Recipe, comm: &Comm) {
    let replaceable = recipe.server_replica_groups().concat();
    if !replaceable.is_empty() {
        comm.mark_expendable(&replaceable);
    }
}

/// Waits for all ranks, unless servers may have been lost.
fn finish(recipe: &Recipe, comm: &Comm) -> Result<(), TrainError> {
    if recipe.sync.server.replicas == 0 {
        comm.barrier()?;
    }
    Ok(())
}

/// Parameter-server strategy of a worker: pull, compute, push.
pub(crate) struct ParameterServer<'a> {
    connection: ServerConnection<'a>,
    pull_push: PullPush,
}

impl<'a> ParameterServer<'a> {
    /// Strategy of a worker with this connection.
    pub(crate) fn new(connection: ServerConnection<'a>) -> Self {
        Self { connection, pull_push: PullPush::default() }
    }
}

impl SyncStrategy for ParameterServer<'_> {
    fn begin(
        &mut self,
        worker: &mut Worker<'_>,
        first_step: u64,
        checkpoint: Option<&Path>,
    ) -> Result<(), TrainError> {
        mark_expendable_servers(worker.recipe, self.connection.all_ranks);
        worker.step_log.record(&self.connection.join_event);
        initialize_servers(
            worker.recipe,
            worker.world,
            &self.connection.groups,
            &mut worker.learner,
            first_step,
            checkpoint,
        )
    }

    fn step(&mut self, worker: &mut Worker<'_>, steps: Range<u64>) -> Result<(), TrainError> {
        let step = steps.start;
        self.pull_push.step(worker, steps)?;
        record_lost_servers(step, &self.connection, worker);
        Ok(())
    }

    fn synchronize(&mut self, worker: &mut Worker<'_>, num_steps: u64) -> Result<(), TrainError> {
        synchronize(&self.connection.groups, num_steps, &mut worker.learner, &mut worker.step_log)?;
        record_lost_servers(num_steps.saturating_sub(1), &self.connection, worker);
        Ok(())
    }

    fn prepare_checkpoint(
        &mut self,
        worker: &mut Worker<'_>,
        num_steps: u64,
    ) -> Result<bool, TrainError> {
        // The step alone decides, so workers synchronize only when a checkpoint is due.
        let is_due = worker.recipe.is_due_every(worker.recipe.checkpoint.every, num_steps);
        if is_due {
            worker.comm.barrier()?;
            worker.learner.replica.read()?;
        }
        Ok(is_due)
    }

    fn finish(&mut self, worker: &mut Worker<'_>) -> Result<(), TrainError> {
        Ok(worker.learner.replica.leave_servers()?)
    }

    fn disconnect(&mut self, worker: &Worker<'_>) -> Result<(), TrainError> {
        worker.comm.barrier()?;
        finish(worker.recipe, self.connection.all_ranks)
    }
}

/// Sends the initial weights to the servers, and their optimizer state if the run resumes.
fn initialize_servers(
    recipe: &Recipe,
    world: &World,
    groups: &ServerGroups,
    learner: &mut Learner,
    first_step: u64,
    checkpoint: Option<&Path>,
) -> Result<(), TrainError> {
    let (workers, keys) = (&groups.workers, &recipe.sync.server);
    learner.replica.join_host_group(groups.host_group.clone());
    if groups.pushes() {
        let link = groups.link.clone();
        learner.replica.attach_to_servers(link, recipe, world);
    }
    if let Some(compression) = PushCompression::of(recipe) {
        learner.replica.enable_push_compression(compression);
    }
    learner.replica.enable_sparse_pull(recipe);
    learner.replica.set_byzantine(from_recipe::attack_of(recipe, workers.group_rank()));
    let reader = checkpoint.map(|folder| Reader::open(world, folder)).transpose()?;
    if let Some(reader) = &reader {
        let worker = workers.group_rank();
        learner.replica.visit_push_residuals(|name, values| {
            let name = worker_state::tensor_name(worker, name, "residual");
            reader.read(&name, &[values.len()], 0, values).map_err(TrainError::from)
        })?;
    }
    if workers.group_rank() > 0 {
        return Ok(workers.barrier()?);
    }
    learner.replica.load()?;
    let Some(reader) = reader else { return Ok(workers.barrier()?) };
    let Learner { replica, optimizer, .. } = learner;
    replica.restore_server_state(first_step, optimizer.state_names(), |state| {
        if keys.resets_momentum {
            state.values.fill(0.0);
            return Ok(());
        }
        reader.read(&state.name, &[state.len], state.first, state.values).map_err(TrainError::from)
    })?;
    Ok(workers.barrier()?)
}

/// Adds the servers' optimizer state to a checkpoint, on worker 0 while all workers wait.
pub(crate) fn save(snapshot: &mut Snapshot, learner: &mut Learner) -> Result<(), TrainError> {
    let Learner { replica, optimizer, .. } = learner;
    let worker = replica.groups().rank();
    replica.visit_push_residuals(|name, values| {
        snapshot.add(
            &worker_state::tensor_name(worker, name, "residual"),
            &[values.len()],
            0,
            values,
        );
        Ok::<_, TrainError>(())
    })?;
    if worker > 0 {
        return Ok(());
    }
    replica.fetch_server_state(optimizer.state_names(), |state| {
        snapshot.add(&state.name, &[state.len], state.first, state.values);
        Ok::<_, TrainError>(())
    })
}
