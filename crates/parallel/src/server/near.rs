//! Workers near each other meet servers as one: a second level of servers, in the workers' midst.
//!
//! Workers of a host reach each other sooner than they reach servers. Those of a group add up their
//! gradients, the first of them pushes the sum and pulls the weights, and gives them to the others:
//! servers answer one for every group instead of one for every worker, and hear so many bytes less.
//! To a server a group is a worker. In lockstep the sum has the order that it would have without
//! groups, where a group is as large as a power of two.

use crate::replica::Replica;
use lockstep_comm::{Comm, CommError, Reduction, Traffic};
use std::time::Duration;

/// What a worker keeps of those near it.
pub struct Near {
    comm: Comm,
    exposed: Duration,
}

impl Replica {
    /// From now on this worker meets servers together with the others of a group, whose first
    /// member works for them ([`Replica::work_for`]).
    pub fn work_beside(&mut self, comm: Comm) {
        self.store.set_alone(true);
        let near = |comm: Comm| Near { comm: comm.canonical(), exposed: Duration::ZERO };
        self.near = (comm.group_size() > 1).then(|| near(comm));
    }

    /// Gives the weights that the first of the group has taken, and their version, to all of it.
    pub(super) fn share_weights(&mut self, version: u64) -> Result<u64, CommError> {
        let Self { near: Some(near), store, device, world, .. } = self else { return Ok(version) };
        let (mut version, began) = ([version], world.clock().now());
        near.comm.broadcast(&mut version, 0)?;
        for bucket in 0..store.buckets.list.len() {
            near.comm.broadcast(store.own_params_mut(bucket), 0)?;
        }
        near.exposed += world.clock().since(began);
        store.publish(&mut device.link)?;
        Ok(version[0])
    }

    /// Adds up the gradients of the group.
    pub fn sum_near(&mut self) -> Result<(), CommError> {
        let Self { near: Some(near), store, world, .. } = self else { return Ok(()) };
        let began = world.clock().now();
        for bucket in 0..store.buckets.list.len() {
            near.comm.all_reduce(store.own_grads_mut(bucket), Reduction::Sum)?;
        }
        near.exposed += world.clock().since(began);
        Ok(())
    }

    /// Adds up what the members of the group have lost, and over how many targets.
    pub fn sum_losses_near(
        &mut self,
        loss: f64,
        num_targets: u64,
    ) -> Result<(f64, u64), CommError> {
        let Some(near) = &self.near else { return Ok((loss, num_targets)) };
        // Numbers of targets are whole and small enough to be exact.
        let mut sums = [loss, num_targets as f64];
        near.comm.all_reduce(&mut sums, Reduction::Sum)?;
        Ok((sums[0], sums[1] as u64))
    }

    /// The time waited for the group since this was asked last.
    pub(crate) fn take_exposed_near(&mut self) -> Duration {
        self.near.as_mut().map_or(Duration::ZERO, |near| std::mem::take(&mut near.exposed))
    }

    /// The rows that anybody of the group touches, given those of this worker; ascending.
    pub(super) fn touched_near(&self, own: Vec<u32>) -> Result<Vec<u32>, CommError> {
        let Some(near) = &self.near else { return Ok(own) };
        let mut all = Vec::new();
        near.comm.all_gather_v(&own, &mut all)?;
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// What a group has weighed on this worker's wires.
    pub(crate) fn traffic_near(&self) -> Traffic {
        self.near
            .as_ref()
            .map_or_else(Traffic::default, |near| near.comm.counters().total().traffic)
    }
}
