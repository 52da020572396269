//! Quadratic problems with known optima, solved by the engine's optimizers.
//!
//! A quadratic has given curvatures and gradient noise; its optimum is 0. Vectors are `f32`, as the
//! engine's optimizers require.

use crate::description::Param;
use crate::random::Random;
use crate::settings::Settings;
use lockstep_config::{Optim, OptimName, Recipe};
use lockstep_optim::{Clip, Optimizer, Slot, Update};
use lockstep_tensor::math::scalar::powf;
use lockstep_tensor::{Cpu, Isa};

/// The loss 0.5 sum(h x^2) with optimum 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Quadratic {
    /// Curvature h of each dimension.
    pub curvatures: Vec<f64>,
    /// Standard deviation of the gradient noise of one sample, per dimension.
    pub noise: f64,
}

impl Quadratic {
    /// Curvatures from 1 down to 1/condition, evenly spaced on a logarithmic scale.
    pub fn new(dim: usize, condition: f64, noise: f64) -> Self {
        let along = |i: usize| if dim > 1 { i as f64 / (dim as f64 - 1.0) } else { 0.0 };
        let curvatures = (0..dim).map(|i| powf(condition, -along(i))).collect();
        Self { curvatures, noise }
    }

    /// Starting point of every run.
    pub fn start(&self) -> Vec<f32> {
        vec![1.0; self.curvatures.len()]
    }

    /// Loss at `x`.
    pub fn loss(&self, x: &[f32]) -> f64 {
        let along = |(x, curve): (&f32, &f64)| curve * f64::from(*x) * f64::from(*x);
        0.5 * x.iter().zip(&self.curvatures).map(along).sum::<f64>()
    }

    /// Gradient at `x` of a batch; the batch size divides the variance of the noise.
    pub fn gradient(&self, x: &[f32], batch: f64, random: &mut Random) -> Vec<f32> {
        let deviation = self.noise / batch.sqrt();
        let noisy = |(x, curve): (&f32, &f64)| {
            let noise = if deviation > 0.0 { deviation * random.normal() } else { 0.0 };
            (curve * f64::from(*x) + noise) as f32
        };
        x.iter().zip(&self.curvatures).map(noisy).collect()
    }
}

/// Optimizers that experiments offer, by the engine's names.
const OPTIMIZERS: &[&str] = &["sgd", "momentum", "nesterov", "adam"];

/// Parameter that chooses the optimizer; momentum is the engine's default.
pub const OPTIMIZER: Param = Param::choice("optimizer", OPTIMIZERS, "optimizer of the engine");

/// An optimizer of the engine for one vector.
pub struct Stepper {
    optimizer: Optimizer,
    cpu: Cpu,
    count: u64,
}

impl Stepper {
    /// Plain SGD.
    pub fn sgd(dim: usize) -> Self {
        Self::new(OptimName::Sgd, dim)
    }

    /// The optimizer of the settings.
    pub fn of(at: &Settings, dim: usize) -> Self {
        let name = match at.choice("optimizer") {
            "momentum" => OptimName::Momentum,
            "nesterov" => OptimName::Nesterov,
            "adam" => OptimName::Adam,
            _ => OptimName::Sgd,
        };
        Self::new(name, dim)
    }

    fn new(name: OptimName, dim: usize) -> Self {
        let settings = Optim { name, weight_decay: 0.0, ..Recipe::default().optim };
        let (range, grads) = (0..dim, 0..dim);
        let name = "x".to_owned();
        let (tensor, piece, first, shape) = (0, 0, 0, [1, dim]);
        let (decay, matrix) = (false, None);
        let slot =
            Slot { block: 0, name, tensor, piece, range, grads, first, shape, decay, matrix };
        let cpu = Cpu::single(Isa::detect());
        Self { optimizer: Optimizer::new(&settings, &[slot]), cpu, count: 0 }
    }

    /// Takes one step.
    pub fn step(&mut self, x: &mut [f32], lr: f64, gradient: &[f32]) {
        self.count += 1;
        let update = Update { count: self.count, lr, clip: Clip::uniform(1.0) };
        self.optimizer.step_block(&self.cpu, &update, 0, x, gradient);
    }
}

/// Mean of equally long vectors, summed in order.
pub fn mean(vectors: &[Vec<f32>]) -> Vec<f32> {
    let n = vectors.len() as f64;
    let at = |i: usize| vectors.iter().map(|x| f64::from(x[i])).sum::<f64>() / n;
    (0..vectors[0].len()).map(|i| at(i) as f32).collect()
}

/// Root mean square distance of vectors from their mean.
pub fn spread(vectors: &[Vec<f32>], mean: &[f32]) -> f64 {
    let square = |(a, b): (&f32, &f32)| f64::from(a - b) * f64::from(a - b);
    let apart = |x: &Vec<f32>| x.iter().zip(mean).map(square).sum::<f64>();
    (vectors.iter().map(apart).sum::<f64>() / vectors.len() as f64).sqrt()
}

/// Euclidean norm.
pub fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}
