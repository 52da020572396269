//! RoPE: rotary position embedding (Su et al. 2021) in the layout of the Llama family.
//!
//! Column `i` of a head and column `i + d/2` form a point of the plane, which is rotated by the
//! angle `position · theta^(−2i/d)`. The inner product of a query and a key then depends on the
//! distance of their positions only. The gradient of a rotation is the inverse rotation, so
//! backward sets [`Rotation::inverse`]. A scaled table may have a common factor on cosines and
//! sines; the gradient then has it as well.
//!
//! The cosines and sines are computed once, in `f64`, and rounded to `f32`.

use crate::Cpu;
use crate::math::scalar::sin_cos;
use crate::reduce::groups::{load, num_groups, store};
use crate::rope_frequencies::Scaling;
use crate::simd::{Kernel, Simd};

/// Cosine and sine of every angle, for positions `0 .. num_positions`.
#[derive(Clone, Debug)]
pub struct Table {
    head_dim: usize,
    num_positions: usize,
    /// Row `p` belongs to position `p`, column `i` to the pair `(i, i + d/2)`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Table {
    /// The angles of heads with `head_dim` columns (an even number) to base `theta`.
    pub fn new(head_dim: usize, num_positions: usize, theta: f64) -> Self {
        Self::scaled(head_dim, num_positions, theta, &Scaling::None)
    }

    /// As [`Self::new`], with scaled frequencies.
    pub fn scaled(head_dim: usize, num_positions: usize, theta: f64, scaling: &Scaling) -> Self {
        assert!(head_dim > 0 && head_dim.is_multiple_of(2), "pairs need an even head dimension");
        let (speeds, factor) = (scaling.frequencies(head_dim, theta), scaling.attention_factor());
        // A factor of one changes no bit.
        let (sin, cos) = (0..num_positions)
            .flat_map(|position| speeds.iter().map(move |speed| sin_cos(position as f64 * speed)))
            .map(|(sin, cos)| ((factor * sin) as f32, (factor * cos) as f32))
            .unzip();
        Self { head_dim, num_positions, cos, sin }
    }

    /// Columns of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Number of positions in the table.
    pub fn num_positions(&self) -> usize {
        self.num_positions
    }

    /// All cosines, position after position, then all sines: the operand of a device.
    pub fn angles(&self) -> Vec<f32> {
        [&self.cos[..], &self.sin].concat()
    }
}

/// Layout of the rows to rotate: rows are tokens, sequence after sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Elements from the start of one row to the start of the next.
    pub row_stride: usize,
    /// Number of heads at the start of each row that are rotated; the rest of the row is unchanged.
    pub num_heads: usize,
    /// Elements from the start of one head to the start of the next: its columns after those of the
    /// table are unchanged (partial rotary positions, GPT-NeoX).
    pub head_stride: usize,
    /// Tokens in each sequence.
    pub tokens_per_sequence: usize,
    /// Position of the first token of each sequence.
    pub first_position: usize,
    /// Rotate by the negated angle: the gradient, and the inverse.
    pub inverse: bool,
}

/// Rotates the heads of `rows` in place.
pub fn rotate(cpu: &Cpu, table: &Table, rows: &mut [f32], rotation: &Rotation) {
    let Table { head_dim, num_positions, ref cos, ref sin } = *table;
    rotation.check(head_dim, num_positions, rows.len());
    let row_stride = rotation.row_stride;
    cpu.for_each_part(rows, ROWS * row_stride, |i, rows| {
        cpu.run(Rotate { head_dim, cos, sin, rotation, first_row: i * ROWS, rows });
    });
}

/// As [`rotate`], by the operand of a device.
pub(crate) fn rotate_by_angles(
    cpu: &Cpu,
    angles: &[f32],
    head_dim: usize,
    rows: &mut [f32],
    rotation: &Rotation,
) {
    let (cos, sin) = angles.split_at(angles.len() / 2);
    rotation.check(head_dim, angles.len() / head_dim, rows.len());
    let row_stride = rotation.row_stride;
    cpu.for_each_part(rows, ROWS * row_stride, |i, rows| {
        cpu.run(Rotate { head_dim, cos, sin, rotation, first_row: i * ROWS, rows });
    });
}

impl Rotation {
    /// Panics when `len` elements are not whole rows that fit the table.
    pub(crate) fn check(&self, head_dim: usize, num_positions: usize, len: usize) {
        let Self { row_stride, num_heads, head_stride, .. } = *self;
        let Self { tokens_per_sequence, first_position, .. } = *self;
        assert!(row_stride > 0 && len.is_multiple_of(row_stride), "whole rows of {row_stride}");
        assert!(head_dim <= head_stride, "{head_dim} columns of a head of {head_stride}");
        assert!(num_heads * head_stride <= row_stride, "{num_heads} heads fit a row");
        let num_rows = len / row_stride;
        assert!(num_rows == 0 || tokens_per_sequence > 0, "a sequence has at least one token");
        let needed = first_position + tokens_per_sequence.min(num_rows);
        assert!(needed <= num_positions, "{needed} positions exceed the table's {num_positions}");
    }
}

/// Rows of a task.
const ROWS: usize = 16;

struct Rotate<'a> {
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    rotation: &'a Rotation,
    first_row: usize,
    rows: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (head_dim, half) = (self.head_dim, self.head_dim / 2);
        let (num_heads, head_stride) = (self.rotation.num_heads, self.rotation.head_stride);
        let sign = s.splat(if self.rotation.inverse { -1.0 } else { 1.0 });
        for (r, row) in self.rows.chunks_exact_mut(self.rotation.row_stride).enumerate() {
            let token = (self.first_row + r) % self.rotation.tokens_per_sequence;
            let position = self.rotation.first_position + token;
            let cos = &self.cos[position * half..][..half];
            let sin = &self.sin[position * half..][..half];
            for head in row[..num_heads * head_stride].chunks_exact_mut(head_stride) {
                let (left, right) = head[..head_dim].split_at_mut(half);
                for i in 0..num_groups(left) {
                    let (x, y) = (load(s, left, i), load(s, right, i));
                    let (cos, sin) = (load(s, cos, i), s.mul(load(s, sin, i), sign));
                    store(s, s.fma(x, cos, s.neg(s.mul(y, sin))), left, i);
                    store(s, s.fma(y, cos, s.mul(x, sin)), right, i);
                }
            }
        }
    }
}
