//! Pieces of the model and optimizer state that each rank saves, so that all ranks together save
//! everything once.
//!
//! Every piece of a parameter lies on the ranks of its pipeline stage, and each of those saves its
//! shard of the bucket, even if it holds the whole bucket. Saving needs no communication. A column
//! shard of a tensor is saved in as many runs as the tensor has rows.

use crate::buckets::Bucket;
use crate::replica::Replica;
use crate::replica_plan::ReplicaPlan;
use crate::trainable_params::TrainableParams;
use lockstep_comm::CommError;
use lockstep_config::OptimName;
use lockstep_mesh::{Axis, Rank};
use lockstep_model::{Blueprint, Param};
use lockstep_optim::{Optimizer, Slot, WholeTensors};
use std::collections::BTreeSet;
use std::ops::Range;

/// Elements of a parameter, or of one of its optimizer states.
pub struct CheckpointPiece<'a> {
    /// Parameter.
    pub param: &'a Param,
    /// Name of the optimizer state; `None` for the parameter itself.
    pub kind: Option<&'static str>,
    /// Number of elements of the whole parameter or state.
    pub len: usize,
    /// Index of the first element in the whole parameter or state.
    pub first: usize,
    /// Elements.
    pub values: &'a [f32],
}

impl Replica {
    /// Visits the pieces that this rank saves of all parameters and optimizer state. Exactly one
    /// rank visits each element. Collective, between two steps.
    pub fn visit_checkpoint_pieces<E: From<CommError>>(
        &mut self,
        optimizer: &Optimizer,
        mut visit: impl FnMut(CheckpointPiece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Buffers of weights in flight belong to the call.
        self.settle()?;
        let part = self.groups.data().group_rank();
        assert_eq!(
            self.plan.mesh.degree(Axis::Data),
            self.plan.shares.len(),
            "leaves for every data-parallel rank"
        );
        let store = &self.store;
        let is_first_tp_rank = self.groups.tensor().group_rank() == 0;
        for (block, param) in self.blueprint.owned_params() {
            // The first tensor-parallel rank saves parameters that are not sharded.
            if param.piece.num == 1 && !is_first_tp_rank {
                continue;
            }
            let (index, range) = store.buckets.place(block, param);
            let bucket = &store.buckets.list[index];
            let (own, mine) = (store.own(bucket), bucket.part(part));
            let Some(piece) = common(&range, &mine) else { continue };
            let values = &store.own_params(index)[piece.start - own.start..piece.end - own.start];
            let (first, len) = (piece.start - range.start, param.tensor_len());
            for (run, place) in param.runs(first..first + values.len()) {
                let values = &values[run.start - first..run.end - first];
                visit(CheckpointPiece { param, kind: None, len, first: place, values })?;
            }
            // All ranks that step a part hold all factored moments.
            if first == 0 && param.piece.index == 0 {
                for (kind, values) in optimizer.factored_state(&param.name) {
                    let (kind, len) = (Some(kind), values.len());
                    visit(CheckpointPiece { param, kind, len, first: 0, values })?;
                }
            }
            let Some(held) = common(&range, &own) else { continue };
            for (kind, name) in optimizer.state_names().iter().enumerate() {
                let of = (&*param.name, param.piece.index);
                let (from, name) = (piece.start - held.start, Some(*name));
                for (run, place) in param.runs(first..first + piece.len()) {
                    let within = run.start - first + from..run.end - first + from;
                    let start = within.start;
                    optimizer.read_state(of, kind, within, |at, values| {
                        let first = place + at - start;
                        visit(CheckpointPiece { param, kind: name, len, first, values })
                    })?;
                }
            }
        }
        Ok(self.check_copies()?)
    }
}

/// Number of elements that a rank saves, counted before anything is allocated: of the parameters
/// and of the optimizer's state. `optimizer` is its name, and whether ranks have states of their
/// own, each of which the rank saves whole. `blueprint` is that of the first tensor-parallel rank.
pub fn planned_len(
    blueprint: &Blueprint,
    plan: &ReplicaPlan,
    optimizer: (OptimName, bool),
    rank: Rank,
) -> usize {
    let index = |axis| plan.mesh.index(axis, rank);
    let (device, part) = (index(Axis::Pipeline), index(Axis::Data));
    let buckets = plan.buckets(blueprint);
    let buckets = buckets.here(|block| plan.stages.device_of(block) == device);
    let trained = TrainableParams::new(blueprint, &buckets, &plan.phases, plan.phase);
    let shard = |bucket: &Bucket| bucket.part(part);
    let unsharded: BTreeSet<&str> = blueprint
        .owned_params()
        .filter(|(_, param)| param.piece.num == 1)
        .map(|(_, param)| &*param.name)
        .collect();
    let is_first_tp_rank = index(Axis::Tensor) == 0;
    let is_saved = |slot: &Slot| is_first_tp_rank || !unsharded.contains(&*slot.name);
    let (name, is_local) = optimizer;
    let params = buckets.slots(blueprint, shard);
    let params: usize =
        params.iter().filter(|slot| is_saved(slot)).map(|slot| slot.range.len()).sum();
    let mut states = if is_local {
        trained.slots(blueprint, &buckets, |bucket| 0..bucket.len)
    } else {
        trained.slots(blueprint, &buckets, shard)
    };
    states.retain(|slot| is_local || is_saved(slot));
    if Optimizer::inputs_of(name).whole == WholeTensors::All {
        states.retain(|slot| slot.first == 0);
    }
    params + Optimizer::num_state_values(name, &states)
}

fn common(one: &Range<usize>, other: &Range<usize>) -> Option<Range<usize>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}
