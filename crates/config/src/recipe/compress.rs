//! In how few bytes gradients travel.

use std::fmt;

/// How gradients are compressed.
#[derive(Debug, Clone, PartialEq)]
pub struct Compress {
    /// How they are written.
    pub method: CompressMethod,
    /// The share of elements that travel (top-k, random-k).
    pub ratio: f64,
    /// Bits of an element (QSGD); 2 to 8.
    pub bits: u32,
    /// Columns of thin matrices (PowerSGD).
    pub rank: usize,
    /// Steps at the beginning whose gradients travel as they are.
    pub warmup_steps: u64,
    /// Whether what is left out is added to the next gradient.
    pub error_feedback: bool,
    /// Whether a biased method may do without.
    pub force: bool,
}

choices! {
    /// How gradients are written on their way.
    CompressMethod {
        /// As they are.
        None = "none",
        /// Eight bits, rounded by chance.
        Int8 = "int8",
        /// Two to eight bits, rounded by chance.
        Qsgd = "qsgd",
        /// The largest elements.
        TopK = "top-k",
        /// Elements drawn by chance.
        RandomK = "random-k",
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
        use CompressMethod::{OneBitAdam, PowerSgd, Sign, TopK};
        matches!(self.method, TopK | Sign | OneBitAdam | PowerSgd)
    }
}
