//! Gradient descent, plain and with momentum; kernels in [`lockstep_tensor::sgd`] and
//! [`lockstep_tensor::nesterov`].

use crate::rule::{RuleDescription, SpanStep, UpdateRule};
use lockstep_tensor::device::{Momentum, Rule};

/// Plain gradient descent.
pub(crate) struct Sgd;

impl UpdateRule for Sgd {
    fn describe(&self) -> RuleDescription {
        RuleDescription::with_state(&[])
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        Rule::Sgd(step.rates())
    }
}

/// Momentum.
pub(crate) struct HeavyBall;

impl UpdateRule for HeavyBall {
    fn describe(&self) -> RuleDescription {
        RuleDescription::with_state(&["momentum"])
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        momentum(Momentum::Plain, step)
    }
}

/// Nesterov momentum.
pub(crate) struct Nesterov;

impl UpdateRule for Nesterov {
    fn describe(&self) -> RuleDescription {
        RuleDescription::with_state(&["momentum"])
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        momentum(Momentum::Nesterov, step)
    }
}

fn momentum(variant: Momentum, step: &SpanStep<'_>) -> Rule {
    Rule::Momentum { variant, mu: step.settings.momentum as f32, rates: step.rates() }
}
