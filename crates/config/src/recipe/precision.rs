//! Number formats: what products multiply in, what gradients travel in, and the scale of the loss.

use super::Dtype;
use std::fmt;

/// Number formats.
#[derive(Debug, Clone, PartialEq)]
pub struct Precision {
    /// What products multiply in; everything is kept and summed in `f32`.
    pub compute: Dtype,
    /// What every node of the tree over gradients is rounded to, and so what travels.
    pub wire: Dtype,
    /// What the loss is multiplied by where products are in `fp16`.
    pub loss_scale: LossScaling,
    /// The scale of the first step, where it is dynamic.
    pub loss_scale_start: LossScale,
    /// Steps without an overflow after which a dynamic scale is doubled.
    pub loss_scale_interval: u64,
}

impl Precision {
    /// The scale that the first step has; one where nothing is scaled.
    pub fn first_scale(&self) -> LossScale {
        match (self.compute, self.loss_scale) {
            (Dtype::F32 | Dtype::Bf16, _) => LossScale::ONE,
            (Dtype::F16, LossScaling::Static(scale)) => scale,
            (Dtype::F16, LossScaling::Dynamic) => self.loss_scale_start,
        }
    }

    /// Whether the scale follows what overflows.
    pub fn is_dynamic(&self) -> bool {
        self.compute == Dtype::F16 && self.loss_scale == LossScaling::Dynamic
    }
}

/// How the scale of the loss is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossScaling {
    /// Halved where a gradient overflows, doubled after many steps in which none does.
    Dynamic,
    /// Always this.
    Static(LossScale),
}

/// A power of two from 1 on, so that multiplying by it and dividing again changes no digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LossScale(u8);

impl LossScale {
    /// What changes nothing.
    pub const ONE: Self = Self(0);
    /// The largest: 2^24. Beyond it, gradients that matter overflow and none are gained.
    pub const MAX: Self = Self(24);

    /// Two to the power of `exponent`, or [`Self::MAX`] where that is less.
    pub const fn of_exponent(exponent: u8) -> Self {
        if exponent < Self::MAX.0 { Self(exponent) } else { Self::MAX }
    }

    /// Its exponent of two.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// What the loss is multiplied by.
    pub const fn factor(self) -> f32 {
        (1u32 << self.0) as f32
    }

    /// Half of it, or none where it is one.
    pub const fn halved(self) -> Option<Self> {
        match self.0 {
            0 => None,
            exponent => Some(Self(exponent - 1)),
        }
    }

    /// Twice as much, up to [`Self::MAX`].
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
