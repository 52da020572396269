//! Tensors that are updated whole, in the order in which step programs number them: hidden matrices
//! (Muon) or all (Adafactor).

use crate::buckets::Buckets;
use crate::replica_plan::ReplicaPlan;
use lockstep_model::{Blueprint, Param};
use lockstep_optim::WholeTensors;
use lockstep_optim::factored::{FactoringMemory, GatheredTensor};
use lockstep_optim::newton_schulz::Orthogonalizer;

/// A trained tensor of a pipeline stage that is updated whole.
pub(crate) struct TrainedMatrix<'a> {
    /// Bucket of all its pieces.
    pub(crate) bucket: usize,
    /// Rows and columns.
    pub(crate) shape: [usize; 2],
    /// Pieces that the rank holds.
    pub(crate) pieces: Vec<&'a Param>,
    block: usize,
}

impl<'a> TrainedMatrix<'a> {
    /// The trained tensors in `buckets`, those of a rank's pipeline stage, that the plan's rule
    /// updates whole.
    pub(crate) fn list(
        blueprint: &'a Blueprint,
        buckets: &Buckets,
        plan: &ReplicaPlan,
    ) -> Vec<Self> {
        let matrix = |(block, param): (usize, &'a Param)| {
            let bucket = buckets.of_block(block);
            let is_here = buckets.list[bucket].len > 0;
            let is_trained = !plan.phases.is_frozen(plan.phase, &param.name);
            let shape = match plan.update_inputs.whole {
                WholeTensors::None => None,
                WholeTensors::HiddenMatrices => blueprint.hidden_matrix(block, param),
                WholeTensors::All => Some(Blueprint::rows_and_cols(param)),
            };
            let shape = shape.filter(|_| is_here && is_trained)?;
            let pieces = blueprint.pieces(block, param).collect();
            Some(Self { bucket, shape, pieces, block })
        };
        blueprint.tensors().into_iter().filter_map(matrix).collect()
    }

    /// Number of pieces, over all tensor-parallel ranks.
    pub(crate) fn num_pieces(&self) -> usize {
        self.pieces[0].piece.num
    }

    /// Elements of a held piece that each data-parallel rank steps, if they are sharded.
    pub(crate) fn part_lens(&self, buckets: &Buckets, piece: usize) -> Vec<usize> {
        let (bucket, range) = buckets.place(self.block, self.pieces[piece]);
        buckets.list[bucket].part_lens_of(&range)
    }
}

/// Tensors whose moments are factored.
pub(crate) fn factored<'a>(
    blueprint: &'a Blueprint,
    buckets: &'a Buckets,
    plan: &ReplicaPlan,
) -> impl Iterator<Item = GatheredTensor> + use<'a> {
    let is_shared = plan.zero > 0;
    buckets.params_here(blueprint).map(move |(_, param)| GatheredTensor {
        shape: Blueprint::rows_and_cols(param),
        is_shared,
        has_pieces: param.piece.num > 1,
    })
}

/// Number of elements that updates of whole tensors need beside parameters and state.
pub(crate) fn memory_len(blueprint: &Blueprint, buckets: &Buckets, plan: &ReplicaPlan) -> usize {
    match plan.update_inputs.whole {
        WholeTensors::None => 0,
        WholeTensors::HiddenMatrices => {
            Orthogonalizer::planned_len(buckets.hidden_matrices(blueprint))
        }
        WholeTensors::All => FactoringMemory::planned_len(factored(blueprint, buckets, plan)),
    }
}
