//! Small synthetic problems: their settings and families.
//!
//! A problem has samples instead of text, each generated from a seed and an index, and no tokens,
//! heads or context: a sequence is one sample.

use super::{Activation, Family};

/// Settings of a small problem.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// Number of training samples.
    pub samples: usize,
    /// Number of validation samples.
    pub held_out: usize,
    /// Seed of the samples; their order follows `train.seed`.
    pub seed: u64,
    /// Number of unknowns (convex problems).
    pub dim: usize,
    /// Largest over smallest curvature (quadratic), or variance of a feature (ridge, logistic).
    pub condition: f64,
    /// Standard deviation of a sample's gradient (quadratic) or target (ridge).
    pub noise: f64,
    /// Weight of the squared norm of the unknowns (ridge, logistic).
    pub l2: f64,
    /// Fraction of non-zero features (ridge, logistic).
    pub density: f64,
    /// Activation function (mlp).
    pub activation: Activation,
}

impl Problem {
    /// Placeholder in a language model.
    pub const NONE: Self = Self {
        samples: 1,
        held_out: 1,
        seed: 0,
        dim: 1,
        condition: 1.0,
        noise: 0.0,
        l2: 0.0,
        density: 1.0,
        activation: Activation::Relu,
    };
}

impl Family {
    /// Language models.
    pub const OF_TEXT: &'static [&'static str] = &["gpt2", "llama"];

    /// Small problems.
    pub const OF_PROBLEMS: &'static [&'static str] = &["mlp", "quadratic", "ridge", "logistic"];

    /// Whether the family is a small problem.
    pub const fn is_problem(self) -> bool {
        match self {
            Self::Gpt2 | Self::Llama => false,
            Self::Mlp | Self::Quadratic | Self::Ridge | Self::Logistic => true,
        }
    }
}
