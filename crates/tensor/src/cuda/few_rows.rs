//! Products of few rows, as in token-by-token generation: bound by the bytes of the weight, which
//! our own kernel reads at the memory's bandwidth.

use super::Cuda;
use super::launch::{launch, type_code};
use super::programs::{Grid, Program, Source};
use crate::device::error::Result;
use crate::device::operands::{Matrix, MatrixMut};
use crate::device::view::{Dtype, View};
use crate::gemm::Precision;

/// Most rows of the left operand.
const MAX_ROWS: usize = 8;
/// Columns of the result, a warp each, that a block computes.
const COLUMNS_PER_BLOCK: usize = 8;

impl Cuda {
    /// Sets `c` to the product of few rows and the transpose of a stored matrix, plus a dense
    /// residual of its type, if any; `false` if the operands are others.
    pub(super) fn try_few_rows(
        &self,
        precision: Precision,
        a: &Matrix<'_>,
        b: &Matrix<'_>,
        c: &MatrixMut<'_>,
        residual: Option<&View<'_>>,
    ) -> Result<bool> {
        let dtype = Dtype::of_operands(precision);
        let (m, k) = a.shape();
        let [Some(left), Some(right)] = [a, b].map(|operand| in_type(operand, dtype)) else {
            return Ok(false);
        };
        let is_whole = (k * dtype.size()).is_multiple_of(16);
        if m > MAX_ROWS || a.transposed || !b.transposed || !is_whole {
            return Ok(false);
        }
        let (a_address, b_address) = (self.read(&left, dtype)?, self.read(&right, dtype)?);
        let rows = [a.row_stride, b.row_stride].map(|stride| (stride * dtype.size()) as u64);
        if [a_address, b_address].iter().chain(&rows).any(|at| !at.is_multiple_of(16)) {
            return Ok(false);
        }
        let (c_type, out) = (type_code(c.data.dtype())?, self.write(&c.data, c.data.dtype())?);
        let addend = residual.map_or(Ok(0), |residual| self.read(residual, c.data.dtype()))?;
        let blocks = (c.cols.div_ceil(COLUMNS_PER_BLOCK), 1, 1);
        let grid = Grid { blocks, threads: 32 * COLUMNS_PER_BLOCK, shared_bytes: 0 };
        let [a_row, b_row, c_row, n, k] =
            [a.row_stride, b.row_stride, c.row_stride, c.cols, k].map(|count| count as u64);
        let name = if m == 1 { "one_row" } else { "up_to_eight_rows" };
        let (program, m) = (Program::new(Source::Product, dtype), m as u32);
        launch!(
            self, program, name, grid, a_address, a_row, b_address, b_row, out, c_type, c_row,
            addend, m, n, k,
        )?;
        Ok(true)
    }
}

/// Elements of an operand in a type: its own, or those of its copy.
pub(super) fn in_type<'a>(operand: &Matrix<'a>, dtype: Dtype) -> Option<View<'a>> {
    if operand.data.dtype() == dtype {
        return Some(operand.data);
    }
    operand.data.copy_in(dtype)
}
