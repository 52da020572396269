//! AdamW with moments of eight bits in large tensors (Dettmers et al. 2022), storage in
//! [`crate::eight_bit`], kernel in [`lockstep_tensor::adamw_8bit`]; AdamW in the others.

use crate::rule::{RuleDescription, SpanStep, UpdateRule};
use lockstep_tensor::device::Rule;

/// AdamW with moments of eight bits.
pub(crate) struct AdamW8Bit;

impl UpdateRule for AdamW8Bit {
    fn describe(&self) -> RuleDescription {
        RuleDescription { codes_large: true, ..RuleDescription::with_state(&["m", "v"]) }
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        Rule::AdamW(step.adam_step())
    }
}
