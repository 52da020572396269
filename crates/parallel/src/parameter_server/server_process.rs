//! A parameter server's process: its shard and policy by the recipe, and its life.

use super::shard::Shard;
use super::{
    Bound, Policy, PushCompression, Role, ServeOptions, ServerGroups, ShardLayout, server_loop,
};
use crate::from_recipe::{aggregation_rule, blueprint_of_rank};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{Consistency, Recipe};
use lockstep_optim::{LearningRate, Optimizer};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::time::Duration;

/// Serves until all workers have finished.
pub(crate) fn serve(
    cpu: &Cpu,
    recipe: &Recipe,
    world: &World,
    all_ranks: &Comm,
    groups: &ServerGroups,
) -> Result<(), CommError> {
    let blueprint = blueprint_of_rank(recipe, 0);
    let (server, role) = role_of(recipe, groups.link.group_rank());
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
    mark_expendable_servers(recipe, all_ranks);
    let close_after = Duration::from_secs_f64(recipe.sync.server.quorum_timeout.0);
    let is_elastic = recipe.sync.server.consistency == Consistency::Elastic;
    let terms = ServeOptions {
        num_workers: recipe.num_pushers(),
        role,
        num_row_replicas: recipe.sync.server.rows.replicated,
        close_after: Some(close_after).filter(|after| is_elastic && !after.is_zero()),
    };
    server_loop::serve(&groups.link, cpu, world, &mut shard, terms)?;
    wait_for_all(recipe, all_ranks)
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
        aggregator: aggregation_rule(recipe),
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
pub(super) fn mark_expendable_servers(recipe: &Recipe, comm: &Comm) {
    let replaceable = recipe.server_replica_groups().concat();
    if !replaceable.is_empty() {
        comm.mark_expendable(&replaceable);
    }
}

/// Waits for all ranks, unless servers may have been lost.
pub(super) fn wait_for_all(recipe: &Recipe, comm: &Comm) -> Result<(), CommError> {
    if recipe.sync.server.replicas == 0 {
        comm.barrier()?;
    }
    Ok(())
}
