//! Norms on a CUDA device: checks of operands, choice of the kernel.

use crate::cuda::Cuda;
use crate::cuda::commands::KernelArg;
use crate::cuda::launch::{launch, type_code};
use crate::cuda::programs::{Grid, Program, Source};
use crate::device::error::{DeviceError, Result};
use crate::device::layers::{Layers, on_cpu_only};
use crate::device::operands::Norm;
use crate::device::view::{Dtype, View, ViewMut};

/// Most columns of a row that a warp, a block and local memory keep.
const WARP_COLS: usize = 1024;
const BLOCK_COLS: usize = 8192;
const MAX_COLS: usize = 65_536;
/// Most columns whose sums a warp keeps beside them in few registers.
const NARROW_COLS: usize = 768;
/// Rows of a partial sum of the gradients of weights, by warps and by a block.
const PARTIAL_ROWS: [usize; 2] = [64, 32];

/// `Partials` of the kernels of norms.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Partials {
    weight: u64,
    bias: u64,
    rows: u64,
}

// SAFETY: no padding.
unsafe impl KernelArg for Partials {}

/// Checked parameters of a norm: `Norm` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NormOperands {
    weight: u64,
    bias: u64,
    weight_type: i32,
    padding: u32,
    pub(super) rows: u64,
    pub(super) width: u64,
}

// SAFETY: no padding but that which is named.
unsafe impl KernelArg for NormOperands {}

impl NormOperands {
    /// Addresses of means and factors.
    pub(super) const fn stats(&self, stats: u64) -> [u64; 2] {
        [stats, if self.bias == 0 { stats } else { stats + 4 * self.rows }]
    }

    /// Grid of a kernel that reads each row once, and which of `kernels` it is: a row by a warp, a
    /// row by a block, or a row of any width and alignment.
    pub(super) fn kernel(
        &self,
        kernels: [&'static str; 3],
        operands: &[u64],
    ) -> Result<(&'static str, Grid)> {
        let (rows, width) = (self.rows as usize, self.width as usize);
        let mut addresses = [self.weight, self.bias].into_iter().chain(operands.iter().copied());
        let whole = width.is_multiple_of(8) && addresses.all(|address| address.is_multiple_of(16));
        let (kernel, blocks, threads) = match width {
            ..=WARP_COLS if whole => (kernels[0], rows.div_ceil(4), 4 * 32),
            ..=BLOCK_COLS if whole => (kernels[1], rows, width.div_ceil(16).next_multiple_of(32)),
            ..=MAX_COLS => (kernels[2], rows, width.div_ceil(8).next_multiple_of(32).min(512)),
            _ => {
                let reason = format!("rows of {width} columns; at most {MAX_COLS} are supported");
                return Err(DeviceError::Unsupported { operation: "norm", reason });
            }
        };
        Ok((kernel, Grid { blocks: (blocks, 1, 1), threads, shared_bytes: 0 }))
    }
}

impl Cuda {
    pub(super) fn norm_operands(
        &self,
        norm: &Norm<'_>,
        len: usize,
        stats: usize,
    ) -> Result<NormOperands> {
        if norm.adds_one {
            return Err(on_cpu_only("a norm with one plus its weight"));
        }
        let width = norm.width();
        assert!(width > 0 && len.is_multiple_of(width), "whole rows of {width} columns");
        let rows = len / width;
        assert_eq!(stats, norm.stats_len(rows), "statistics of {rows} rows");
        let dtype = norm.weight.dtype();
        let bias = match &norm.bias {
            None => 0,
            Some(bias) => {
                assert_eq!(bias.len(), width, "bias and weight have one shape");
                self.read(bias, dtype)?
            }
        };
        let (weight, weight_type) = (self.read(&norm.weight, dtype)?, type_code(dtype)?);
        let (padding, rows, width) = (0, rows as u64, width as u64);
        Ok(NormOperands { weight, bias, weight_type, padding, rows, width })
    }

    /// Normalises `x`, or `x` plus the residual that is then stored in a sum.
    pub(super) fn run_norm(
        &self,
        norm: &Norm<'_>,
        x: &View<'_>,
        [residual, sum]: [u64; 2],
        y: &ViewMut<'_>,
        stats: &ViewMut<'_>,
    ) -> Result<()> {
        let o = self.norm_operands(norm, x.len(), stats.len())?;
        assert_eq!(y.len(), x.len(), "output and input have one shape");
        let (program, eps) = (Program::new(Source::Norm, x.dtype()), norm.eps);
        let of_sum = [residual, sum].iter().filter(|address| **address != 0).count();
        let bytes = (2 + of_sum) * x.num_bytes() + stats.as_view().num_bytes();
        let (x, y) = (self.read(x, x.dtype())?, self.write(y, x.dtype())?);
        let [mean, rstd] = o.stats(self.write(stats, Dtype::F32)?);
        let kernels = ["norm_forward_warp", "norm_forward_block", "norm_forward_any"];
        let (kernel, grid) = o.kernel(kernels, &[x, residual, sum, y])?;
        self.recorder.moves(bytes);
        launch!(self, program, kernel, grid, o, x, residual, sum, eps, y, mean, rstd)
    }

    /// Adds the gradients of input, weight and bias: in one pass where registers hold the rows.
    pub(super) fn norm_gradients(
        &self,
        norm: Norm<'_>,
        [x, stats, dy]: [View<'_>; 3],
        [dx, dweight, dbias]: [ViewMut<'_>; 3],
    ) -> Result<()> {
        let o = self.norm_operands(&norm, x.len(), stats.len())?;
        assert_eq!([dy.len(), dx.len()], [x.len(); 2], "gradients and input have one shape");
        let (dtype, width) = (x.dtype(), norm.width());
        assert_eq!(dweight.len(), width, "a gradient for each weight");
        assert_eq!(dbias.len(), norm.bias.map_or(0, |bias| bias.len()), "one for each bias");
        let bytes = 4 * x.num_bytes() + stats.num_bytes();
        let operands = [self.read(&x, dtype)?, self.read(&dy, dtype)?, self.write(&dx, dtype)?];
        let by_warp = if width <= NARROW_COLS {
            "norm_and_weight_backward_narrow"
        } else {
            "norm_and_weight_backward_warp"
        };
        let (kernel, mut grid) =
            o.kernel([by_warp, "norm_and_weight_backward_block", ""], &operands)?;
        if kernel.is_empty() {
            self.norm_weight_backward(norm, x, stats, dy, dweight, dbias)?;
            return self.norm_backward(norm, x, stats, dy, dx);
        }
        let [mean, rstd] = o.stats(self.read(&stats, Dtype::F32)?);
        let targets = [self.optional(&dweight)?, self.optional(&dbias)?];
        let partial_rows = PARTIAL_ROWS[usize::from(kernel != by_warp)];
        let chunks = (o.rows as usize).div_ceil(partial_rows);
        grid.blocks = (chunks, 1, 1);
        let [x, dy, dx] = operands;
        self.with_scratch(0, 2 * chunks * width * 4, |weight| {
            let bias = weight + 4 * (chunks * width) as u64;
            let partials = Partials { weight, bias, rows: partial_rows as u64 };
            let program = Program::new(Source::Norm, dtype);
            self.recorder.moves(bytes);
            launch!(self, program, kernel, grid, o, x, mean, rstd, dy, dx, partials)?;
            self.add_partials(dtype, weight, [chunks, width], targets)
        })
    }
}
