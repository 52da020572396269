//! Small problems among the models: what they have, and which families they are.
//!
//! A problem is a recipe like any other. It has samples in the place of a text, made from a seed
//! and a number, and no tokens, heads or context: a sequence is one sample.

use crate::recipe::{Activation, DividedBy, Family};

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
    /// What lies between the linear layers (mlp).
    pub activation: Activation,
    /// Which samples a leaf of the gradient sum learns from.
    pub division: Division,
}

/// How samples are divided among the leaves of the gradient sum, and so among workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Division {
    /// By what.
    pub by: DividedBy,
    /// How evenly classes are mixed; the smaller the less (Dirichlet).
    pub alpha: f64,
    /// Parts that classes are mixed for.
    pub parts: usize,
}

impl Division {
    /// Every leaf learns from all samples.
    pub const NONE: Self = Self { by: DividedBy::Nothing, alpha: 1.0, parts: 1 };
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
        activation: Activation::Relu,
        division: Division::NONE,
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
