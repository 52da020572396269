//! Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019); kernels in
//! [`lockstep_tensor::adam`] and [`lockstep_tensor::adamw`].

use crate::rule::{RuleDescription, SpanStep, UpdateRule};
use lockstep_tensor::device::Rule;

/// Adam with decay in the gradient.
pub(crate) struct Adam;

impl UpdateRule for Adam {
    fn describe(&self) -> RuleDescription {
        RuleDescription::with_state(&["m", "v"])
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        Rule::Adam(step.adam_step())
    }
}

/// Adam with decoupled decay.
pub(crate) struct AdamW;

impl UpdateRule for AdamW {
    fn describe(&self) -> RuleDescription {
        RuleDescription::with_state(&["m", "v"])
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        Rule::AdamW(step.adam_step())
    }
}
