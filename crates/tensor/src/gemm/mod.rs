//! Matrix products with a fixed order of additions.
//!
//! In `f32`, and in `f16` once its operands are widened, element (i, j) is computed block by block
//! over k, in blocks of [`K_BLOCK`]: each block is one chain of fused multiply-adds from zero,
//! ascending; blocks are added to the target in ascending order. This holds for any size, strides,
//! instruction set and number of threads, so a row of a product has the same bits alone or among a
//! thousand, and a shard of a product has the bits of that part of the whole. Products in bf16 have
//! another chain, documented in `tiles`.
//!
//! The blocking follows GotoBLAS (Goto and van de Geijn 2008): as many columns of the right operand
//! as the second-level cache holds are packed into panels, then tasks take a few rows of the left
//! operand each and sweep the panels; then come the next columns, packed into the same memory,
//! which is still in the cache. K-blocks follow each other; rows and columns inside one are
//! independent.
#![expect(unsafe_code, reason = "register tiles read raw pointers; tasks write disjoint tiles")]

mod bf16;
mod blocking;
mod elements;
mod pack;
mod prefetch;
pub(crate) mod tile;
pub(crate) mod tiles;

pub use blocking::K_BLOCK;
pub use elements::{Elements, Precision};

use crate::Cpu;
use crate::simd::{Kernel, Simd};
use blocking::{TILE_COLS, TILE_ROWS};
use prefetch::Prefetch;
use std::mem::MaybeUninit;

/// Elements of packed panels that stay in the second-level cache while rows sweep over them: 1 MiB
/// of the 2 MiB of recent servers. Affects only speed.
const CACHED_ELEMENTS: usize = 256 * 1024;
const _: () = assert!(CACHED_ELEMENTS >= TILE_COLS * K_BLOCK, "a sweep has at least one panel");

/// Whether a product overwrites its target or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrite.
    Set,
    /// Add to the target.
    Add,
}

/// A matrix to read, with any strides.
#[derive(Clone, Copy, Debug)]
pub struct Mat<'a> {
    /// Element (i, j) is at `i * row_stride + j * col_stride`.
    pub data: Elements<'a>,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance between rows.
    pub row_stride: usize,
    /// Distance between columns.
    pub col_stride: usize,
}

impl<'a> Mat<'a> {
    /// A dense matrix of `rows` rows, each contiguous.
    pub fn new(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::of(Elements::F32(data), rows, cols)
    }

    /// A dense matrix of elements of any type.
    pub fn of(data: Elements<'a>, rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a dense {rows} x {cols} matrix");
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// A matrix whose rows are `row_stride` apart, as a part of a larger one.
    pub fn strided(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        Self::strided_of(Elements::F32(data), rows, cols, row_stride)
    }

    /// A matrix of elements of any type whose rows are `row_stride` apart.
    pub fn strided_of(data: Elements<'a>, rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { data, rows, cols, row_stride, col_stride: 1 }.checked()
    }

    /// The transposed view.
    pub fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    fn checked(self) -> Self {
        let end = |count: usize, stride: usize| count.saturating_sub(1) * stride;
        let last = end(self.rows, self.row_stride) + end(self.cols, self.col_stride);
        assert!(
            self.rows * self.cols == 0 || last < self.data.len(),
            "the matrix reaches beyond its data"
        );
        self
    }
}

/// A matrix to write, each row contiguous.
#[derive(Debug)]
pub struct MatMut<'a> {
    /// Element (i, j) is at `i * row_stride + j`.
    pub data: &'a mut [f32],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance between rows.
    pub row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// A dense matrix.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a dense {rows} x {cols} matrix");
        Self { data, rows, cols, row_stride: cols }
    }

    /// A matrix whose rows are `row_stride` apart, as a part of a larger one.
    pub fn strided(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        Self { data, rows, cols, row_stride }
    }
}

/// `c (= or +=) a b` in `f32`.
///
/// # Panics
/// When the shapes do not fit, when k is zero, or inside a task of another product.
pub fn matmul(cpu: &Cpu, a: Mat<'_>, b: Mat<'_>, c: MatMut<'_>, write: Write) {
    product(cpu, Precision::F32, a, b, c, write, None);
}

