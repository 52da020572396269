//! Updates of whole tensors: Muon orthogonalises the direction of every hidden matrix, Adafactor
//! factors the second moments of every tensor.
//!
//! A rank may own a shard of a tensor (ZeRO), and a tensor-parallel rank holds some of its pieces.
//! The directions or gradients of one tensor after the other are gathered over both groups, every
//! rank that owns a part computes the whole tensor, and keeps its own part. Products and sums have
//! the same operands on every layout, hence the same bits, at the cost of repeating them on the
//! ranks that share a tensor. Each gather and each tensor is a task of the step program.

use crate::buckets::Buckets;
use crate::groups::Groups;
use crate::param_store::ParamStore;
use crate::replica_plan::ReplicaPlan;
use crate::trained_matrices::{TrainedMatrix, factored};
use lockstep_comm::CommError;
use lockstep_model::{Blueprint, Param};
use lockstep_optim::factored::FactoringMemory;
use lockstep_optim::newton_schulz::Orthogonalizer;
use lockstep_optim::{Optimizer, Slot, Update, WholeTensors};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Result as DeviceResult};
use std::sync::Arc;

/// Tensors of this rank's pipeline stage that are updated whole, and the memory for that.
#[derive(Debug)]
pub(crate) struct MatrixUpdates {
    matrices: Vec<WholeMatrix>,
    work: Work,
}

/// Memory of a rule.
#[derive(Debug)]
enum Work {
    /// Muon's.
    Orthogonal(Box<Orthogonalizer>),
    /// Adafactor's.
    Factored(FactoringMemory),
}

/// A trained tensor that is updated whole.
#[derive(Debug)]
struct WholeMatrix {
    shape: [usize; 2],
    pieces: Vec<HeldPiece>,
    /// All pieces, of all tensor-parallel ranks.
    all: Vec<Param>,
    /// Whether data-parallel ranks own parts of it.
    is_sharded: bool,
}

/// A piece of the tensor that this rank holds.
#[derive(Debug)]
struct HeldPiece {
    param: Param,
    /// The part of it that this rank steps.
    slot: Option<Slot>,
}

impl MatrixUpdates {
    /// Memory for the tensors in `buckets`, those of this rank's stage; `None` if the plan has no
    /// updates of whole tensors. It has [`crate::trained_matrices::memory_len`] elements.
    pub(crate) fn new(
        blueprint: &Blueprint,
        buckets: &Buckets,
        plan: &ReplicaPlan,
        accelerator: Option<&Arc<dyn Device>>,
    ) -> DeviceResult<Option<Self>> {
        let work = match plan.update_inputs.whole {
            WholeTensors::None => return Ok(None),
            WholeTensors::HiddenMatrices => {
                let shapes = buckets.hidden_matrices(blueprint);
                let work = Orthogonalizer::new(plan.matrix_precision, shapes, accelerator)?;
                Work::Orthogonal(Box::new(work))
            }
            WholeTensors::All => {
                Work::Factored(FactoringMemory::new(factored(blueprint, buckets, plan)))
            }
        };
        Ok(Some(Self { matrices: Vec::new(), work }))
    }

    /// Number of elements allocated.
    pub(crate) fn num_elements(&self) -> usize {
        match &self.work {
            Work::Orthogonal(work) => work.num_elements(),
            Work::Factored(work) => work.num_elements(),
        }
    }

