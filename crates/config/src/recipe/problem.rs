//! Small problems among the models: what they have, and which families they are.
//!
//! A problem is a recipe like any other. It has samples in the place of a text, made from a seed
//! and a number, and no tokens, heads or context: a sequence is one sample.

use super::{Activation, Family};

/// A small problem: samples that are made on the spot, of which everything is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// Samples to learn from.
    pub samples: usize,
    /// Samples to be judged by.
    pub held_out: usize,
    /// Decides the samples; the order in which they are seen follows `train.seed`.
    pub seed: u64,
    /// Number of unknowns (convex problems).
    pub dim: usize,
    /// Largest over smallest curvature (quadratic), or variance of a feature (ridge, logistic).
    pub condition: f64,
    /// Deviation of a sample's gradient (quadratic) or target (ridge).
    pub noise: f64,
    /// Weight of the squared norm of the unknowns (ridge, logistic).
    pub l2: f64,
    /// The share of features that are not zero (ridge, logistic).
    pub density: f64,
    /// What lies between the linear layers (mlp).
    pub activation: Activation,
}

impl Problem {
    /// What stands in a model that learns from text.
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
    /// The families that learn from text.
    pub const OF_TEXT: &'static [&'static str] = &["gpt2", "llama"];

    /// The families that are small problems.
    pub const OF_PROBLEMS: &'static [&'static str] = &["mlp", "quadratic", "ridge", "logistic"];

    /// Whether it is a small problem and learns from no text.
    pub const fn is_problem(self) -> bool {
        match self {
            Self::Gpt2 | Self::Llama => false,
            Self::Mlp | Self::Quadratic | Self::Ridge | Self::Logistic => true,
        }
    }
}
