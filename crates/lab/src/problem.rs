//! Problems whose optimum is known, stepped by the engine's own optimizers.
//!
//! A bowl has given curvatures and noise in its gradients; its optimum is 0. Vectors are `f32`, as
//! in training, because what steps them is the crate that steps models.

use crate::card::Param;
use crate::random::Random;
use crate::settings::Settings;
use lockstep_config::{Optim, OptimName, Recipe};
use lockstep_optim::optimizer::Update;
use lockstep_optim::{Clip, Optimizer, Slot};
use lockstep_tensor::math::scalar::powf;
use lockstep_tensor::{Cpu, Isa};

/// The loss half the sum of curvature times x squared; its optimum is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Bowl {
    /// One for each dimension.
    pub curvatures: Vec<f64>,
    /// Deviation of the noise in each dimension of a gradient of one sample.
    pub noise: f64,
}

impl Bowl {
    /// Curvatures from 1 down to 1/condition, evenly by powers.
    pub fn new(dim: usize, condition: f64, noise: f64) -> Self {
        let along = |i: usize| if dim > 1 { i as f64 / (dim as f64 - 1.0) } else { 0.0 };
        let curvatures = (0..dim).map(|i| powf(condition, -along(i))).collect();
        Self { curvatures, noise }
    }

    /// Where every run begins.
    pub fn start(&self) -> Vec<f32> {
        vec![1.0; self.curvatures.len()]
    }

    /// The loss.
    pub fn loss(&self, x: &[f32]) -> f64 {
        let along = |(x, curve): (&f32, &f64)| curve * f64::from(*x) * f64::from(*x);
        0.5 * x.iter().zip(&self.curvatures).map(along).sum::<f64>()
    }

    /// A gradient at `x` of a batch, whose size divides the variance of the noise.
    pub fn gradient(&self, x: &[f32], batch: f64, random: &mut Random) -> Vec<f32> {
        let deviation = self.noise / batch.sqrt();
        let noisy = |(x, curve): (&f32, &f64)| {
            let noise = if deviation > 0.0 { deviation * random.normal() } else { 0.0 };
            (curve * f64::from(*x) + noise) as f32
        };
        x.iter().zip(&self.curvatures).map(noisy).collect()
    }
}

/// The rules that experiments offer, as the engine calls them.
const RULES: &[&str] = &["sgd", "momentum", "nesterov", "adam"];

/// Which of the engine's optimizers steps; its momentum is the engine's default.
pub const OPTIMIZER: Param = Param::choice("optimizer", RULES, "the engine's rule for steps");

/// An optimizer of the engine with one vector to step.
pub struct Stepper {
    optimizer: Optimizer,
    cpu: Cpu,
    count: u64,
}

impl Stepper {
    /// Plain steps.
    pub fn sgd(dim: usize) -> Self {
        Self::new(OptimName::Sgd, dim)
    }

    /// The rule that the settings name.
    pub fn of(at: &Settings, dim: usize) -> Self {
        let name = match at.word("optimizer") {
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
        let slot =
            Slot { block: 0, name, tensor: 0, piece: 0, range, grads, first: 0, decay: false };
        let cpu = Cpu::single(Isa::detect());
        Self { optimizer: Optimizer::new(&settings, &[slot]), cpu, count: 0 }
    }

    /// One step.
    pub fn step(&mut self, x: &mut [f32], lr: f64, gradient: &[f32]) {
        self.count += 1;
        let update = Update { count: self.count, lr, clip: Clip::uniform(1.0) };
        self.optimizer.step_block(&self.cpu, &update, 0, x, gradient);
    }
}

/// The mean of equally long vectors, added in their order.
pub fn mean(vectors: &[Vec<f32>]) -> Vec<f32> {
    let n = vectors.len() as f64;
    let at = |i: usize| vectors.iter().map(|x| f64::from(x[i])).sum::<f64>() / n;
    (0..vectors[0].len()).map(|i| at(i) as f32).collect()
}

/// The mean square distance of vectors from their mean, as a root.
pub fn spread(vectors: &[Vec<f32>], mean: &[f32]) -> f64 {
    let square = |(a, b): (&f32, &f32)| f64::from(a - b) * f64::from(a - b);
    let apart = |x: &Vec<f32>| x.iter().zip(mean).map(square).sum::<f64>();
    (vectors.iter().map(apart).sum::<f64>() / vectors.len() as f64).sqrt()
}

/// The distance from the origin.
pub fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
}
