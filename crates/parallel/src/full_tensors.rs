//! Whole tensors gathered from sharded parameters and optimizer state, and scattered back.
//!
//! A tensor may lie on one pipeline stage, in pieces on tensor-parallel ranks, and in shards on
//! data-parallel ranks. Checkpoints, hashes and comparisons visit whole tensors by name; all ranks
//! visit together, one tensor at a time, so that no rank needs memory for the whole model.

use crate::replica::Replica;
use lockstep_comm::CommError;
use lockstep_model::{Blueprint, Param, init};
use lockstep_optim::{Optimizer, Slot, WholeTensors};
use lockstep_tensor::Cpu;
use std::convert::Infallible;

impl Replica {
    pub(crate) fn initialize(&mut self, seed: u64, cpu: &Cpu) -> Result<(), CommError> {
        self.fill(|param, first, values| {
            init::fill(cpu, seed, param, first, values);
            Ok(())
        })
    }

    /// Sets all parameters without any rank holding them whole: `fill` sets elements of a parameter
    /// from a position on, and each rank calls it for the elements it keeps. Mirrors are filled
    /// too.
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

    /// Visits every saved parameter, whole, by name. Collective.
    pub fn visit_params<E: From<CommError>>(
        &mut self,
        mut visit: impl FnMut(&Param, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        for (block, param) in self.blueprint.tensors() {
            let (device, pipeline) = (self.plan.stages.device_of(block), self.groups.pipeline());
            let is_here = device == pipeline.group_rank();
            if is_here {
                self.store.fetch(block)?;
            }
            if pipeline.group_size() == 1 && param.is_in_order() {
                visit(param, &self.store.host_params(block)[param.range()])?;
                continue;
            }
            let mut pieces = vec![0.0; param.tensor_len()];
            if is_here {
                for piece in self.blueprint.pieces(block, param) {
                    let values = &self.store.host_params(block)[piece.range()];
                    pieces[piece.first()..][..values.len()].copy_from_slice(values);
                }
                if param.piece.num > 1 {
                    self.groups.tensor().all_gather_in_place(&mut pieces)?;
                }
            }
            self.groups.pipeline().broadcast(&mut pieces, device)?;
            visit(param, &in_order(param, pieces))?;
        }
        Ok(self.check_copies()?)
    }

    /// Returns a failure of the accelerator that copies in host memory could not return.
    pub(crate) fn check_copies(&self) -> Result<(), CommError> {
        Ok(self.accelerator().map_or(Ok(()), |device| device.synchronize())?)
    }

    /// Visits the whole optimizer state of every trained parameter, by parameter and state name.
    /// Collective.
    pub fn visit_state<E: From<CommError>>(
        &mut self,
        optimizer: &Optimizer,
        mut visit: impl FnMut(&Param, &str, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut params = self.blueprint.tensors();
        params.retain(|(_, param)| self.is_trained(&param.name));
        for (block, param) in params {
            let names = optimizer.state_names_of(self.blueprint.hidden_matrix(block, param));
            for (kind, name) in names.iter().enumerate() {
                if param.is_in_order()
                    && self.plan.is_replicated()
                    && let Some(own) = optimizer.state(&param.name, 0, kind)
                {
                    visit(param, name, own)?;
                    continue;
                }
                let copy_own = |piece, own: &mut [f32]| {
                    let of = (&*param.name, piece);
                    let copied = optimizer.read_state(of, kind, 0..own.len(), |at, values| {
                        own[at..][..values.len()].copy_from_slice(values);
                        Ok::<_, Infallible>(())
                    });
                    copied.unwrap_or_else(|never| match never {});
                };
                let mut pieces = vec![0.0; param.tensor_len()];
                for (index, whole) in pieces.chunks_exact_mut(param.len()).enumerate() {
                    if self.plan.is_replicated() {
                        copy_own(index, whole);
                        continue;
                    }
                    let lens = self.state_lens(block, param, index);
                    let rank = self.groups.rank();
                    let start: usize = lens[..rank].iter().sum();
                    copy_own(index, &mut whole[start..start + lens[rank]]);
                    self.store.overlap.call(|comm| comm.all_gather_parts(whole, &lens))?;
                }
                visit(param, name, &in_order(param, pieces))?;
            }
            if optimizer.inputs().whole == WholeTensors::All {
                let lens = self.state_lens(block, param, 0);
                let first = lens.iter().position(|len| *len > 0).expect("an owner");
                let shape = Blueprint::rows_and_cols(param);
                for (name, len) in optimizer.saved_state_of(shape, None) {
                    let mut values = vec![0.0; len];
                    let mut own = optimizer.factored_state(&param.name);
                    if let Some((_, own)) = own.find(|(kind, _)| *kind == name) {
                        values.copy_from_slice(own);
                    }
                    // The rank with the first element sends them to all.
                    self.groups.world().broadcast(&mut values, first)?;
                    visit(param, name, &values)?;
                }
            }
        }
        Ok(self.check_copies()?)
    }

    /// Number of elements that each rank contributes to the gathered state of a piece of a
    /// parameter. All pieces lie alike on their ranks; `param` is one held here.
    fn state_lens(&self, block: usize, param: &Param, index: usize) -> Vec<usize> {
        let held = self.blueprint.shards.num_local();
        // The corresponding piece held here.
        let local = if param.piece.num == 1 {
            param.clone()
        } else {
            let index = param.piece.index / held * held + index % held;
            let mut pieces = self.blueprint.pieces(block, param);
            pieces.find(|piece| piece.piece.index == index).expect("it is held").clone()
        };
        let tp_rank = if param.piece.num == 1 { 0 } else { index / held };
        let (bucket, range) = self.all.place(block, &local);
        let parts = self.all.list[bucket].part_lens_of(&range);
        let device = self.plan.stages.device_of(block);
        let len = |rank: usize| {
            let part = self.groups.dp_rank_of(rank);
            match self.plan.zero {
                _ if self.groups.device_of(rank) != device => 0,
                _ if self.groups.tp_rank_of(rank) != tp_rank => 0,
                0 if part > 0 => 0,
                0 => param.len(),
                _ => parts[part],
            }
        };
        (0..self.groups.world().group_size()).map(len).collect()
    }

    /// Parameters of a slot of this rank's optimizer.
    pub fn owned_values(&self, slot: &Slot) -> &[f32] {
        &self.store.own_params(slot.block)[slot.range.clone()]
    }

    /// Writes all parameters that this rank steps, slot by slot.
    pub fn fill_owned(&mut self, mut fill: impl FnMut(&mut [f32])) -> Result<(), CommError> {
        self.store.settle()?;
        for slot in self.slots() {
            fill(&mut self.store.own_params_mut(slot.block)[slot.range.clone()]);
        }
        self.store.publish(&mut self.device.link)?;
        self.store.settle()
    }

    /// Exchanges the parameters that this rank steps with the averages that its optimizer keeps, if
    /// it does; a second call undoes it. Other ranks do not see the exchange.
    pub fn swap_own_averages(&mut self, optimizer: &mut Optimizer) -> Result<(), CommError> {
        if optimizer.has_averages() {
            self.settle()?;
            optimizer.swap_averages(|slot, averages| {
                let own = &mut self.store.own_params_mut(slot.block)[slot.range.clone()];
                own.swap_with_slice(averages);
            });
        }
        Ok(())
    }

    /// Like [`Self::swap_own_averages`], for the parameters of all ranks. Collective.
    pub fn swap_averages(&mut self, optimizer: &mut Optimizer) -> Result<(), CommError> {
        if optimizer.has_averages() {
            self.swap_own_averages(optimizer)?;
            self.store.publish(&mut self.device.link)?;
            self.store.settle()?;
        }
        Ok(())
    }

    /// Replaces all parameters; `values` returns each by name.
    pub fn restore<'a, E: From<CommError>>(
        &mut self,
        mut values: impl FnMut(&Param) -> Result<&'a [f32], E>,
    ) -> Result<(), E> {
        self.store.settle()?;
        let Self { store, blueprint, .. } = &*self;
        let slots = store.buckets.slots(blueprint, |bucket| store.own(bucket));
        for (_, param) in self.blueprint.owned_params() {
            let values = values(param)?;
            let is_of = |slot: &&Slot| slot.name == param.name && slot.piece == param.piece.index;
            if let Some(slot) = slots.iter().find(is_of) {
                let own = &mut self.store.own_params_mut(slot.block)[slot.range.clone()];
                param.pick(slot.first - param.first(), values, own);
            }
        }
        self.store.publish(&mut self.device.link)?;
        Ok(self.store.settle()?)
    }
}

/// Assembles a tensor from its concatenated pieces.
fn in_order(param: &Param, pieces: Vec<f32>) -> Vec<f32> {
    if param.is_in_order() {
        return pieces;
    }
    let mut tensor = vec![0.0; pieces.len()];
    for (index, values) in pieces.chunks_exact(param.len()).enumerate() {
        param.sibling(index).place(0, values, &mut tensor);
    }
    tensor
}
