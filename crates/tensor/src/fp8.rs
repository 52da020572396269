//! fp8 with block scales (DeepSeek-V3 2024, section 3.3): the formats, the scales, and a reference.
//!
//! An operand of a product is an outer x k matrix, where sums run over k. Activations and gradients
//! have a scale for each piece of [`BLOCK`] elements of a row along k, weights for each block of
//! [`BLOCK`] x [`BLOCK`]. Activations and weights are e4m3; gradients are e5m2, which has more
//! range and less precision. A scale is the smallest power of two that brings the largest magnitude
//! of its block into the format's range, so scaling is exact. Elements are rounded to bf16, which
//! they are in the memory of accelerators, then to the format, each time to nearest and ties to
//! even. A block with an infinity or NaN has NaN as its scale: the product shows it instead of
//! clamping it.

use crate::gemm::Mat;
use half::bf16;

/// Elements of a piece along the sums, and rows of a block of weights.
pub const BLOCK: usize = 128;

/// Dimensions that are multiples of it have products in fp8 on accelerators.
pub const MULTIPLE: usize = 16;

/// Part of an operand in a layer, which determines its format and its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Input of a layer: e4m3, a scale for each piece of a row.
    Activation,
    /// Weight of a layer: e4m3, a scale for each block.
    Weight,
    /// Gradient of an output: e5m2, a scale for each piece of a row.
    Gradient,
}

/// An eight-bit format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Four bits of exponent, three of mantissa; up to 448.
    E4m3,
    /// Five bits of exponent, two of mantissa; up to 57,344.
    E5m2,
}

/// Addresses of a quantised matrix on an accelerator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) elements: u64,
    pub(crate) scales: u64,
}

/// A matrix quantised once for sums over its columns, and for sums over its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forms {
    /// With its columns contiguous.
    pub(crate) by_rows: Form,
    /// The transpose, with its rows contiguous.
    pub(crate) turned: Form,
}

impl Role {
    /// Format of the elements.
    pub const fn format(self) -> Format {
        match self {
            Self::Activation | Self::Weight => Format::E4m3,
            Self::Gradient => Format::E5m2,
        }
    }

    /// Rows that share a scale.
    pub const fn block_rows(self) -> usize {
        match self {
            Self::Weight => BLOCK,
            Self::Activation | Self::Gradient => 1,
        }
    }
}

impl Format {
    /// Exponent of the largest number, which is 1.75 times two to this power.
    pub const fn max_exponent(self) -> i32 {
        match self {
            Self::E4m3 => 8,
            Self::E5m2 => 15,
        }
    }

    /// Stored bits of the mantissa.
    const fn mantissa_bits(self) -> u32 {
        match self {
            Self::E4m3 => 3,
            Self::E5m2 => 2,
        }
    }

    /// Exponent of the smallest normal number.
    const fn min_exponent(self) -> i32 {
        match self {
            Self::E4m3 => -6,
            Self::E5m2 => -14,
        }
    }

    /// Scale of a block whose largest magnitude has these bits, as an `f32`.
    pub fn scale(self, largest: u32) -> f32 {
        if largest == 0 {
            return 1.0;
        }
        if largest >= f32::INFINITY.to_bits() {
            return f32::NAN;
        }
        let exponent = (largest >> 23).cast_signed() - 127;
        // A mantissa above 1.75 needs the next power of two.
        let above = i32::from(largest & 0x7f_ffff > 0x60_0000);
        power_of_two((exponent + above - self.max_exponent()).max(-126))
    }

    /// The nearest number of the format, ties to even, of one in its range.
    pub fn round(self, x: f32) -> f32 {
        let dropped = 23 - self.mantissa_bits();
        if x.abs() < power_of_two(self.min_exponent()) {
            // The sum has the smallest number of the format as its last bit, so it rounds to it.
            let shift = 1.5 * power_of_two(self.min_exponent() + dropped.cast_signed());
            return ((x + shift) - shift).copysign(x);
        }
        let bits = x.to_bits();
        let half = (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
        f32::from_bits((bits + half) & !((1 << dropped) - 1))
    }
}

/// Two to the power of a normal number's exponent.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The numbers of an outer x k operand after quantisation, dense.
pub(crate) fn round_trip(operand: Mat<'_>, role: Role) -> Vec<f32> {
    let Mat { data, rows, cols, row_stride, col_stride } = operand;
    let (format, block_rows) = (role.format(), role.block_rows());
    let element = |i, j| bf16::from_f32(data.get(i * row_stride + j * col_stride)).to_f32();
    let mut out: Vec<f32> = (0..rows).flat_map(|i| (0..cols).map(move |j| element(i, j))).collect();
    for block in out.chunks_mut(block_rows * cols) {
        for first in (0..cols).step_by(BLOCK) {
            let piece = first..cols.min(first + BLOCK);
            let magnitude = |x: &f32| x.to_bits() & 0x7fff_ffff;
            let pieces = block.chunks(cols).flat_map(|row| &row[piece.clone()]);
            let scale = format.scale(pieces.map(magnitude).max().unwrap_or(0));
            for row in block.chunks_mut(cols) {
                for x in &mut row[piece.clone()] {
                    *x = if scale.is_nan() { scale } else { format.round(*x / scale) * scale };
                }
            }
        }
    }
    out
}
