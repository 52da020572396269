//! Consistency policy of a server: blocking, staleness bounds and the weight of stale gradients.

use crate::robust_aggregation::Aggregator;
use lockstep_config::{Consistency, LateGradients, StaleGradients, StalenessRule, StalenessWeight};
use lockstep_tensor::math::scalar;

/// Consistency policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Consistency model.
    pub consistency: Consistency,
    /// Staleness bound.
    pub bound: Bound,
    /// Weighting of stale gradients.
    pub weight: StalenessWeight,
    /// Factor per missed update, with exponential weighting.
    pub decay: f64,
    /// Artificial delay of reads in versions.
    pub delay: u64,
    /// Number of gradients that close an update, in elastic mode.
    pub quorum: usize,
    /// Treatment of a gradient that arrives after its update was closed.
    pub overdue: LateGradients,
    /// Aggregation of an update's gradients.
    pub aggregator: Aggregator,
    /// First synchronous step, in asynchronous and bounded modes.
    pub switch: Option<u64>,
}

/// Bound on the number of updates that a gradient may have missed.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// Bound at the start.
    pub staleness: u64,
    /// Bound at the end, with the linear rule.
    pub last: u64,
    /// Rule of the bound.
    pub rule: StalenessRule,
    /// Numerator of the curvature rule.
    pub constant: f64,
    /// Largest curvature of the loss.
    pub curvature: f64,
    /// Steps of the run.
    pub num_steps: u64,
    /// Treatment of workers beyond the bound.
    pub beyond: StaleGradients,
}

impl Bound {
    /// Bound in a step with this learning rate, halved `times_lowered` times.
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
                // Without a learning rate nothing moves, so no bound applies.
                if most < self.staleness as f64 { most as u64 } else { self.staleness }
            }
        };
        bound >> times_lowered.min(63)
    }
}

impl Policy {
    /// Factor on the learning rate of a stale gradient.
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
        let (staleness, last, num_steps, beyond) = (16, 2, 100, StaleGradients::Block);
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
            "1 / (rate times 4), and never above the configured bound"
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
            overdue: LateGradients::Next,
            aggregator: Aggregator::Mean,
            switch: None,
        };
        assert_eq!(policy.weight_of(3).to_bits(), 1.0_f64.to_bits());
        policy.weight = StalenessWeight::Inverse;
        assert_eq!(policy.weight_of(3).to_bits(), 0.25_f64.to_bits());
        policy.weight = StalenessWeight::Exponential;
        assert_eq!(policy.weight_of(3).to_bits(), 0.125_f64.to_bits());
    }
}
