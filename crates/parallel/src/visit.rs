//! Parameters and optimizer state, set and shown whole, wherever they lie.
//!
//! No worker may have the whole model: it is cut into stages, and from ZeRO-1 on into parts. Here
//! it passes by, one tensor at a time, in the order of names, on all workers together.

use crate::lane::Store;
use crate::replica::Replica;
use lockstep_comm::CommError;
use lockstep_model::{Param, init};
use lockstep_optim::Optimizer;
use lockstep_tensor::Cpu;

impl Replica {
    pub(crate) fn initialize(&mut self, seed: u64, cpu: &Cpu) -> Result<(), CommError> {
        self.fill(|param, first, values| {
            init::fill(cpu, seed, param, first, values);
            Ok(())
        })
    }

    /// Sets all parameters without anybody holding them whole: `fill` sets the elements of one from
    /// a position on, and each worker asks for what it keeps only. A mirror is asked for too.
    pub fn fill<E: From<CommError>>(
        &mut self,
        mut fill: impl FnMut(&Param, usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.store.settle()?;
        for (block, param) in self.blueprint.params() {
            let (bucket, range) = self.store.buckets.place(block, param);
            let own = self.store.own(&self.store.buckets.list[bucket]);
            let (start, end) = (range.start.max(own.start), range.end.min(own.end));
            if start < end {
                let values =
                    &mut self.store.own_params_mut(bucket)[start - own.start..end - own.start];
                fill(param, start - range.start, values)?;
            }
        }
        self.store.publish(&mut self.device.link)?;
        Ok(self.store.settle()?)
    }

    /// Gives every parameter that is saved, whole, by name. All workers visit together.
    pub fn visit_params<E: From<CommError>>(
        &mut self,
        mut visit: impl FnMut(&Param, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut params: Vec<_> = self.blueprint.owned_params().collect();
        params.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        for (block, param) in params {
            let (device, pipeline) = (self.plan.stages.device_of(block), self.groups.pipeline());
            let is_here = device == pipeline.position();
            if is_here {
                self.store.fetch(block, None)?;
            }
            if pipeline.num_members() == 1 {
                visit(param, &self.store.params(block)[param.range()])?;
                continue;
            }
            let mut values = vec![0.0; param.len()];
            if is_here {
                values.copy_from_slice(&self.store.params(block)[param.range()]);
            }
            self.groups.pipeline().broadcast(&mut values, device)?;
            visit(param, &values)?;
        }
        Ok(())
    }

    /// Gives the optimizer's state of every parameter that is trained, whole, by name, and by kind.
    /// All workers visit together.
    pub fn visit_state<E: From<CommError>>(
        &mut self,
        optimizer: &Optimizer,
        mut visit: impl FnMut(&Param, &str, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut params: Vec<_> = self.blueprint.owned_params().collect();
        params.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        params.retain(|(_, param)| self.is_trained(&param.name));
        for (block, param) in params {
            let lens = self.state_lens(block, param);
            let rank = self.groups.rank();
            for (kind, name) in optimizer.kinds().iter().enumerate() {
                let own = optimizer.state(&param.name, kind).unwrap_or(&[]);
                if own.len() == param.len() && self.plan.is_replicated() {
                    visit(param, name, own)?;
                    continue;
                }
                let start: usize = lens[..rank].iter().sum();
                let mut whole = vec![0.0; param.len()];
                whole[start..start + lens[rank]].copy_from_slice(&own[..lens[rank]]);
                self.store.overlap.call(|comm| comm.all_gather_parts(&mut whole, &lens))?;
                visit(param, name, &whole)?;
            }
        }
        Ok(())
    }

    /// How much of a parameter's state each worker is to show, where all of it comes together.
    fn state_lens(&self, block: usize, param: &Param) -> Vec<usize> {
        let (bucket, range) = self.all.place(block, param);
        let parts = self.all.list[bucket].part_lens_of(&range);
        let device = self.plan.stages.device_of(block);
        let len = |rank: usize| {
            let part = self.groups.part_of(rank);
            match self.plan.zero {
                _ if self.groups.device_of(rank) != device => 0,
                0 if part > 0 => 0,
                0 => param.len(),
                _ => parts[part],
            }
        };
        (0..self.groups.world().num_members()).map(len).collect()
    }

    /// Replaces all parameters; `values` gives each by name.
    pub fn restore<'a, E: From<CommError>>(
        &mut self,
        mut values: impl FnMut(&Param) -> Result<&'a [f32], E>,
    ) -> Result<(), E> {
        self.store.settle()?;
        let Self { store, blueprint, .. } = &*self;
        let slots = store.buckets.slots(blueprint, |bucket| store.own(bucket));
        for (_, param) in self.blueprint.owned_params() {
            let values = values(param)?;
            if let Some(slot) = slots.iter().find(|slot| slot.name == param.name) {
                let own = &mut self.store.own_params_mut(slot.block)[slot.range.clone()];
                own.copy_from_slice(&values[slot.first..][..slot.range.len()]);
            }
        }
        self.store.publish(&mut self.device.link)?;
        Ok(self.store.settle()?)
    }
}
