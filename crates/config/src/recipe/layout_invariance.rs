//! Layout invariance: recipes whose result depends on the layout, with the reasons.

use super::{Placement, Recipe};

impl Recipe {
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
