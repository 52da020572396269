//! Number formats of products and gradient communication, and the loss scale.

use super::Dtype;
use std::fmt;

/// Number formats.
#[derive(Debug, Clone, PartialEq)]
pub struct Precision {
    /// Format of matrix products; storage and accumulation are in `f32`.
    pub compute: Dtype,
    /// Format to which every node of the reduction tree is rounded, and in which it is sent.
    pub wire: Dtype,
    /// Loss scale with `fp16` products.
    pub loss_scale: LossScaling,
    /// Initial dynamic scale.
    pub loss_scale_start: LossScale,
    /// Steps without an overflow after which a dynamic scale is doubled.
    pub loss_scale_interval: u64,
}

impl Precision {
    /// Loss scale of the first step; one without scaling.
    pub fn first_scale(&self) -> LossScale {
        match (self.compute, self.loss_scale) {
            (Dtype::F32 | Dtype::Bf16, _) => LossScale::ONE,
            (Dtype::F16, LossScaling::Static(scale)) => scale,
            (Dtype::F16, LossScaling::Dynamic) => self.loss_scale_start,
        }
    }

    /// Whether the loss scale is dynamic.
    pub fn is_dynamic(&self) -> bool {
        self.compute == Dtype::F16 && self.loss_scale == LossScaling::Dynamic
    }
}

/// How the loss scale is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossScaling {
    /// Halved on overflow, doubled after many steps without one.
    Dynamic,
    /// Constant.
    Static(LossScale),
}

/// A loss scale: a power of two from 1 on, so that scaling and unscaling are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LossScale(u8);

impl LossScale {
    /// No scaling.
    pub const ONE: Self = Self(0);
    /// Largest scale, 2^24; beyond it relevant gradients overflow.
    pub const MAX: Self = Self(24);

    /// Two to the power of `exponent`, at most [`Self::MAX`].
    pub const fn of_exponent(exponent: u8) -> Self {
        if exponent < Self::MAX.0 { Self(exponent) } else { Self::MAX }
    }

    /// Binary exponent.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Factor of the loss.
    pub const fn factor(self) -> f32 {
        (1u32 << self.0) as f32
    }

    /// Half the scale; none if it is one.
    pub const fn halved(self) -> Option<Self> {
        match self.0 {
            0 => None,
            exponent => Some(Self(exponent - 1)),
        }
    }

    /// Twice the scale, at most [`Self::MAX`].
    pub const fn doubled(self) -> Self {
        Self::of_exponent(self.0 + 1)
    }
}

impl fmt::Display for LossScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", 1u32 << self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_power_of_two_between_one_and_its_limit() {
        assert_eq!(LossScale::ONE.factor().to_bits(), 1.0_f32.to_bits());
        assert_eq!(LossScale::ONE.halved(), None);
        assert_eq!(LossScale::MAX.doubled(), LossScale::MAX);
        assert_eq!(LossScale::of_exponent(200), LossScale::MAX);
        assert_eq!(LossScale::of_exponent(16).to_string(), "65536");
        assert_eq!(LossScale::of_exponent(3).doubled().halved(), Some(LossScale::of_exponent(3)));
    }
}
