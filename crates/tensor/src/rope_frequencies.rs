//! Frequencies of rotary positions, plain or scaled for longer sequences, in `f64`.
//!
//! Pair `i` of a head of `d` columns turns by `theta^(−2i/d)` per position. Scaled frequencies
//! follow the formulas of Hugging Face's `transformers` (`modeling_rope_utils.py`): linear (Chen et
//! al. 2023), that of Llama 3.1, and `YaRN` (Peng et al. 2023).

use crate::math::scalar::{ln, powf};
use std::f64::consts::TAU;

/// Scaling of the frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// Every frequency is divided.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// Pairs with few rotations over the original sequence length are divided, those with many
    /// are kept, and between them the two are blended.
    Llama3 {
        /// Divisor.
        factor: f64,
        /// Original sequence length.
        original: f64,
        /// Rotations below which a frequency is divided.
        low: f64,
        /// Rotations above which it is kept.
        high: f64,
    },
    /// As [`Scaling::Llama3`], with a ramp that is linear in the index of the pair; cosines and
    /// sines are multiplied.
    Yarn {
        /// Divisor.
        factor: f64,
        /// Original sequence length.
        original: f64,
        /// Rotations above which a frequency is kept.
        fast: f64,
        /// Rotations below which it is divided.
        slow: f64,
        /// Whether the bounds of the ramp are rounded to whole pairs.
        truncate: bool,
        /// Factor of cosines and sines; none follows from `factor`.
        attention: Option<f64>,
    },
}

impl Scaling {
    /// Frequencies of the pairs of a head with `head_dim` columns to base `theta`.
    pub fn frequencies(&self, head_dim: usize, theta: f64) -> Vec<f64> {
        let plain = (0..head_dim / 2).map(|i| powf(theta, -((2 * i) as f64) / head_dim as f64));
        match *self {
            Self::None => plain.collect(),
            Self::Linear { factor } => plain.map(|frequency| frequency / factor).collect(),
            Self::Llama3 { factor, original, low, high } => plain
                .map(|frequency| {
                    let rotations = original * frequency / TAU;
                    let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - kept) * frequency / factor + kept * frequency
                })
                .collect(),
            Self::Yarn { factor, original, fast, slow, truncate, .. } => {
                let ramp = Ramp::new(head_dim, theta, original, [fast, slow], truncate);
                plain
                    .enumerate()
                    .map(|(i, frequency)| {
                        let divided = ramp.at(i);
                        frequency / factor * divided + frequency * (1.0 - divided)
                    })
                    .collect()
            }
        }
    }

    /// Factor of cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        match *self {
            Self::Yarn { attention: Some(attention), .. } => attention,
            Self::Yarn { factor, .. } if factor > 1.0 => 0.1 * ln(factor) + 1.0,
            _ => 1.0,
        }
    }
}

/// Share of a frequency that is divided, by index of its pair: 0 up to `low`, 1 from `high` on.
struct Ramp {
    low: f64,
    high: f64,
}

impl Ramp {
    fn new(head_dim: usize, theta: f64, original: f64, bounds: [f64; 2], truncate: bool) -> Self {
        let d = head_dim as f64;
        // The index of the pair that makes this many rotations.
        let pair = |rotations: f64| d * ln(original / (rotations * TAU)) / (2.0 * ln(theta));
        let [fast, slow] = bounds.map(pair);
        let [low, high] = if truncate { [fast.floor(), slow.ceil()] } else { [fast, slow] };
        let (low, high) = (low.max(0.0), high.min(d - 1.0));
        // A ramp without length would divide by zero.
        let is_step = high - low == 0.0;
        Self { low, high: if is_step { high + 0.001 } else { high } }
    }

    fn at(&self, pair: usize) -> f64 {
        ((pair as f64 - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}
