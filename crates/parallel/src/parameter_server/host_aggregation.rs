//! Host-local aggregation in front of the parameter servers.
//!
//! Workers of a host reach each other faster than the servers. A host group reduces its gradients,
//! its first worker pushes the sum, pulls the weights and broadcasts them: servers see one client
//! per host instead of one per worker, and receive that many fewer bytes. In synchronous mode the
//! sum has the order of a run without groups if the group size is a power of two.

use super::client::HostGroup;
use crate::param_store::ParamStore;
use crate::replica::Replica;
use lockstep_comm::{Comm, CommError, Counters, Reduction};
use std::time::Duration;

impl Replica {
    /// Joins a host group, whose first rank attaches to the servers
    /// ([`Replica::attach_to_servers`]).
    pub fn join_host_group(&mut self, comm: Comm) {
        let host_group = |comm: Comm| HostGroup { comm: comm.canonical(), exposed: Duration::ZERO };
        self.host_group = (comm.group_size() > 1).then(|| host_group(comm));
    }

    /// Broadcasts the version of the weights that the group's first rank has pulled.
    pub(super) fn share_version(&mut self) -> Result<(), CommError> {
        let mut version = [self.step_context.version];
        self.in_host_group(|host_group, _| host_group.broadcast(&mut version, 0))?;
        self.step_context.version = version[0];
        Ok(())
    }

    /// Broadcasts a bucket of those weights.
    pub(super) fn share_bucket(&mut self, bucket: usize) -> Result<(), CommError> {
        self.in_host_group(|host_group, store| {
            host_group.broadcast(store.own_params_mut(bucket), 0)
        })
    }

    /// All-reduces a bucket of gradients of the host group.
    pub(super) fn reduce_in_host(&mut self, bucket: usize) -> Result<(), CommError> {
        self.in_host_group(|host_group, store| {
            host_group.all_reduce(store.own_grads_mut(bucket), Reduction::Sum)
        })
    }

    /// Makes a call in the host group, if there is one, and measures it.
    fn in_host_group(
        &mut self,
        call: impl FnOnce(&Comm, &mut ParamStore) -> Result<(), CommError>,
    ) -> Result<(), CommError> {
        let Self { host_group: Some(host_group), store, world, .. } = self else { return Ok(()) };
        let began = world.clock().now();
        call(&host_group.comm, store)?;
        host_group.exposed += world.clock().since(began);
        Ok(())
    }

    /// Sums the losses and target counts of the host group.
    pub(super) fn reduce_losses_in_host(
        &mut self,
        loss: f64,
        num_targets: u64,
    ) -> Result<(f64, u64), CommError> {
        let Some(host_group) = &self.host_group else { return Ok((loss, num_targets)) };
        // Target counts are small enough to be exact in `f64`.
        let mut sums = [loss, num_targets as f64];
        host_group.comm.all_reduce(&mut sums, Reduction::Sum)?;
        Ok((sums[0], sums[1] as u64))
    }

    /// Exposed communication time in the host group since the last call.
    pub(crate) fn take_host_exposed(&mut self) -> Duration {
        self.host_group
            .as_mut()
            .map_or(Duration::ZERO, |host_group| std::mem::take(&mut host_group.exposed))
    }

    /// Rows that any worker of the host group uses, given those of this worker; ascending.
    pub(super) fn gather_batch_rows(&self, own: Vec<u32>) -> Result<Vec<u32>, CommError> {
        let Some(host_group) = &self.host_group else { return Ok(own) };
        let mut all = Vec::new();
        host_group.comm.all_gather_v(&own, &mut all)?;
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Calls of this worker in the host group.
    pub(crate) fn host_counters(&self) -> Counters {
        let host_group = self.host_group.as_ref();
        host_group.map_or_else(Counters::default, |host_group| host_group.comm.counters())
    }
}