/// `c (= or +=) a b`, plus `bias` in every row, with operands rounded to `precision`.
///
/// A product in [`Precision::Bf16`] that is added starts from the value in the target, see
/// [`Precision::fuses`]; the bias is always added last.
///
/// # Panics
/// As for [`matmul`], and when the bias does not have one number per column.
#[expect(clippy::needless_pass_by_value, reason = "the target is consumed")]
pub fn product(
    cpu: &Cpu,
    precision: Precision,
    a: Mat<'_>,
    b: Mat<'_>,
    c: MatMut<'_>,
    write: Write,
    bias: Option<&[f32]>,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!(b.rows, k, "the operands share k");
    assert_eq!((c.rows, c.cols), (m, n), "the target is m x n");
    assert!(k > 0, "a product over nothing has no chain");
    assert!(precision != Precision::Fp8, "its caller quantises the operands");
    assert!(bias.is_none_or(|bias| bias.len() == n), "a bias has a number for each column");
    if m == 0 || n == 0 {
        return;
    }
    let (a, b) = (a.checked(), b.checked());
    assert!(c.row_stride >= n, "rows of the target do not overlap");
    assert!((m - 1) * c.row_stride + n <= c.data.len(), "the target holds m x n");

    let target = Target { data: c.data.as_mut_ptr(), row_stride: c.row_stride };
    if precision == Precision::Bf16 {
        return bf16::product(cpu, a, b, target, write, bias);
    }
    let to_f16 = precision == Precision::F16;
    let whole_block = n.next_multiple_of(TILE_COLS) * K_BLOCK.min(k);
    cpu.with_packing_buffer(whole_block.min(CACHED_ELEMENTS), |packed| {
        for p in (0..k).step_by(K_BLOCK) {
            let block = (p, K_BLOCK.min(k - p));
            let write = if p == 0 { write } else { Write::Add };
            one_block(cpu, (a, b, to_f16), block, packed, target, write);
        }
    });
    if let Some(bias) = bias {
        if c.row_stride == n {
            crate::bias::add(cpu, &mut c.data[..m * n], bias);
        } else {
            let rows = c.data.chunks_mut(c.row_stride).take(m);
            rows.for_each(|row| crate::bias::add(cpu, &mut row[..n], bias));
        }
    }
}

/// Adds the products of one block of k to the whole target.
fn one_block(
    cpu: &Cpu,
    (a, b, to_f16): (Mat<'_>, Mat<'_>, bool),
    block: (usize, usize),
    packed: &mut [f32],
    target: Target,
    write: Write,
) {
    let (m, n) = (a.rows, b.cols);
    let num_row_tiles = m.div_ceil(TILE_ROWS);
    // As few sweeps as the cache allows, because each packs the left operand again; all of equal
    // size.
    let panel_len = TILE_COLS * block.1;
    let num_panels = n.div_ceil(TILE_COLS);
    let num_sweeps = num_panels.div_ceil(CACHED_ELEMENTS / panel_len);
    let sweep_panels = num_panels.div_ceil(num_sweeps);
    for first_panel in (0..num_panels).step_by(sweep_panels) {
        let len = sweep_panels.min(num_panels - first_panel) * panel_len;
        cpu.for_each_part(&mut packed[..len], panel_len, |panel, out| {
            cpu.run(PackRight { b, to_f16, block, panel: first_panel + panel, out });
        });
        let packed = &packed[..len];
        let first_col = first_panel * TILE_COLS;
        let cols = (first_col, (sweep_panels * TILE_COLS).min(n - first_col));
        cpu.for_each(num_row_tiles, |row_tile| {
            let rows = (row_tile * TILE_ROWS, TILE_ROWS.min(m - row_tile * TILE_ROWS));
            cpu.run(Sweep { a, to_f16, packed, rows, cols, block, target, write });
        });
    }
}

/// The target of a product, shared by tasks that write different tiles of it.
#[derive(Clone, Copy)]
struct Target {
    data: *mut f32,
    row_stride: usize,
}

// SAFETY: tasks write through it only to tiles that no other task touches (see `Sweep`).
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// Packs one panel of the right operand.
struct PackRight<'a> {
    b: Mat<'a>,
    to_f16: bool,
    block: (usize, usize),
    panel: usize,
    out: &'a mut [f32],
}

impl Kernel for PackRight<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let first = self.panel * TILE_COLS;
        let cols = (first, TILE_COLS.min(self.b.cols - first));
        pack::right(s, self.b, self.block, cols, self.to_f16, self.out);
    }
}

/// A few rows of the left operand times the panels of one sweep.
struct Sweep<'a> {
    a: Mat<'a>,
    to_f16: bool,
    packed: &'a [f32],
    rows: (usize, usize),
    cols: (usize, usize),
    block: (usize, usize),
    target: Target,
    write: Write,
}

impl Kernel for Sweep<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (first_row, m) = self.rows;
        #[expect(
            clippy::large_stack_arrays,
            reason = "25 KiB that must be in the first-level cache"
        )]
        let mut left: pack::LeftPanel = [const { MaybeUninit::uninit() }; pack::LEFT_LEN];
        let strides = pack::left(s, self.a, self.rows, self.block, self.to_f16, &mut left);
        let (first_col, num_cols) = self.cols;
        let panels = self.packed.chunks_exact(TILE_COLS * self.block.1);
        for (index, panel) in panels.enumerate() {
            let j = first_col + index * TILE_COLS;
            let n = TILE_COLS.min(first_col + num_cols - j);
            let c_row = self.target.row_stride;
            // SAFETY: rows first_row..first_row + m and columns j..j + n are inside the target
            // (`matmul` checked m, n and the stride), no other task has this pair of ranges, and
            // `pack::left` has initialised the elements of the panel that are read.
            unsafe {
                let c = self.target.data.add(first_row * c_row + j);
                let next = (first_row + TILE_ROWS, self.block.0);
                let prefetch = Prefetch::new((c, c_row), self.a, next, index);
                let (dims, left) = ((m, n, self.block.1), left.as_ptr().cast::<f32>());
                tile::multiply_into(
                    s, dims, left, strides, panel, TILE_COLS, c, c_row, self.write, prefetch,
                );
            }
        }
    }
}
