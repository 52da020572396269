//! Loss scaling (Micikevicius et al. 2018): the order scaled, unscaled, clipped, stepped, enforced
//! by types.
//!
//! With `fp16` products the loss is multiplied by a scale, so gradient sums are larger by that
//! factor. Clipping them before unscaling would clip gradients within the limit, and stepping with
//! them would take steps too large by the scale; both mistakes train, badly. So each stage is a
//! value that only the previous stage returns: [`crate::Replica::finish_reduce`] returns
//! [`ScaledGradients`], [`crate::Replica::unscale`] turns it into [`UnscaledGradients`],
//! [`crate::Replica::clip`] consumes that and returns the `Clip` that an update requires.

use lockstep_config::LossScale;

/// Gradient sums of a step, multiplied by the loss scale.
#[derive(Debug)]
pub struct ScaledGradients {
    pub(crate) scale: Option<LossScale>,
}

/// Unscaled gradient sums of a step.
#[derive(Debug)]
pub struct UnscaledGradients {
    pub(crate) _sums: (),
}

/// Whether `fp16` rounds a nonzero number to zero: magnitudes up to half of its smallest subnormal.
pub(crate) fn underflows_fp16(value: f32) -> bool {
    const HALF_OF_SMALLEST: f32 = 1.0 / (1u32 << 25) as f32;
    value != 0.0 && value.abs() <= HALF_OF_SMALLEST
}

#[cfg(test)]
mod tests {
    use super::underflows_fp16;
    use half::f16;

    #[test]
    fn underflow_is_what_fp16_rounds_to_zero() {
        for exponent in -30..-20 {
            for digit in [1.0, 1.0 + f32::EPSILON, 1.5, 2.0 - f32::EPSILON] {
                for sign in [1.0, -1.0] {
                    let value = sign * digit * 2.0_f32.powi(exponent);
                    let is_zero = f16::from_f32(value).to_f32().abs().to_bits() == 0;
                    assert_eq!(underflows_fp16(value), is_zero, "{value:e}");
                }
            }
        }
        assert!(
            !underflows_fp16(0.0) && !underflows_fp16(f32::NAN) && !underflows_fp16(f32::INFINITY)
        );
    }
}
