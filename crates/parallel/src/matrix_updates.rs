//! Updates of whole matrices: Muon orthogonalises the direction of every hidden matrix.
//!
//! A rank may own a shard of a matrix (ZeRO), and a tensor-parallel rank holds some of its pieces.
//! The directions of one matrix after the other are gathered over both groups, every rank that owns
//! a part computes the whole matrix, and keeps its own part. The products have the same operands on
//! every layout, hence the same bits, at the cost of repeating them on the ranks that share a
//! matrix.

use crate::buckets::Buckets;
use crate::groups::Groups;
use crate::param_store::ParamStore;
use crate::replica_plan::ReplicaPlan;
use lockstep_comm::CommError;
use lockstep_model::{Blueprint, Param};
use lockstep_optim::Slot;
use lockstep_optim::newton_schulz::Orthogonalizer;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Result as DeviceResult};
use std::sync::Arc;

/// Hidden matrices of this rank's pipeline stage, and the memory to orthogonalise them.
#[derive(Debug)]
pub(crate) struct MatrixUpdates {
    matrices: Vec<HiddenMatrix>,
    work: Orthogonalizer,
}

/// A trained hidden matrix.
#[derive(Debug)]
struct HiddenMatrix {
    shape: [usize; 2],
    pieces: Vec<HeldPiece>,
    /// All pieces, of all tensor-parallel ranks.
    all: Vec<Param>,
}

/// A piece of the matrix that this rank holds.
#[derive(Debug)]
struct HeldPiece {
    param: Param,
    /// The part of it that this rank steps.
    slot: Option<Slot>,
    /// Elements that each data-parallel rank steps, if they are sharded.
    lens: Option<Vec<usize>>,
}

impl MatrixUpdates {
    /// Memory for the matrices in `buckets`, those of this rank's stage; `None` if the plan has no
    /// updates of whole matrices.
    pub(crate) fn new(
        blueprint: &Blueprint,
        buckets: &Buckets,
        plan: &ReplicaPlan,
        accelerator: Option<&Arc<dyn Device>>,
    ) -> DeviceResult<Option<Self>> {
        let Some(precision) = plan.matrix_updates else { return Ok(None) };
        let work = Orthogonalizer::new(precision, buckets.hidden_matrices(blueprint), accelerator)?;
        Ok(Some(Self { matrices: Vec::new(), work }))
    }

    /// Number of elements allocated.
    pub(crate) fn num_elements(&self) -> usize {
        self.work.num_elements()
    }

    /// Lists the matrices of a phase, of which this rank steps `slots`.
    pub(crate) fn enter_phase(
        &mut self,
        blueprint: &Blueprint,
        buckets: &Buckets,
        plan: &ReplicaPlan,
        slots: &[Slot],
    ) {
        self.matrices.clear();
        for (block, param) in blueprint.tensors() {
            let (bucket, _) = buckets.place(block, param);
            let is_here = buckets.list[bucket].len > 0;
            let shape = blueprint.hidden_matrix(block, param);
            let is_trained = !plan.phases.is_frozen(plan.phase, &param.name);
            let Some(shape) = shape.filter(|_| is_here && is_trained) else { continue };
            let piece = |param: &Param| {
                let (bucket, range) = buckets.place(block, param);
                let is_of =
                    |slot: &&Slot| slot.name == param.name && slot.piece == param.piece.index;
                HeldPiece {
                    param: param.clone(),
                    slot: slots.iter().find(is_of).cloned(),
                    lens: (plan.zero > 0).then(|| buckets.list[bucket].part_lens_of(&range)),
                }
            };
            let pieces = blueprint.pieces(block, param).map(piece).collect();
            let all = (0..param.piece.num).map(|index| param.sibling(index)).collect();
            self.matrices.push(HiddenMatrix { shape, pieces, all });
        }
    }

    /// Orthogonalises every matrix in the gradients of the ranks that own it. Collective over the
    /// data-parallel and tensor-parallel groups.
    pub(crate) fn run(
        &mut self,
        cpu: &Cpu,
        store: &mut ParamStore,
        groups: &Groups,
    ) -> Result<(), CommError> {
        let Self { matrices, work } = self;
        for HiddenMatrix { shape, pieces, all } in matrices {
            if let [HeldPiece { param, slot: Some(slot), lens: None }] = &pieces[..]
                && param.piece.num == 1
            {
                // This rank has all of it, where the device needs it.
                let at = 0..param.len();
                let (device, matrix) = work.matrix_mut().on_device(cpu)?;
                let grads = store.own_grads_view(slot.block)?.range(slot.grads.clone());
                device.copy(grads, matrix.range(at.clone()))?;
                work.run(cpu, *shape)?;
                let grads = store.own_grads_view_mut(slot.block)?.range(slot.grads.clone());
                let matrix = work.matrix_mut();
                matrix.device(cpu).copy(matrix.view()?.range(at), grads)?;
                continue;
            }
            gather(pieces, all, work, store, groups)?;
            if pieces.iter().all(|piece| piece.slot.is_none()) {
                continue;
            }
            work.run(cpu, *shape)?;
            let matrix = work.matrix_mut();
            for piece in pieces.iter() {
                if let Some(slot) = &piece.slot {
                    let own = &mut store.own_grads_mut(slot.block)[slot.grads.clone()];
                    piece.param.pick(slot.first - piece.param.first(), matrix, own);
                }
            }
        }
        Ok(())
    }
}

/// Gathers a matrix from the gradients of all ranks that own a part of it.
fn gather(
    pieces: &[HeldPiece],
    all: &[Param],
    work: &mut Orthogonalizer,
    store: &mut ParamStore,
    groups: &Groups,
) -> Result<(), CommError> {
    let [gathered, matrix] = work.scratch_and_matrix_mut();
    let gathered = &mut gathered[..all[0].tensor_len()];
    for HeldPiece { param, slot, lens } in pieces {
        if let Some(slot) = slot {
            let own = &store.own_grads(slot.block)[slot.grads.clone()];
            gathered[slot.first..][..own.len()].copy_from_slice(own);
        }
        if let Some(lens) = lens {
            let piece = &mut gathered[param.first()..][..param.len()];
            store.overlap.call_on(groups.data(), |comm| comm.all_gather_parts(piece, lens))?;
        }
    }
    if all.len() > 1 {
        store.overlap.call_on(groups.tensor(), |comm| comm.all_gather_in_place(gathered))?;
    }
    for (piece, values) in all.iter().zip(gathered.chunks_exact(all[0].len())) {
        piece.place(0, values, matrix);
    }
    Ok(())
}
