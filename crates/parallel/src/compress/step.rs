//! Gradient compression of a replica's step: enable it, exchange, and gather statistics.

use super::exchange::{Compression, Tensor};
use super::hierarchy::Hierarchy;
use super::{CompressionPlan, CompressionStats, Method, Shape, dgc, one_bit_adam};
use crate::replica::Replica;
use lockstep_comm::{CommError, Traffic};
use lockstep_optim::Slot;

impl Replica {
    /// Enables gradient compression. Collective; requires that each rank holds the whole model.
    /// `method_of` returns the method of a tensor by name, or `None` to send it uncompressed.
    pub fn enable_compression(
        &mut self,
        plan: CompressionPlan,
        method_of: impl Fn(&str) -> Option<Method>,
    ) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "gradients are whole");
        let hierarchy = Hierarchy::new(self.groups.data(), plan.group)?;
        let num_workers = hierarchy.leaders.group_size();
        let (mut start, mut power) = (0, Vec::new());
        let mut tensors = Vec::new();
        for slot in self.slots() {
            let shape = Shape::of(&slot, &self.blueprint);
            let len = shape.len;
            let method = method_of(&slot.name);
            let method = method.filter(|_| hierarchy.is_writer());
            let method = method.filter(|method| !method.is_dense(&shape, num_workers));
            let first = power.len();
            let mut tensor =
                Tensor { slot, shape, start, method, now: method, power: first..first };
            if let Some(buffer) = tensor.low_rank() {
                power.extend(buffer.first_q(tensor.first_key(plan.seed)));
                tensor.power.end = power.len();
            }
            tensors.push(tensor);
            start += len;
        }
        let (zeros, is_writer) = (|| vec![0.0; start], hierarchy.is_writer());
        self.compression = Some(Compression {
            plan,
            hierarchy,
            tensors,
            residual: if plan.error_feedback && is_writer { zeros() } else { Vec::new() },
            momentum: if plan.method.has_momentum() { zeros() } else { Vec::new() },
            power,
            uncompressed: zeros(),
            sent: zeros(),
            total: zeros(),
            own: Vec::new(),
            all: Vec::new(),
            buffer: Vec::new(),
        });
        Ok(())
    }

    /// Replaces this rank's unreduced gradients by the sum of all ranks' compressed ones. `step`
    /// selects the random numbers.
    pub fn exchange_compressed(&mut self, step: u64) -> Result<CompressionStats, CommError> {
        let Some(mut compression) = self.compression.take() else {
            return Ok(CompressionStats::default());
        };
        let Compression { tensors, uncompressed, .. } = &mut compression;
        for tensor in &*tensors {
            let grads = &self.store.own_grads(tensor.slot.block)[tensor.slot.grads.clone()];
            uncompressed[tensor.flat()].copy_from_slice(grads);
        }
        compression.hierarchy.reduce(&mut compression.uncompressed)?;
        if compression.hierarchy.is_writer() {
            compression.run(step)?;
        }
        compression.hierarchy.broadcast(&mut compression.total)?;
        for tensor in &compression.tensors {
            let total = &compression.total[tensor.flat()];
            let grads = self.store.own_grads_mut(tensor.slot.block);
            grads[tensor.slot.grads.clone()].copy_from_slice(total);
        }
        let own = compression.observe();
        self.compression = Some(compression);
        self.all_gather_stats(own)
    }

    /// Updates momenta after a step whose gradients were reduced uncompressed.
    pub fn track_uncompressed(&mut self) {
        let Self { compression: Some(compression), store, .. } = self else { return };
        let Compression { plan, tensors, momentum, hierarchy, .. } = compression;
        let num_workers = hierarchy.leaders.group_size();
        if momentum.is_empty() {
            return;
        }
        for tensor in &*tensors {
            let (Slot { block, grads, .. }, flat) = (&tensor.slot, tensor.flat());
            match plan.method {
                Method::OneBitAdam { beta1 } => {
                    let grads = &store.own_grads(*block)[grads.clone()];
                    one_bit_adam::follow(beta1, &mut momentum[flat], grads);
                }
                Method::Dgc { momentum: factor, .. } => {
                    let grads = &mut store.own_grads_mut(*block)[grads.clone()];
                    dgc::follow(factor, num_workers, &mut momentum[flat], grads);
                }
                _ => {}
            }
        }
    }

    fn all_gather_stats(&mut self, own: [f64; 3]) -> Result<CompressionStats, CommError> {
        let mut all = vec![0.0; 3 * self.groups.world().group_size()];
        self.store.overlap.call(|comm| comm.all_gather(&own, &mut all))?;
        let (all, _) = all.as_chunks::<3>();
        let sum = |index: usize| all.iter().fold(0.0, |sum, own| sum + own[index]);
        let compression = self.compression.as_ref().expect("it was put back");
        let num_writers = compression.hierarchy.leaders.group_size();
        Ok(CompressionStats {
            delta: if sum(1) > 0.0 { sum(0) / sum(1) } else { 0.0 },
            residual_norm: all.iter().map(|own| own[2].sqrt()).sum::<f64>() / num_writers as f64,
            message_bytes: compression.message_bytes(),
            dense_bytes: (compression.total.len() * size_of::<f32>()) as u64,
        })
    }

    /// Bytes that this rank sent for compressed gradients.
    pub(crate) fn compression_traffic(&self) -> Traffic {
        let of = |compression: &Compression| compression.hierarchy.traffic();
        self.compression.as_ref().map_or(Traffic::default(), of)
    }
}
