//! Flat buffers: sums, conversions, checks and optimizer steps.

use super::error::Result;
use super::layers::on_cpu_only;
use super::operands::{MAX_STATE_BUFFERS, Rule};
use super::view::{View, ViewMut};
use crate::adamw_8bit::MomentBlock;
use crate::gemm::Precision;
use crate::moments::AdamStep;

/// Operations on flat buffers of parameters, gradients and state.
pub trait FlatBuffers {
    /// `out = a + b`.
    fn add(&self, a: View<'_>, b: View<'_>, out: ViewMut<'_>) -> Result<()>;

    /// `target += source`.
    fn add_assign(&self, target: ViewMut<'_>, source: View<'_>) -> Result<()>;

    /// Converts between float types, rounding to nearest; adds to `errors`, two `u64`, the numbers
    /// of results that are not finite and of those that became zero, unless it is empty.
    fn convert(&self, from: View<'_>, to: ViewMut<'_>, errors: ViewMut<'_>) -> Result<()>;

    /// Multiplies by `factor` and rounds to `precision`, in place; counts as [`Self::convert`].
    fn scale(
        &self,
        x: ViewMut<'_>,
        factor: f32,
        precision: Precision,
        errors: ViewMut<'_>,
    ) -> Result<()>;

    /// The `f64` sum of squares of each [`crate::reduce::SQUARES_CHUNK`] elements of each tensor,
    /// whose last chunk may be shorter. All tensors have one type.
    fn sum_squares(&self, tensors: &[View<'_>], out: ViewMut<'_>) -> Result<()>;

    /// The lowest index whose element is infinite or not a number; waits for it.
    fn first_non_finite(&self, x: View<'_>) -> Result<Option<usize>>;

    /// Updates parameters by an optimizer's rule, with its state (unused buffers are empty), and
    /// writes the rounded parameters to `copy`, unless it is empty.
    fn optimizer_step(
        &self,
        rule: &Rule,
        p: ViewMut<'_>,
        g: View<'_>,
        state: [ViewMut<'_>; MAX_STATE_BUFFERS],
        copy: ViewMut<'_>,
    ) -> Result<()>;

    /// AdamW with moments of eight bits; on the CPU only.
    fn adamw_8bit(
        &self,
        _step: &AdamStep,
        _p: ViewMut<'_>,
        _g: View<'_>,
        _moments: &mut [MomentBlock],
        _copy: ViewMut<'_>,
    ) -> Result<()> {
        Err(on_cpu_only("8-bit AdamW"))
    }

    /// LAMB: updates moments `m` and `v`, and replaces gradients by the direction of the step.
    fn lamb_direction(
        &self,
        step: &AdamStep,
        p: View<'_>,
        g: ViewMut<'_>,
        moments: [ViewMut<'_>; 2],
    ) -> Result<()>;

    /// Muon: updates momentum `m` with decay `mu`, and replaces gradients, scaled by `grad_scale`,
    /// by the direction that is orthogonalised.
    fn muon_direction(
        &self,
        mu: f64,
        grad_scale: f32,
        g: ViewMut<'_>,
        m: ViewMut<'_>,
    ) -> Result<()>;
}
