//! Muon (Jordan et al. 2024): orthogonalised momentum for hidden matrices, AdamW for the rest.
//!
//! The step of a matrix is scaled by 0.2 √max(rows, columns), which gives it the usual size of
//! AdamW's, so that both share a learning rate and weight decay (Liu et al. 2025, "Muon is Scalable
//! for LLM Training"). Kernel of the direction in [`lockstep_tensor::muon`]; the caller
//! orthogonalises it ([`crate::newton_schulz`]) before the step. Matrices have no second moments.

use crate::rule::{RuleDescription, SpanStep, StateViews, UpdateRule};
use crate::update::{UpdateInputs, WholeTensors};
use lockstep_tensor::device::{Device, Rates, Result as DeviceResult, Rule, View, ViewMut};

/// Root mean square of an update of AdamW.
const USUAL_RMS: f64 = 0.2;

/// Muon.
pub(crate) struct Muon;

impl UpdateRule for Muon {
    fn describe(&self) -> RuleDescription {
        RuleDescription {
            inputs: UpdateInputs {
                directions: true,
                norms: false,
                whole: WholeTensors::HiddenMatrices,
            },
            num_matrix_buffers: 1,
            ..RuleDescription::with_state(&["m", "v"])
        }
    }

    /// Updates the momentum of matrices and leaves its direction in the gradients.
    fn prepare(
        &self,
        step: &SpanStep<'_>,
        device: &dyn Device,
        _params: View<'_>,
        grads: ViewMut<'_>,
        [m, ..]: StateViews<'_>,
    ) -> DeviceResult<()> {
        match step.options.matrix {
            Some(_) => device.muon_direction(step.settings.momentum, step.grad_scale(), grads, m),
            None => Ok(()),
        }
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        let Some([rows, cols]) = step.options.matrix else { return Rule::AdamW(step.adam_step()) };
        let size = USUAL_RMS * (rows.max(cols) as f64).sqrt();
        Rule::Sgd(Rates {
            lr: (step.lr() * size) as f32,
            // The rate of the decay is that of the step without its size.
            weight_decay: (step.options.weight_decay / size) as f32,
            grad_scale: 1.0,
        })
    }
}
