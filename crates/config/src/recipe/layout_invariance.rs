//! Which recipes do not keep the promise that bits do not depend on the layout, and why.

use super::{Placement, Recipe};

impl Recipe {
    /// What of the layout bits depend on nevertheless, and why, in words; nothing where a recipe
    /// keeps the promise that they do not.
    pub fn layout_dependence(&self) -> Option<String> {
        let mut reasons = Vec::new();
        if self.data.placement == Placement::Local {
            reasons.push(
                "data.placement = local: each worker learns from its own text, so another number \
                 of workers or other shares give other bits"
                    .to_owned(),
            );
        }
        reasons.extend(self.sync_dependence());
        if self.compress.is_on() {
            reasons.push(format!(
                "compress.method = {}: each worker rounds its own gradients, so another number of \
                 workers or other shares give other bits",
                self.compress.method
            ));
        }
        reasons.extend(self.timing_dependence());
        let (tensor, slices) = (self.parallel.tensor, self.numerics.invariant_tensor_up_to);
        if tensor > slices {
            reasons.push(format!(
                "parallel.tensor = {tensor} is more than numerics.invariant_tensor_up_to = \
                 {slices}: sums over slices of layers go by the workers that hold them, so another \
                 parallel.tensor gives other bits"
            ));
        }
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}
