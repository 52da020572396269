//! Exposed communication of a rank, and how much of it is a wait for a later rank.
//!
//! A rank that has finished its work waits in the next collective until the last rank arrives, and
//! only then do bytes move. Overlap and faster links shorten the second part, not the first. Ranks
//! exchange how long they were busy with the losses of a step ([`crate::microbatch_losses`]), so
//! the two are separated without a further call.

use crate::parameter_server::Client;
use crate::pipeline::PipelineRank;
use crate::replica::Replica;
use crate::step_context::StepContext;
use lockstep_comm::CommError;
use std::time::Duration;

impl Replica {
    /// Exposed communication time since the last call, and the part of it in which this rank waited
    /// for others that had not finished their work.
    pub fn take_exposed(&mut self) -> (Duration, Duration) {
        self.collect_exposed();
        let exposed = std::mem::take(&mut self.step_context.exposed);
        (exposed, std::mem::take(&mut self.step_context.straggler_wait).min(exposed))
    }

    /// Time in forward and backward passes since the last call, without any wait for other ranks.
    pub fn take_pass_time(&mut self) -> Duration {
        std::mem::take(&mut self.step_context.pass_time)
    }

    /// Exposed communication with other stages, tensor-parallel ranks and parameter servers that
    /// [`Self::collect_exposed`] has not collected yet.
    pub(crate) fn exposed_between_blocks(&self) -> Duration {
        let PipelineRank { link, tensor_parallel, .. } = &self.device;
        let servers = self.client.as_ref().map_or(Duration::ZERO, Client::exposed);
        link.exposed() + tensor_parallel.exposed() + servers
    }

    /// Adds the exposed communication of all groups to that of the step.
    pub(crate) fn collect_exposed(&mut self) {
        let host_group = self.take_host_exposed();
        let PipelineRank { link, tensor_parallel, .. } = &mut self.device;
        let servers =
            self.client.as_mut().map_or(Duration::ZERO, Client::take_exposed) + host_group;
        let exposed = self.store.overlap.take_exposed()
            + link.take_exposed()
            + tensor_parallel.take_exposed()
            + servers;
        self.step_context.exposed += exposed;
        self.step_context.exposed_since += exposed;
    }

    /// Sums the losses of all ranks, and attributes the time that this rank waits for the others.
    pub(crate) fn gather_losses(&mut self) -> Result<f64, CommError> {
        self.collect_exposed();
        let StepContext { exchanged_at, exposed_since, .. } = self.step_context;
        let busy = self.world.clock().since(exchanged_at).saturating_sub(exposed_since);
        let (sum, wait) = self.losses.gather(&mut self.store.overlap, busy)?;
        self.collect_exposed();
        self.step_context.straggler_wait += wait;
        self.step_context.exchanged_at = self.world.clock().now();
        self.step_context.exposed_since = Duration::ZERO;
        Ok(sum)
    }
}
