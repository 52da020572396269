//! Layout invariance: reduction leaves, and recipes whose result depends on the layout.

use super::limits::MAX_TENSOR_SHARDS;
use super::{Placement, Recipe};
use crate::field::Field;
use crate::topic::topic;
use crate::value_type::ValueType;

topic! {
    /// Layout invariance: results whose bits do not depend on the layout.
    pub struct Numerics at numerics, table "numerics" {
        /// Number of reduction leaves: every data-parallel degree up to it gives the same bits.
        invariant_up_to: usize = 8, of(ValueType::PowerOfTwo { max: 64 });

        /// Number of tensor shards in whose fixed order the sums of a layer are made, so that any
        /// parallel.tensor up to it gives the same bits; it divides model.heads, model.kv_heads,
        /// model.ffn and model.vocab.
        invariant_tensor_up_to: usize = 1, integer(1, MAX_TENSOR_SHARDS),
            in_identity_unless_default(), in_identity_as(|r| r.num_tensor_shards().to_value());
    }
}

impl Recipe {
    /// Number of reduction leaves G.
    pub const fn num_leaves(&self) -> usize {
        self.numerics.invariant_up_to
    }

    /// Number of consecutive micro-batches per leaf; exact, because the recipe is validated.
    pub const fn microbatches_per_leaf(&self) -> usize {
        self.num_microbatches() / self.num_leaves()
    }

    /// Number of tensor shards in which every layer is computed: the invariant number, or the
    /// tensor-parallel degree if that is larger.
    pub fn num_tensor_shards(&self) -> usize {
        self.numerics.invariant_tensor_up_to.max(self.parallel.tensor)
    }

    /// Reasons why the bits of the result depend on the layout; none for an invariant recipe.
    pub fn layout_dependence(&self) -> Option<String> {
        let mut reasons = Vec::new();
        if self.data.placement == Placement::Local {
            reasons.push(
                "data.placement = local: each worker trains on its own data, so another number \
                 of workers or other shares give other bits"
                    .to_owned(),
            );
        }
        reasons.extend(self.sync_dependence());
        if self.compress.is_on() {
            reasons.push(format!(
                "compress.method = {}: each worker compresses its own gradients, so another \
                 number of workers or other shares give other bits",
                self.compress.method
            ));
        }
        reasons.extend(self.timing_dependence());
        let (tensor, shards) = (self.parallel.tensor, self.numerics.invariant_tensor_up_to);
        if tensor > shards {
            reasons.push(format!(
                "parallel.tensor = {tensor} is more than numerics.invariant_tensor_up_to = \
                 {shards}: the sums of sharded layers follow the tensor-parallel ranks, so another \
                 parallel.tensor gives other bits"
            ));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}
