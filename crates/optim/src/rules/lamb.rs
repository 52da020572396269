//! LAMB (You et al. 2020): AdamW with a trust ratio for each tensor; kernel of the direction in
//! [`lockstep_tensor::lamb`].

use crate::rule::{RuleDescription, SpanStep, StateViews, UpdateRule};
use crate::update::UpdateInputs;
use lockstep_tensor::device::{Device, Rates, Result as DeviceResult, Rule, View, ViewMut};

/// LAMB.
pub(crate) struct Lamb;

impl UpdateRule for Lamb {
    fn describe(&self) -> RuleDescription {
        RuleDescription {
            inputs: UpdateInputs { directions: true, norms: true, ..UpdateInputs::default() },
            steps_with_state: false,
            ..RuleDescription::with_state(&["m", "v"])
        }
    }

    /// Updates the moments and leaves the direction of the step in the gradients.
    fn prepare(
        &self,
        step: &SpanStep<'_>,
        device: &dyn Device,
        params: View<'_>,
        grads: ViewMut<'_>,
        state: StateViews<'_>,
    ) -> DeviceResult<()> {
        let [m, v, _] = state;
        device.lamb_direction(&step.adam_step(), params, grads, [m, v])
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        let ratio = match step.tensor_norms() {
            Some((param, direction)) if param > 0.0 && direction > 0.0 => param / direction,
            _ => 1.0,
        };
        let lr = (step.lr() * ratio) as f32;
        Rule::Sgd(Rates { lr, weight_decay: 0.0, grad_scale: 1.0 })
    }
}