    /// Lists the matrices of a phase, of which this rank steps `slots`.
    pub(crate) fn enter_phase(
        &mut self,
        blueprint: &Blueprint,
        buckets: &Buckets,
        plan: &ReplicaPlan,
        slots: &[Slot],
    ) {
        let piece = |param: &&Param| {
            let is_of = |slot: &&Slot| slot.name == param.name && slot.piece == param.piece.index;
            HeldPiece { param: Param::clone(param), slot: slots.iter().find(is_of).cloned() }
        };
        let matrix = |matrix: TrainedMatrix<'_>| WholeMatrix {
            shape: matrix.shape,
            pieces: matrix.pieces.iter().map(piece).collect(),
            all: (0..matrix.num_pieces()).map(|index| matrix.pieces[0].sibling(index)).collect(),
            is_sharded: plan.zero > 0,
        };
        let matrices = TrainedMatrix::list(blueprint, buckets, plan);
        self.matrices = matrices.into_iter().map(matrix).collect();
    }

    /// Gathers a held piece of a matrix from the data-parallel ranks, which own parts of these
    /// lengths. Collective.
    pub(crate) fn gather_matrix(
        &mut self,
        (matrix, piece): (usize, usize),
        lens: &[usize],
        store: &mut ParamStore,
    ) -> Result<(), CommError> {
        let WholeMatrix { pieces, all, .. } = &self.matrices[matrix];
        let gathered = &mut self.work.gathered_mut()[..all[0].tensor_len()];
        let piece = &pieces[piece];
        piece.copy_own(store, gathered);
        let values = &mut gathered[piece.param.first()..][..piece.param.len()];
        let data = store.overlap.comm().clone();
        store.overlap.call_on(&data, |comm| comm.all_gather_parts(values, lens))
    }

    /// Gathers the pieces of a matrix from the tensor-parallel ranks. Collective.
    pub(crate) fn gather_pieces(
        &mut self,
        matrix: usize,
        store: &mut ParamStore,
        groups: &Groups,
    ) -> Result<(), CommError> {
        let WholeMatrix { pieces, all, is_sharded, .. } = &self.matrices[matrix];
        let gathered = &mut self.work.gathered_mut()[..all[0].tensor_len()];
        if !is_sharded {
            for piece in pieces {
                piece.copy_own(store, gathered);
            }
        }
        store.overlap.call_on(groups.tensor(), |comm| comm.all_gather_in_place(gathered))
    }

    /// Orthogonalises a matrix, which was gathered unless this rank has all of it, in the gradients
    /// that this rank owns.
    pub(crate) fn orthogonalize(
        &mut self,
        cpu: &Cpu,
        matrix: usize,
        store: &mut ParamStore,
    ) -> DeviceResult<()> {
        let Self { matrices, work: Work::Orthogonal(work) } = self else {
            unreachable!("the rule orthogonalises matrices")
        };
        let WholeMatrix { shape, pieces, all, is_sharded } = &matrices[matrix];
        if let [HeldPiece { param, slot: Some(slot) }] = &pieces[..]
            && param.piece.num == 1
            && !is_sharded
        {
            // This rank has all of it, where the device needs it.
            let at = 0..param.len();
            let (device, matrix) = work.matrix_mut().on_device(cpu)?;
            let grads = store.own_grads_view(slot.block)?.range(slot.grads.clone());
            device.copy(grads, matrix.range(at.clone()))?;
            work.run(cpu, *shape)?;
            let grads = store.own_grads_view_mut(slot.block)?.range(slot.grads.clone());
            let matrix = work.matrix_mut();
            return matrix.device(cpu).copy(matrix.view()?.range(at), grads);
        }
        if pieces.iter().all(|piece| piece.slot.is_none()) {
            return Ok(());
        }
        let [gathered, matrix] = work.scratch_and_matrix_mut();
        let gathered = &gathered[..all[0].tensor_len()];
        match &all[..] {
            // As where one rank has all of it: in the order of its memory.
            [_] => matrix[..gathered.len()].copy_from_slice(gathered),
            pieces => {
                for (piece, values) in pieces.iter().zip(gathered.chunks_exact(all[0].len())) {
                    piece.place(0, values, matrix);
                }
            }
        }
        work.run(cpu, *shape)?;
        let matrix = work.matrix_mut();
        for HeldPiece { param, slot } in pieces {
            if let Some(slot) = slot {
                let own = &mut store.own_grads_mut(slot.block)[slot.grads.clone()];
                match all.len() {
                    1 => own.copy_from_slice(&matrix[slot.first..][..own.len()]),
                    _ => param.pick(slot.first - param.first(), matrix, own),
                }
            }
        }
        Ok(())
    }

    /// Updates the factored moments of a tensor, which was gathered unless this rank has all of it,
    /// and replaces the gradients that this rank owns by the direction of the step.
    pub(crate) fn factor_moments(
        &mut self,
        cpu: &Cpu,
        matrix: usize,
        store: &mut ParamStore,
        (optimizer, update): (&mut Optimizer, &Update),
    ) {
        let Self { matrices, work: Work::Factored(work) } = self else {
            unreachable!("the rule factors moments")
        };
        let WholeMatrix { pieces, all, is_sharded, .. } = &matrices[matrix];
        let slots = || pieces.iter().filter_map(|held| Some((&held.param, held.slot.as_ref()?)));
        let Some((_, Slot { tensor, block, grads, .. })) = slots().next() else { return };
        let FactoringMemory { pieces: gathered, whole, sums } = work;
        if all.len() == 1 && !is_sharded {
            // This rank has all of it.
            let grads = &mut store.own_grads_mut(*block)[grads.clone()];
            return optimizer.factored_direction(cpu, update, *tensor, grads, sums);
        }
        let gathered = &mut gathered[..all[0].tensor_len()];
        let whole = if all.len() == 1 {
            gathered
        } else {
            let whole = &mut whole[..gathered.len()];
            for (piece, values) in all.iter().zip(gathered.chunks_exact(all[0].len())) {
                piece.place(0, values, whole);
            }
            whole
        };
        optimizer.factored_direction(cpu, update, *tensor, whole, sums);
        for (param, slot) in slots() {
            let own = &mut store.own_grads_mut(slot.block)[slot.grads.clone()];
            param.pick(slot.first - param.first(), whole, own);
        }
    }
}

impl Work {
    /// Memory for the gathered pieces of a tensor.
    fn gathered_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Orthogonal(work) => work.scratch_and_matrix_mut()[0],
            Self::Factored(work) => &mut work.pieces,
        }
    }
}

impl HeldPiece {
    /// Copies the part that this rank owns to its place in the matrix, pieces concatenated.
    fn copy_own(&self, store: &ParamStore, gathered: &mut [f32]) {
        if let Some(slot) = &self.slot {
            let own = &store.own_grads(slot.block)[slot.grads.clone()];
            gathered[slot.first..][..own.len()].copy_from_slice(own);
        }
    }
}
