//! Operands of operations: matrices, rows of heads, norms, optimizer rules.

use super::view::{View, ViewMut};
use crate::fp8::{Forms, Role};
use crate::lion::LionStep;
use crate::moments::AdamStep;
use crate::schedule_free::ScheduleFreeStep;

/// A matrix to read.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// Stored row i starts at element `i * row_stride`.
    pub data: View<'a>,
    /// Stored rows.
    pub rows: usize,
    /// Stored columns.
    pub cols: usize,
    /// Distance between stored rows.
    pub row_stride: usize,
    /// Whether the operand is the transpose of the stored matrix.
    pub transposed: bool,
    /// Its part in a product in fp8.
    pub role: Role,
    /// The matrix in fp8, where the device has quantised it for several products.
    pub(crate) forms: Option<Forms>,
}

impl<'a> Matrix<'a> {
    /// A dense matrix.
    ///
    /// # Panics
    /// When the view has another length.
    pub fn new(data: View<'a>, rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a dense {rows} x {cols} matrix");
        Self::strided(data, rows, cols, cols)
    }

    /// A matrix whose rows are `row_stride` apart, as a part of a larger one.
    ///
    /// # Panics
    /// When the matrix reaches beyond the view.
    pub fn strided(data: View<'a>, rows: usize, cols: usize, row_stride: usize) -> Self {
        check_rows(data.len(), rows, cols, row_stride);
        let role = Role::Activation;
        Self { data, rows, cols, row_stride, transposed: false, role, forms: None }
    }

    /// The transpose.
    pub fn t(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// The matrix in another role; a new one is an activation.
    pub fn in_role(self, role: Role) -> Self {
        Self { role, ..self }
    }

    /// Rows and columns of the operand.
    pub const fn shape(&self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }
}

/// A matrix to write, each row contiguous.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    /// Row i starts at element `i * row_stride`.
    pub data: ViewMut<'a>,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance between rows.
    pub row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// A dense matrix.
    ///
    /// # Panics
    /// When the view has another length.
    pub fn new(data: ViewMut<'a>, rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a dense {rows} x {cols} matrix");
        Self { data, rows, cols, row_stride: cols }
    }

    /// A matrix whose rows are `row_stride` apart, as a part of a larger one.
    ///
    /// # Panics
    /// When the matrix reaches beyond the view.
    pub fn strided(data: ViewMut<'a>, rows: usize, cols: usize, row_stride: usize) -> Self {
        check_rows(data.len(), rows, cols, row_stride);
        Self { data, rows, cols, row_stride }
    }
}

/// Checks that rows do not overlap and fit.
pub(crate) fn check_rows(len: usize, rows: usize, cols: usize, row_stride: usize) {
    assert!(rows <= 1 || row_stride >= cols, "rows of {cols} elements, {row_stride} apart");
    assert!(
        rows == 0 || (rows - 1) * row_stride + cols <= len,
        "{rows} rows of {cols} elements, {row_stride} apart, in {len} elements"
    );
}

/// Operation on the result of a product before it is stored.
#[derive(Debug)]
pub enum Epilogue<'a> {
    /// None.
    None,
    /// Adds a bias to every row.
    Bias(View<'a>),
    /// Adds a bias to every row, then a matrix.
    Residual {
        /// One value per column, if any.
        bias: Option<View<'a>>,
        /// Dense, of the shape and type of the result.
        residual: View<'a>,
    },
    /// Multiplies by the derivative of GELU.
    GeluBackward {
        /// Dense, of the shape and type of the result: input of the activation.
        before: View<'a>,
    },
    /// Adds a bias to every row, stores that in `before`, and applies GELU.
    BiasGelu {
        /// One value per column.
        bias: View<'a>,
        /// Dense, of the shape of the result: input of the activation, for backward.
        before: ViewMut<'a>,
    },
}

/// A product of one row with a weight, as in token-by-token generation.
#[derive(Clone, Copy, Debug)]
pub struct RowProduct<'a> {
    /// Normalisation of the row before the product, if any; its output is rounded.
    pub norm: Option<Norm<'a>>,
    /// The row.
    pub x: View<'a>,
    /// As many rows as `x` has elements.
    pub weight: Matrix<'a>,
    /// Operation on the result.
    pub epilogue: RowEpilogue<'a>,
}

/// Operation on the result of a product of one row.
#[derive(Clone, Copy, Debug)]
pub enum RowEpilogue<'a> {
    /// None.
    None,
    /// Adds a row of the type of the result.
    Residual(View<'a>),
    /// SwiGLU of the result, a gate and then an up of one width, both rounded.
    SwiGlu,
}

/// Rows of a larger buffer: row r starts at `r * stride`, its head h `h * head_dim` later.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// Elements from the first head of row zero on.
    pub data: View<'a>,
    /// Distance between rows.
    pub stride: usize,
}

/// A normalisation: RMSNorm, or LayerNorm where there is a bias.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Scale of each column.
    pub weight: View<'a>,
    /// Shift of each column: LayerNorm.
    pub bias: Option<View<'a>>,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Whether the scale is one plus the weight: Gemma's RMSNorm.
    pub adds_one: bool,
}

impl Norm<'_> {
    /// Number of columns.
    pub const fn width(&self) -> usize {
        self.weight.len()
    }

    /// Elements of the statistics of `num_rows` rows: the factor of each row, for LayerNorm behind
    /// all means.
    pub const fn stats_len(&self, num_rows: usize) -> usize {
        if self.bias.is_some() { 2 * num_rows } else { num_rows }
    }
}

/// An elementwise activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU in its tanh form.
    Gelu,
    /// GELU by its definition, with the error function.
    GeluErf,
    /// ReLU.
    Relu,
}

/// State buffers that an optimizer's rule has at most.
pub const MAX_STATE_BUFFERS: usize = 3;

/// Update rule of an optimizer on flat buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Plain gradient descent.
    Sgd(Rates),
    /// Momentum, in one state buffer.
    Momentum {
        /// Variant of the update.
        variant: Momentum,
        /// Decay of the buffer.
        mu: f32,
        /// Rates of the step; LARS has its local learning rate here.
        rates: Rates,
    },
    /// Adam with decay in the gradient; both moments are state.
    Adam(AdamStep),
    /// Adam with decoupled decay.
    AdamW(AdamStep),
    /// Lion; its momentum is state.
    Lion(LionStep),
    /// Schedule-free AdamW; parameters are the points of the gradients, state are the averages, the
    /// fast sequence and second moments.
    ScheduleFree(ScheduleFreeStep),
}

/// Variants of momentum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Momentum {
    /// Heavy ball.
    Plain,
    /// Nesterov.
    Nesterov,
    /// LARS: the learning rate is inside the buffer.
    Lars,
}

/// Scalars of a step of gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Learning rate.
    pub lr: f32,
    /// Weight decay, part of the gradient.
    pub weight_decay: f32,
    /// Factor on every gradient: clipping.
    pub grad_scale: f32,
}
