//! Schedule-free AdamW (Defazio et al. 2024); kernel in [`lockstep_tensor::schedule_free`].
//!
//! Parameters are the points y at which gradients are taken. The first state buffer holds the
//! averages x that are evaluated and saved; where those are installed as parameters, it holds y,
//! and so do checkpoints, which give it its name.

use crate::rule::{RuleDescription, SpanStep, UpdateRule};
use lockstep_tensor::device::Rule;
use lockstep_tensor::schedule_free::ScheduleFreeStep;

/// Schedule-free AdamW.
pub(crate) struct ScheduleFreeAdamW;

impl UpdateRule for ScheduleFreeAdamW {
    fn describe(&self) -> RuleDescription {
        RuleDescription {
            starts_at_params: &[0, 1],
            averages: Some(0),
            ..RuleDescription::with_state(&["y", "z", "v"])
        }
    }

    fn kernel(&self, step: &SpanStep<'_>) -> Rule {
        let adam = step.adam_step();
        Rule::ScheduleFree(ScheduleFreeStep {
            lr: adam.lr,
            beta1: adam.beta1,
            beta2: adam.beta2,
            eps: adam.eps,
            weight_decay: adam.weight_decay,
            bias2: adam.bias2,
            averaging: averaging_weight(step.count(), step.settings.warmup_steps),
            grad_scale: adam.grad_scale,
        })
    }
}

/// Weight of a step in the average: the square of its learning rate over the sum of all squares so
/// far, of a rate that grows linearly over the warm-up and is constant from then on.
fn averaging_weight(count: u64, warmup_steps: u64) -> f64 {
    // In units of the square of the first rate: 1, 4, 9, … up to the square of the peak.
    let (count, peak) = (count as f64, warmup_steps.max(1) as f64);
    let warm = count.min(peak);
    let sum = warm * (warm + 1.0) * (2.0 * warm + 1.0) / 6.0 + (count - warm) * peak * peak;
    warm * warm / sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_weighs_the_square_of_its_rate() {
        for warmup_steps in [0, 1, 5] {
            let mut sum = 0.0;
            for count in 1..=12_u64 {
                let rate = (count as f64 / warmup_steps.max(1) as f64).min(1.0);
                sum += rate * rate;
                let found = averaging_weight(count, warmup_steps);
                assert!((found - rate * rate / sum).abs() < 1e-12, "{count} of {warmup_steps}");
            }
        }
    }
}
