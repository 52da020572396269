//! Flags of commands that sample from a model.

use crate::failure::Failure;
use lockstep_trainer::generate::Sampling;

/// How the next token is drawn.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct SamplingFlags {
    /// Sampling temperature; 0 is greedy, 1 is the model's distribution
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    temperature: f64,
    /// Sample from the K most likely tokens; 0 means all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Nucleus sampling: the most likely tokens with this total probability
    #[arg(long, default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f64,
    /// Random seed; the same seed gives the same text
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl SamplingFlags {
    /// Checks the ranges of all flags.
    pub(crate) fn resolve(self) -> Result<Sampling, Failure> {
        let Self { temperature, top_k, top_p, seed } = self;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(Failure::user(format!(
                "--temperature {temperature} must be 0 or more; try 0.8"
            )));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(Failure::user(format!("--top-p {top_p} must be above 0 and at most 1")));
        }
        Ok(Sampling { temperature, top_k, top_p, seed })
    }
}
