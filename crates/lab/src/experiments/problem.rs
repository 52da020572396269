//! A problem whose optimum is known: a bowl with given curvatures, and noise in its gradients.

use crate::random::Random;
use lockstep_tensor::math::scalar::powf;

/// The loss half the sum of curvature times x squared; its optimum is 0.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bowl {
    /// One for each dimension.
    pub(crate) curvatures: Vec<f64>,
    /// Deviation of the noise in each dimension of a gradient of one sample.
    pub(crate) noise: f64,
}

impl Bowl {
    /// Curvatures from 1 down to 1/condition, evenly by powers.
    pub(crate) fn new(dim: usize, condition: f64, noise: f64) -> Self {
        let along = |i: usize| if dim > 1 { i as f64 / (dim as f64 - 1.0) } else { 0.0 };
        let curvatures = (0..dim).map(|i| powf(condition, -along(i))).collect();
        Self { curvatures, noise }
    }

    /// Where every run begins.
    pub(crate) fn start(&self) -> Vec<f64> {
        vec![1.0; self.curvatures.len()]
    }

    /// The loss.
    pub(crate) fn loss(&self, x: &[f64]) -> f64 {
        0.5 * x.iter().zip(&self.curvatures).map(|(x, curve)| curve * x * x).sum::<f64>()
    }

    /// A gradient at `x` of a batch, whose size divides the variance of the noise.
    pub(crate) fn gradient(&self, x: &[f64], batch: f64, random: &mut Random) -> Vec<f64> {
        let deviation = self.noise / batch.sqrt();
        let noisy = |(x, curve): (&f64, &f64)| {
            let noise = if deviation > 0.0 { deviation * random.normal() } else { 0.0 };
            curve * x + noise
        };
        x.iter().zip(&self.curvatures).map(noisy).collect()
    }
}

/// x - lr g.
pub(crate) fn step(x: &mut [f64], lr: f64, gradient: &[f64]) {
    for (x, g) in x.iter_mut().zip(gradient) {
        *x -= lr * g;
    }
}

/// The distance from the origin.
pub(crate) fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}
