//! Training with parameter servers (Li et al. 2014): what a worker does beside its steps.
//!
//! The last ranks of the group are servers, the first ones workers. Workers form a group of their
//! own for everything but weights. A worker's step is pull, compute, push; in it a worker waits for
//! servers only. Workers synchronize for evaluations, checkpoints and the end, after all pushes are
//! acknowledged, so that all of them read the same weights.

use super::figures::ServerFigures;
use super::server_process::{mark_expendable_servers, serve, wait_for_all};
use super::{PushCompression, ServerGroups, ShardLayout, push_report};
use crate::figures::StrategyFigures;
use crate::from_recipe::{attack_of, blueprint_of_rank};
use crate::replica::Replica;
use crate::sync_strategy::{ReadState, Role, SyncStrategy, TrainingHost};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Consistency, Recipe};
use lockstep_optim::Optimizer;
use lockstep_platform::World;
use lockstep_telemetry::Event;
use std::ops::Range;

/// Strategy of a worker: pull, compute, push.
pub(crate) struct ParameterServer {
    /// Workers and servers.
    all_ranks: Comm,
    /// Groups of the workers and the link to the servers.
    groups: ServerGroups,
    /// Process ids of all ranks, workers first.
    processes: Vec<u64>,
    /// Counters at the last synchronization.
    counters: StrategyFigures,
}

/// Splits the ranks of `comm` into workers and servers. Collective.
pub(crate) fn join<H: TrainingHost>(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
) -> Result<Role<H>, CommError> {
    let num_workers = recipe.run.workers;
    let groups = ServerGroups::new(comm, num_workers, num_workers / recipe.num_pushers())?;
    let mut processes = vec![0; comm.group_size()];
    comm.all_gather(&[u64::from(world.processes().own_id())], &mut processes)?;
    let all_ranks = comm.clone();
    if comm.group_rank() >= num_workers {
        let recipe = recipe.clone();
        return Ok(Role::Service(Box::new(move |cpu, world| {
            serve(cpu, &recipe, world, &all_ranks, &groups)
        })));
    }
    let workers = groups.workers.clone();
    let counters =
        StrategyFigures { served: ServerFigures::unused(), ..StrategyFigures::default() };
    let strategy = Box::new(ParameterServer { all_ranks, groups, processes, counters });
    Ok(Role::Worker { strategy, workers })
}

impl<H: TrainingHost> SyncStrategy<H> for ParameterServer {
    fn attach(&mut self, recipe: &Recipe, world: &World, replica: &mut Replica) {
        let ServerGroups { workers, link, host_group, .. } = &self.groups;
        replica.join_host_group(host_group.clone());
        if self.groups.pushes() {
            replica.attach_to_servers(link.clone(), recipe, world);
        }
        if let Some(compression) = PushCompression::of(recipe) {
            replica.enable_push_compression(compression);
        }
        replica.enable_sparse_pull(recipe);
        replica.set_byzantine(attack_of(recipe, workers.group_rank()));
    }

    fn begin(
        &mut self,
        host: &mut H,
        steps: Range<u64>,
        read: Option<&ReadState<'_, H::Error>>,
    ) -> Result<(), H::Error> {
        mark_expendable_servers(host.recipe(), &self.all_ranks);
        let joined = self.joined(host.recipe());
        host.record(&joined);
        let keys = &host.recipe().sync.server;
        let is_elastic = keys.consistency == Consistency::Elastic;
        let resets_momentum = keys.resets_momentum;
        let state_names = Optimizer::new(&host.recipe().optim, &[]).state_names();
        let replica = host.replica();
        replica.set_last_version(is_elastic.then_some(steps.end));
        if self.groups.workers.group_rank() == 0 {
            replica.load()?;
            if let Some(read) = read {
                replica.restore_remote_state(steps.start, state_names, |state| {
                    if resets_momentum {
                        state.values.fill(0.0);
                        return Ok(());
                    }
                    read(&state.name, state.len, state.first, state.values)
                })?;
            }
        }
        Ok(self.groups.workers.barrier()?)
    }

    fn step(&mut self, host: &mut H, steps: Range<u64>) -> Result<(), H::Error> {
        host.take_step(steps.start)?;
        self.record_lost_servers(host, steps.start);
        Ok(())
    }

    fn synchronize(&mut self, host: &mut H, num_steps: u64) -> Result<(), H::Error> {
        let workers = &self.groups.workers;
        // Those that follow until the next step are no part of a step.
        let repeats = host.replica().repeats();
        workers.barrier()?;
        host.replica().read()?;
        let missed = host.missed_steps();
        let own = [missed[workers.group_rank()]];
        workers.all_gather(&own, missed)?;
        if self.groups.pushes() {
            let pushers = &self.groups.pushers;
            push_report::report(pushers, num_steps, host, &repeats, &mut self.counters)?;
        }
        host.replica().forget_repeats(repeats.len());
        self.record_lost_servers(host, num_steps.saturating_sub(1));
        Ok(())
    }

    fn prepare_checkpoint(&mut self, host: &mut H, num_steps: u64) -> Result<bool, H::Error> {
        // The step alone decides, so workers synchronize only when a checkpoint is due.
        let recipe = host.recipe();
        let is_due = recipe.is_due_every(recipe.checkpoint.every, num_steps);
        if is_due {
            self.groups.workers.barrier()?;
            host.replica().read()?;
        }
        Ok(is_due)
    }

    fn finish(&mut self, host: &mut H) -> Result<(), H::Error> {
        Ok(host.replica().leave_servers()?)
    }

    fn disconnect(&mut self, host: &H) -> Result<(), CommError> {
        self.groups.workers.barrier()?;
        wait_for_all(host.recipe(), &self.all_ranks)
    }

    fn add_figures(&self, figures: &mut StrategyFigures) {
        let StrategyFigures { staleness_by_rank, rows, served, .. } = self.counters.clone();
        *figures = StrategyFigures { staleness_by_rank, rows, served, ..*figures };
    }
}

impl ParameterServer {
    /// Event with the process ids of all ranks and the shard sizes.
    fn joined(&self, recipe: &Recipe) -> Event {
        let (workers, servers) = self.processes.split_at(recipe.run.workers);
        let shard_layout = ShardLayout::of(recipe, &blueprint_of_rank(recipe, 0));
        let held =
            |server: usize| shard_layout.lens(server).into_iter().map(|len| len as u64).sum();
        Event::ServersJoined {
            worker_processes: workers.to_vec(),
            server_processes: servers.to_vec(),
            params_by_server: (0..recipe.num_server_ranks())
                .map(|rank| held(rank % recipe.num_servers()))
                .collect(),
            consistency: recipe.sync.server.consistency.name().to_owned(),
        }
    }

    /// Records servers that were lost.
    fn record_lost_servers(&mut self, host: &mut impl TrainingHost, step: u64) {
        let rank_at = |position: usize| self.groups.link.ranks()[position].0;
        for loss in host.replica().take_lost_servers() {
            let (server, successor) = (rank_at(loss.rank), rank_at(loss.successor));
            self.counters.served.servers_lost.get_or_insert_default().push(server);
            let process = self.processes[server];
            host.record(&Event::ServerLost { step, server, process, successor });
        }
    }
}
