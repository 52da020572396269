//! In how few bytes gradients travel.

use std::fmt;

use super::optim::matches_pattern;

/// How gradients are compressed.
#[derive(Debug, Clone, PartialEq)]
pub struct Compress {
    /// How they are written.
    pub method: CompressMethod,
    /// The share of elements that travel (top-k, random-k, DGC).
    pub ratio: f64,
    /// Steps in which that share falls from a quarter to it (DGC).
    pub ratio_warmup_steps: u64,
    /// Momentum that each worker adds to its gradients before it chooses (DGC).
    pub momentum: f64,
    /// Bits of an element (QSGD); 2 to 8.
    pub bits: u32,
    /// Columns of thin matrices (PowerSGD).
    pub rank: usize,
    /// Tensors that are written in a way of their own; the first that describes one counts.
    pub overrides: Vec<CompressOverride>,
    /// Consecutive workers that add up their gradients as they are; below 2 nobody does.
    pub group_workers: usize,
    /// Steps at the beginning whose gradients travel as they are.
    pub warmup_steps: u64,
    /// Whether what is left out is added to the next gradient.
    pub error_feedback: bool,
    /// Whether a biased method may do without.
    pub allow_biased: bool,
}

/// Tensors that are written in a way of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct CompressOverride {
    /// Names of parameters, with `*` for any letters and `?` for any one.
    pub pattern: String,
    /// Whether they travel as they are.
    pub dense: bool,
    /// Their share of elements that travel.
    pub ratio: Option<f64>,
    /// Their bits of an element.
    pub bits: Option<u32>,
    /// Their columns of thin matrices.
    pub rank: Option<usize>,
}

impl CompressOverride {
    /// Whether a parameter has a name that the pattern describes.
    pub fn matches(&self, param: &str) -> bool {
        matches_pattern(&self.pattern, param)
    }
}

choices! {
    /// How gradients are written on their way.
    CompressMethod {
        /// As they are.
        None = "none",
        /// Two bytes, with the range of four.
        Bf16 = "bf16",
        /// Two bytes, with three to four digits.
        Fp16 = "fp16",
        /// Eight bits, rounded by chance.
        Int8 = "int8",
        /// Two to eight bits, rounded by chance.
        Qsgd = "qsgd",
        /// The largest elements.
        TopK = "top-k",
        /// Elements drawn by chance.
        RandomK = "random-k",
        /// The largest elements of sums with momentum, ever fewer of them.
        Dgc = "dgc",
        /// Signs.
        Sign = "sign",
        /// Signs of Adam's momentum.
        OneBitAdam = "one-bit-adam",
        /// Products of thin matrices.
        PowerSgd = "power-sgd",
    }
}

impl Compress {
    /// Whether anything is compressed.
    pub fn is_on(&self) -> bool {
        self.method != CompressMethod::None
    }

    /// Whether the gradients of a step are.
    pub fn is_on_in(&self, step: u64) -> bool {
        self.is_on() && step >= self.warmup_steps
    }

    /// Whether the method leaves out the same every time, so that it never arrives by itself.
    pub fn is_biased(&self) -> bool {
        use CompressMethod::{Dgc, OneBitAdam, PowerSgd, Sign, TopK};
        matches!(self.method, TopK | Dgc | Sign | OneBitAdam | PowerSgd)
    }

    /// What is said about a tensor in particular.
    pub fn override_for(&self, param: &str) -> Option<&CompressOverride> {
        self.overrides.iter().find(|rule| rule.matches(param))
    }
}
