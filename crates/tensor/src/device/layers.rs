//! Normalisation, positions, activations, biases, embeddings and dropout.

use super::error::{DeviceError, Result};
use super::operands::{Activation, Norm};
use super::view::{View, ViewMut};
use crate::dropout::DropoutMask;
use crate::rope::Rotation;

/// Layers other than products and attention, forward and backward.
pub trait Layers {
    /// Normalises rows and writes their statistics.
    fn norm_forward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        stats: ViewMut<'_>,
    ) -> Result<()>;

    /// Sets `sum` to `x + residual` and normalises its rows.
    fn add_norm_forward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        residual: View<'_>,
        sum: ViewMut<'_>,
        y: ViewMut<'_>,
        stats: ViewMut<'_>,
    ) -> Result<()>;

    /// Recomputes forward's output from the statistics.
    fn normalize(&self, norm: Norm<'_>, x: View<'_>, stats: View<'_>, y: ViewMut<'_>)
    -> Result<()>;

    /// Adds the gradient of the input.
    fn norm_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()>;

    /// Adds the gradients of weight and bias; an empty target is skipped. The rows may be some of
    /// those that forward normalised: `stats` begins with their means and ends with their factors.
    fn norm_weight_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dweight: ViewMut<'_>,
        dbias: ViewMut<'_>,
    ) -> Result<()>;

    /// Adds the gradients of input, weight and bias of all rows that forward normalised.
    fn norm_and_weight_backward(
        &self,
        norm: Norm<'_>,
        x: View<'_>,
        stats: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
        dweight: ViewMut<'_>,
        dbias: ViewMut<'_>,
    ) -> Result<()>;

    /// Rotates the heads of `rows` in place by [`crate::rope::Table::angles`].
    fn rotate(
        &self,
        angles: View<'_>,
        head_dim: usize,
        rows: ViewMut<'_>,
        rotation: &Rotation,
    ) -> Result<()>;

    /// Sets `act` from rows of `ffn` gates, then `ffn` ups.
    fn swiglu_forward(&self, gate_up: View<'_>, ffn: usize, act: ViewMut<'_>) -> Result<()>;

    /// Sets the gradient of gates and ups, and `act` to forward's output, unless it is empty.
    fn swiglu_backward(
        &self,
        gate_up: View<'_>,
        ffn: usize,
        dact: View<'_>,
        dgate_up: ViewMut<'_>,
        act: ViewMut<'_>,
    ) -> Result<()>;

    /// As [`Self::swiglu_forward`], with GELU of the gates.
    fn geglu_forward(&self, _gate_up: View<'_>, _ffn: usize, _act: ViewMut<'_>) -> Result<()> {
        Err(on_cpu_only("GeGLU"))
    }

    /// Sets the gradient of gates and ups, and `act` to forward's output.
    fn geglu_backward(
        &self,
        _gate_up: View<'_>,
        _ffn: usize,
        _dact: View<'_>,
        _dgate_up: ViewMut<'_>,
        _act: ViewMut<'_>,
    ) -> Result<()> {
        Err(on_cpu_only("GeGLU"))
    }

    /// Caps `x` in place at plus and minus `cap` ([`crate::soft_cap`]).
    fn soft_cap(&self, _cap: f32, _x: ViewMut<'_>) -> Result<()> {
        Err(on_cpu_only("the soft cap"))
    }

    /// Turns the gradient of capped values into that of the values, in place.
    fn soft_cap_backward(&self, _cap: f32, _y: View<'_>, _dy: ViewMut<'_>) -> Result<()> {
        Err(on_cpu_only("the soft cap"))
    }

    /// Sets `y` to the activation of `x`.
    fn activate(&self, function: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()>;

    /// Sets `dx` to the gradient of `x`.
    fn activate_backward(
        &self,
        function: Activation,
        x: View<'_>,
        dy: View<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()>;

    /// Sets `y` to the activation of `x`, and `dx` to the gradient of `x`.
    fn activate_and_backward(
        &self,
        function: Activation,
        x: View<'_>,
        dy: View<'_>,
        y: ViewMut<'_>,
        dx: ViewMut<'_>,
    ) -> Result<()>;

    /// Adds a bias to every row.
    fn bias_add(&self, x: ViewMut<'_>, bias: View<'_>) -> Result<()>;

    /// Adds to each of `sums` the sum of its column: the gradient of a bias.
    fn column_sums(&self, x: View<'_>, sums: ViewMut<'_>) -> Result<()>;

    /// Sets each row to the row of its id in a table that starts at row `first_row`, or to -0 where
    /// that is outside. The table may be `f32` beside other activations.
    fn embedding_forward(
        &self,
        ids: View<'_>,
        table: View<'_>,
        first_row: usize,
        width: usize,
        out: ViewMut<'_>,
    ) -> Result<()>;

    /// Adds the gradient of each token to the table's row of its id, tokens ascending; ids outside
    /// of the table are skipped.
    fn embedding_backward(
        &self,
        ids: View<'_>,
        dout: View<'_>,
        first_row: usize,
        width: usize,
        dtable: ViewMut<'_>,
    ) -> Result<()>;

    /// Adds to row t the table's row `first_position + t % tokens_per_sequence`; the table may be
    /// `f32` beside other activations. Positions restart with each document, if the first position
    /// of its document is given for each row.
    fn add_positions(
        &self,
        table: View<'_>,
        sequences: (usize, Option<View<'_>>),
        first_position: usize,
        width: usize,
        x: ViewMut<'_>,
    ) -> Result<()>;

    /// Adds the gradient of the first rows of the position table, as many as a sequence has tokens.
    fn positions_backward(
        &self,
        dx: View<'_>,
        sequences: (usize, Option<View<'_>>),
        width: usize,
        dtable: ViewMut<'_>,
    ) -> Result<()>;

    /// Zeroes and scales elements by a random mask; the first has the global index
    /// `first_element`.
    fn dropout(&self, mask: &DropoutMask, first_element: u64, x: ViewMut<'_>) -> Result<()>;
}

/// Refusal of an operation that accelerators have no kernel for.
pub(crate) fn on_cpu_only(operation: &'static str) -> DeviceError {
    DeviceError::Unsupported { operation, reason: "runs on the CPU only".to_owned() }
}
