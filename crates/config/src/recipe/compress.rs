//! Gradient compression.

use std::fmt;

use super::optim::matches_pattern;

/// Settings of gradient compression.
#[derive(Debug, Clone, PartialEq)]
pub struct Compress {
    /// Compression method.
    pub method: CompressMethod,
    /// Fraction of elements that are sent (top-k, random-k, DGC).
    pub ratio: f64,
    /// Steps over which the fraction falls from 0.25 to `ratio` (DGC).
    pub ratio_warmup_steps: u64,
    /// Momentum correction before the selection (DGC).
    pub momentum: f64,
    /// Bits per element (QSGD); 2 to 8.
    pub bits: u32,
    /// Rank of the factors (PowerSGD).
    pub rank: usize,
    /// Settings for single tensors; the first that matches applies.
    pub overrides: Vec<CompressOverride>,
    /// Size of groups that reduce uncompressed gradients; no groups below 2.
    pub group_workers: usize,
    /// Steps at the beginning with uncompressed gradients.
    pub warmup_steps: u64,
    /// Whether the compression error is added to the next gradient.
    pub error_feedback: bool,
    /// Whether a biased method is allowed without error feedback.
    pub allow_biased: bool,
}

/// Compression settings for the parameters whose names match a pattern.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressOverride {
    /// Pattern of parameter names, with `*` for any characters and `?` for one.
    pub pattern: String,
    /// Whether they are sent uncompressed.
    pub dense: bool,
    /// Fraction of elements that are sent.
    pub ratio: Option<f64>,
    /// Bits per element.
    pub bits: Option<u32>,
    /// Rank of the factors.
    pub rank: Option<usize>,
}

impl CompressOverride {
    /// Whether the pattern matches the name of a parameter.
    pub fn matches(&self, param: &str) -> bool {
        matches_pattern(&self.pattern, param)
    }
}

choices! {
    /// Compression method.
    CompressMethod {
        /// Uncompressed.
        None = "none",
        /// Cast to bfloat16.
        Bf16 = "bf16",
        /// Cast to half precision.
        Fp16 = "fp16",
        /// Eight bits with stochastic rounding.
        Int8 = "int8",
        /// Two to eight bits with stochastic rounding (Alistarh et al. 2017).
        Qsgd = "qsgd",
        /// The elements of largest magnitude.
        TopK = "top-k",
        /// Random elements.
        RandomK = "random-k",
        /// Deep gradient compression: top-k with momentum correction (Lin et al. 2018).
        Dgc = "dgc",
        /// Signs with a scale (Bernstein et al. 2018).
        Sign = "sign",
        /// 1-bit Adam: signs of the momentum (Tang et al. 2021).
        OneBitAdam = "one-bit-adam",
        /// PowerSGD: low-rank factors (Vogels et al. 2019).
        PowerSgd = "power-sgd",
    }
}

impl Compress {
    /// Whether anything is compressed.
    pub fn is_on(&self) -> bool {
        self.method != CompressMethod::None
    }

    /// Whether the gradients of a step are compressed.
    pub fn is_on_in(&self, step: u64) -> bool {
        self.is_on() && step >= self.warmup_steps
    }

    /// Whether the method is biased, so that it needs error feedback to converge.
    pub fn is_biased(&self) -> bool {
        use CompressMethod::{Dgc, OneBitAdam, PowerSgd, Sign, TopK};
        matches!(self.method, TopK | Dgc | Sign | OneBitAdam | PowerSgd)
    }

    /// The override of a parameter, if one matches.
    pub fn override_for(&self, param: &str) -> Option<&CompressOverride> {
        self.overrides.iter().find(|rule| rule.matches(param))
    }
}
