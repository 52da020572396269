//! Weights and gradients of a rank of which every element counts once over all ranks.

use crate::replica::Replica;
use lockstep_optim::Slot;

impl Replica {
    /// Names of the tensors by [`Slot::tensor`].
    pub fn tensor_names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.blueprint.owned_params().map(|(_, param)| param.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Visits weights and summed gradients of the trained tensors, or of pieces of them: on all
    /// ranks together every element once. From the end of the reduction to the update.
    pub fn visit_counted_tensors(&self, mut visit: impl FnMut(&Slot, &[f32], &[f32])) {
        let is_first_tensor = self.groups.tensor().group_rank() == 0;
        let is_first_data = self.groups.data().group_rank() == 0;
        if self.plan.zero == 0 && !is_first_data {
            return;
        }
        for slot in self.slots() {
            let is_sharded = self.is_sharded_tensor(&slot.name);
            if is_first_tensor || is_sharded {
                let weights = &self.store.own_params(slot.block)[slot.range.clone()];
                let gradients = &self.store.own_grads(slot.block)[slot.grads.clone()];
                visit(&slot, weights, gradients);
            }
        }
    }

    /// Whether tensor-parallel ranks hold pieces of a tensor.
    fn is_sharded_tensor(&self, name: &str) -> bool {
        let mut params = self.blueprint.owned_params();
        params.any(|(_, param)| param.name == name && param.piece.num > 1)
    }
}
