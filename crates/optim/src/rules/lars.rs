//! LARS (You et al. 2017): momentum with a learning rate for each tensor; kernel in
//! [`lockstep_tensor::lars`].

use crate::rule::{RuleDescription, SpanStep, UpdateRule};
use crate::update::UpdateInputs;
use lockstep_tensor::device::{Momentum, Rates, Rule};

/// LARS.
pub(crate) struct Lars;

impl UpdateRule for Lars {
    fn describe(&self) -> RuleDescription {
        RuleDescription {
            inputs: UpdateInputs { norms: true, ..UpdateInputs::default() },
            ..RuleDescription::with_state(&["momentum"])
        }
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        let rates = Rates { lr: (step.lr() * local_rate(step)) as f32, ..step.rates() };
        Rule::Momentum { variant: Momentum::Lars, mu: step.settings.momentum as f32, rates }
    }
}

/// Local learning rate of a tensor, relative to that of the step.
fn local_rate(step: &SpanStep<'_>) -> f64 {
    let Some((param, grad)) = step.tensor_norms() else { return 1.0 };
    let grad = grad * f64::from(step.grad_scale());
    if param > 0.0 && grad > 0.0 {
        step.settings.trust_coefficient * param / (grad + step.options.weight_decay * param)
    } else {
        1.0
    }
}
