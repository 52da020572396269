//! Gradients in the order in which they may be used: scaled, unscaled, clipped, stepped.
//!
//! Where products are in `fp16` the loss is multiplied by a scale, and sums of gradients come out
//! as many times too large. Clipping them before they are divided again would cut what is not too
//! long, and stepping with them would take steps that many times too large; both mistakes train,
//! badly. So each stage is a value that only the stage before gives: [`Replica::finish_reduce`]
//! gives [`Scaled`], [`Replica::unscale`] turns it into [`Unscaled`], [`Replica::clip`] takes that
//! and gives the `Clip` without which there is no update.

use crate::replica::Replica;
use lockstep_config::LossScale;
use lockstep_tensor::Cpu;
use lockstep_tensor::convert;
use lockstep_tensor::gemm::Precision;

/// The sums of a step, times the scale of its loss.
#[derive(Debug)]
pub struct Scaled {
    pub(crate) scale: Option<LossScale>,
}

/// The sums of a step as they are.
#[derive(Debug)]
pub struct Unscaled {
    pub(crate) _sums: (),
}

/// Whether `fp16` rounds a number that is not zero to zero: up to half of its smallest one.
pub(crate) fn is_lost(value: f32) -> bool {
    const HALF_OF_SMALLEST: f32 = 1.0 / (1u32 << 25) as f32;
    value != 0.0 && value.abs() <= HALF_OF_SMALLEST
}

impl Replica {
    /// What the loss is multiplied by from the next step on; none where products are not in `fp16`.
    pub fn scale_loss(&mut self, scale: Option<LossScale>) {
        self.loss_scale = scale;
    }

    /// Divides this worker's sums by the scale of the loss, exactly, and counts which of them
    /// `fp16` would have lost at that scale.
    pub fn unscale(&mut self, cpu: &Cpu, Scaled { scale }: Scaled) -> Unscaled {
        let Self { norm, store, .. } = self;
        norm.count_lost(scale.is_some(), |bucket| store.own_grads(bucket));
        if let Some(scale) = scale.filter(|scale| *scale != LossScale::ONE) {
            self.rescale(cpu, 1.0 / scale.factor());
        }
        Unscaled { _sums: () }
    }

    /// Multiplies all sums that this worker steps by.
    pub fn rescale(&mut self, cpu: &Cpu, factor: f32) {
        let store = &mut self.store;
        for bucket in 0..store.buckets.list.len() {
            // What other stages hold, or nobody trains, has no sums.
            if store.trained().grads.list[bucket].len > 0 {
                convert::scale(cpu, store.own_grads_mut(bucket), factor, Precision::F32);
            }
        }
    }

    /// The share of the last step's gradients, over all workers, that `fp16` would have rounded to
    /// zero at its scale; zero where products are not in `fp16`.
    pub fn lost_share(&self) -> f64 {
        self.norm.lost_share()
    }
}

#[cfg(test)]
mod tests {
    use super::is_lost;
    use half::f16;

    #[test]
    fn what_is_lost_is_what_fp16_rounds_to_zero() {
        for exponent in -30..-20 {
            for digit in [1.0, 1.0 + f32::EPSILON, 1.5, 2.0 - f32::EPSILON] {
                for sign in [1.0, -1.0] {
                    let value = sign * digit * 2.0_f32.powi(exponent);
                    let is_zero = f16::from_f32(value).to_f32().abs().to_bits() == 0;
                    assert_eq!(is_lost(value), is_zero, "{value:e}");
                }
            }
        }
        assert!(!is_lost(0.0) && !is_lost(f32::NAN) && !is_lost(f32::INFINITY));
    }
}
