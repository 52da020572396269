//! Lion (Chen et al. 2023); kernel in [`lockstep_tensor::lion`].

use crate::rule::{RuleDescription, SpanStep, UpdateRule};
use lockstep_tensor::device::Rule;
use lockstep_tensor::lion::LionStep;

/// Lion.
pub(crate) struct Lion;

impl UpdateRule for Lion {
    fn describe(&self) -> RuleDescription {
        RuleDescription::with_state(&["momentum"])
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        Rule::Lion(LionStep {
            lr: step.lr(),
            beta1: step.settings.beta1,
            beta2: step.settings.beta2,
            weight_decay: step.options.weight_decay,
            grad_scale: step.grad_scale(),
        })
    }
}
