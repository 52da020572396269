//! How a server answers: who waits for whom, how stale is too stale, and how much less that counts.

use crate::robust::Combine;
use lockstep_config::{Beyond, Consistency, Late, StalenessRule, StalenessWeight};
use lockstep_tensor::math::scalar;

/// See the module's text.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Who waits for whom.
    pub consistency: Consistency,
    /// How stale gradients may be.
    pub bound: Bound,
    /// How much less a stale gradient counts.
    pub weight: StalenessWeight,
    /// What it is multiplied by for every update that it has missed, where that is exponential.
    pub decay: f64,
    /// How many versions behind readers are kept on purpose.
    pub delay: u64,
    /// How many gradients close an update, where not all are waited for.
    pub quorum: usize,
    /// What becomes of a gradient that comes after its update was closed.
    pub late: Late,
    /// How the gradients of an update become one.
    pub combine: Combine,
    /// The step from which on all wait for all, whatever they did before.
    pub switch: Option<u64>,
}

/// How many updates a gradient may have missed, where that is bounded.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The most, at the beginning.
    pub staleness: u64,
    /// The most at the end, where it changes with time.
    pub last: u64,
    /// What the bound follows.
    pub rule: StalenessRule,
    /// What is divided by rate and curvature.
    pub constant: f64,
    /// The largest curvature of the loss.
    pub curvature: f64,
    /// Steps of the run.
    pub num_steps: u64,
    /// What becomes of who would be staler.
    pub beyond: Beyond,
}

impl Bound {
    /// The bound in a step with this learning rate, lowered so many times.
    pub fn at(&self, step: u64, lr: f64, times_lowered: u32) -> u64 {
        let bound = match self.rule {
            StalenessRule::Fixed | StalenessRule::Oscillation => self.staleness,
            StalenessRule::Linear => {
                let done = (step as f64 / self.num_steps.max(1) as f64).min(1.0);
                let (from, to) = (self.staleness as f64, self.last as f64);
                (from + (to - from) * done).round() as u64
            }
            StalenessRule::Curvature => {
                let most = self.constant / (lr * self.curvature);
                // Without a rate nothing moves, and anything goes.
                if most < self.staleness as f64 { most as u64 } else { self.staleness }
            }
        };
        bound >> times_lowered.min(63)
    }
}

impl Policy {
    /// How much of its length a step by such a gradient has.
    pub(super) fn weight_of(&self, staleness: u64) -> f64 {
        match self.weight {
            StalenessWeight::None => 1.0,
            StalenessWeight::Inverse => 1.0 / (1.0 + staleness as f64),
            StalenessWeight::Exponential => {
                let exponent = i32::try_from(staleness).unwrap_or(i32::MAX);
                scalar::powi(self.decay, exponent)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(rule: StalenessRule) -> Bound {
        let (staleness, last, num_steps, beyond) = (16, 2, 100, Beyond::Block);
        Bound { staleness, last, rule, constant: 1.0, curvature: 4.0, num_steps, beyond }
    }

    #[test]
    fn a_bound_follows_time_or_rate_and_curvature() {
        let linear = bound(StalenessRule::Linear);
        let found = [0, 50, 100, 900].map(|step| linear.at(step, 1.0, 0));
        assert_eq!(found, [16, 9, 2, 2]);
        let curved = bound(StalenessRule::Curvature);
        let found = [1.0, 0.1, 0.05, 0.001, 0.0].map(|lr| curved.at(0, lr, 0));
        assert_eq!(
            found,
            [0, 2, 5, 16, 16],
            "1 / (rate times 4), and never more than was asked for"
        );
    }

    #[test]
    fn a_bound_that_is_lowered_is_halved() {
        let fixed = bound(StalenessRule::Oscillation);
        assert_eq!([0, 1, 4, 5, 100].map(|times| fixed.at(0, 1.0, times)), [16, 8, 1, 0, 0]);
    }

    #[test]
    fn stale_gradients_count_for_less() {
        let mut policy = Policy {
            consistency: Consistency::Async,
            bound: bound(StalenessRule::Fixed),
            weight: StalenessWeight::None,
            decay: 0.5,
            delay: 0,
            quorum: 1,
            late: Late::Next,
            combine: Combine::Mean,
            switch: None,
        };
        assert_eq!(policy.weight_of(3).to_bits(), 1.0_f64.to_bits());
        policy.weight = StalenessWeight::Inverse;
        assert_eq!(policy.weight_of(3).to_bits(), 0.25_f64.to_bits());
        policy.weight = StalenessWeight::Exponential;
        assert_eq!(policy.weight_of(3).to_bits(), 0.125_f64.to_bits());
    }
}
