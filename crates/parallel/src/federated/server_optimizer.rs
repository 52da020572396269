//! Server optimizers of federated learning (Reddi et al., "Adaptive Federated Optimization", ICLR
//! 2021).
//!
//! The mean update of a round is treated as a gradient. Applied directly it is FedAvg; with
//! momentum FedAvgM; with Adam's or Yogi's second moment FedAdam and FedYogi. The adaptive ones
//! have no bias correction, and their τ is large, as in the paper: it bounds the adaptation. Adam's
//! second moment is v = β₂v + (1 − β₂)Δ²; Yogi's, v −= (1 − β₂) Δ² sign(v − Δ²), decreases slowly.

use lockstep_config::FederatedServer;

/// The coordinator's optimizer with its hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerOptimizer {
    /// Update rule.
    pub rule: FederatedServer,
    /// Learning rate.
    pub lr: f32,
    /// β₁, the momentum.
    pub momentum: f32,
    /// β₂.
    pub second: f32,
    /// Added to the root of the second moment.
    pub tau: f32,
}

/// Number of moments per weight that a rule keeps.
pub const fn num_moments(rule: FederatedServer) -> usize {
    match rule {
        FederatedServer::Average => 0,
        FederatedServer::Momentum => 1,
        FederatedServer::Adam | FederatedServer::Yogi => 2,
    }
}

impl ServerOptimizer {
    /// Number of moments per weight: first moment, second moment.
    pub fn num_moments(&self) -> usize {
        num_moments(self.rule)
    }

    /// Initial value of second moments.
    pub fn first_second_moment(&self) -> f32 {
        self.tau * self.tau
    }

    /// Steps `weights` by the mean `change`; `moments` has [`num_moments`](Self::num_moments)
    /// entries.
    pub fn step(&self, change: &[f32], moments: &mut [Vec<f32>], weights: &mut [f32]) {
        assert_eq!(moments.len(), self.num_moments(), "its own moments");
        let (keep, add) = (self.momentum, 1.0 - self.momentum);
        match (self.rule, moments) {
            (FederatedServer::Average, _) => {
                for (weight, change) in weights.iter_mut().zip(change) {
                    *weight += self.lr * change;
                }
            }
            (FederatedServer::Momentum, [velocity]) => {
                for ((weight, change), velocity) in weights.iter_mut().zip(change).zip(velocity) {
                    *velocity = keep * *velocity + change;
                    *weight += self.lr * *velocity;
                }
            }
            (rule, [first, second]) => {
                for (((weight, change), m), v) in
                    weights.iter_mut().zip(change).zip(first).zip(second)
                {
                    let square = change * change;
                    *m = keep * *m + add * change;
                    *v = if rule == FederatedServer::Adam {
                        self.second * *v + (1.0 - self.second) * square
                    } else {
                        *v - (1.0 - self.second) * square * sign(*v - square)
                    };
                    *weight += self.lr * *m / (v.sqrt() + self.tau);
                }
            }
            _ => unreachable!("the moments match the rule"),
        }
    }
}

/// Sign as −1, 0 or 1.
fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(rule: FederatedServer, changes: &[f32]) -> f32 {
        let step = ServerOptimizer { rule, lr: 0.1, momentum: 0.9, second: 0.99, tau: 0.1 };
        let mut moments = vec![vec![0.0; 1]; step.num_moments()];
        if let Some(second) = moments.get_mut(1) {
            second.fill(step.first_second_moment());
        }
        let mut weights = [1.0];
        for change in changes {
            step.step(&[*change], &mut moments, &mut weights);
        }
        weights[0]
    }

    #[test]
    fn every_rule_is_its_formula() {
        let close = |a: f32, b: f64| assert!((f64::from(a) - b).abs() < 1e-6, "{a} {b}");
        close(steps(FederatedServer::Average, &[0.5, -0.2]), 1.0 + 0.1 * 0.3);
        close(steps(FederatedServer::Momentum, &[0.5, -0.2]), 1.0 + 0.1 * (0.5 + (0.45 - 0.2)));
        let adam = |v: f64, d: f64| 0.99 * v + 0.01 * d * d;
        let (m1, v1) = (0.05, adam(0.01, 0.5));
        let (m2, v2) = (0.9 * m1 + 0.1 * -0.2, adam(v1, -0.2));
        let step = |m: f64, v: f64| 0.1 * m / (v.sqrt() + 0.1);
        close(steps(FederatedServer::Adam, &[0.5, -0.2]), 1.0 + step(m1, v1) + step(m2, v2));
        // v − Δ² is negative both times: 0.01 against 0.25, then 0.0125 against 0.04.
        let (v1, v2) = (0.01 + 0.01 * 0.25, 0.0125 + 0.01 * 0.04);
        close(steps(FederatedServer::Yogi, &[0.5, -0.2]), 1.0 + step(m1, v1) + step(m2, v2));
    }
}
