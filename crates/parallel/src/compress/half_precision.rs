//! Half-precision gradients: `bf16` has the range of `f32` and two to three digits, `fp16` three to
//! four digits up to 65,504.
//!
//! Each rank rounds to nearest, and the all-reduce rounds again at every sum. Values below the
//! `fp16` range become zero, which error feedback recovers; values above it become infinite, and
//! the step is skipped. (`precision.wire` instead rounds every sum of the reduction tree on every
//! layout, so that its bits are the same for all.)

use half::slice::HalfFloatSliceExt;
use lockstep_comm::Element;

/// A two-byte float.
pub trait Half: Element + Default {
    /// Rounds to nearest, ties to even.
    fn narrow(values: &[f32], out: &mut [Self]);
    /// Widens exactly.
    fn widen(values: &[Self], out: &mut [f32]);
}

impl<T: Element + Default> Half for T
where
    [T]: HalfFloatSliceExt,
{
    fn narrow(values: &[f32], out: &mut [Self]) {
        out.convert_from_f32_slice(values);
    }

    fn widen(values: &[Self], out: &mut [f32]) {
        values.convert_to_f32_slice(out);
    }
}

/// Rounds values into `message`, and writes them widened to `sent`.
pub fn round<T: Half>(values: &[f32], sent: &mut [f32], message: &mut [T]) {
    T::narrow(values, message);
    T::widen(message, sent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::values;
    use half::{bf16, f16};

    fn worst<T: Half>(values: &[f32]) -> f32 {
        let (mut sent, mut message) = (vec![0.0; values.len()], vec![T::default(); values.len()]);
        round(values, &mut sent, &mut message);
        let error = |(a, b): (&f32, &f32)| ((a - b) / a).abs();
        values.iter().zip(&sent).map(error).fold(0.0, f32::max)
    }

    #[test]
    fn rounding_errors_are_at_most_half_a_unit() {
        let values = values(1000, 6);
        assert!(worst::<bf16>(&values) <= 2.0_f32.powi(-8));
        assert!(worst::<f16>(&values) <= 2.0_f32.powi(-11));
    }
}
