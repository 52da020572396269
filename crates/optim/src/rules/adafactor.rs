//! Adafactor (Shazeer and Stern 2018); kernel of the direction in [`lockstep_tensor::adafactor`].
//!
//! The caller gathers every tensor whole and replaces its gradients by the direction
//! ([`crate::factored`]). What is left is a step of the learning rate, with decoupled decay.

use crate::rule::{RuleDescription, SpanStep, UpdateRule};
use crate::update::{UpdateInputs, WholeTensors};
use lockstep_tensor::device::{Rates, Rule};

/// Adafactor.
pub(crate) struct Adafactor;

impl UpdateRule for Adafactor {
    fn describe(&self) -> RuleDescription {
        RuleDescription {
            inputs: UpdateInputs { whole: WholeTensors::All, ..UpdateInputs::default() },
            ..RuleDescription::with_state(&[])
        }
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        Rule::Sgd(Rates { grad_scale: 1.0, ..step.rates() })
    }
}
