//! RoPE: rotary position embedding (Su et al. 2021) in the layout of the Llama family.
//!
//! Column `i` of a head and column `i + d/2` form a point of the plane, which is rotated by the
//! angle `position · theta^(−2i/d)`. The inner product of a query and a key then depends on the
//! distance of their positions only. The gradient of a rotation is the inverse rotation, so
//! backward sets [`Rotation::inverse`].
//!
//! The cosines and sines are computed once, in `f64`, and rounded to `f32`.

use crate::Cpu;
use crate::math::scalar::{powf, sin_cos};
use crate::reduce::groups::{load, num_groups, store};
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
        assert!(head_dim > 0 && head_dim.is_multiple_of(2), "pairs need an even head dimension");
        let half = head_dim / 2;
        let speeds: Vec<f64> =
            (0..half).map(|i| powf(theta, -((2 * i) as f64) / head_dim as f64)).collect();
        let (sin, cos) = (0..num_positions)
            .flat_map(|position| speeds.iter().map(move |speed| sin_cos(position as f64 * speed)))
            .map(|(sin, cos)| (sin as f32, cos as f32))
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
}

/// Layout of the rows to rotate: rows are tokens, sequence after sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Elements from the start of one row to the start of the next.
    pub row_stride: usize,
    /// Number of heads at the start of each row that are rotated; the rest of the row is unchanged.
    pub num_heads: usize,
    /// Tokens in each sequence.
    pub tokens_per_sequence: usize,
    /// Position of the first token of each sequence.
    pub first_position: usize,
    /// Rotate by the negated angle: the gradient, and the inverse.
    pub inverse: bool,
}

/// Rotates the heads of `rows` in place.
pub fn rotate(cpu: &Cpu, table: &Table, rows: &mut [f32], rotation: &Rotation) {
    let Rotation { row_stride, num_heads, tokens_per_sequence, first_position, .. } = *rotation;
    assert!(row_stride > 0 && rows.len().is_multiple_of(row_stride), "whole rows of {row_stride}");
    assert!(num_heads * table.head_dim <= row_stride, "{num_heads} heads fit a row");
    let num_rows = rows.len() / row_stride;
    assert!(num_rows == 0 || tokens_per_sequence > 0, "a sequence has at least one token");
    let needed = first_position + tokens_per_sequence.min(num_rows);
    let num_positions = table.num_positions;
    assert!(needed <= num_positions, "{needed} positions exceed the table's {num_positions}");
    cpu.for_each_part(rows, ROWS * row_stride, |i, rows| {
        cpu.run(Rotate { table, rotation, first_row: i * ROWS, rows });
    });
}

/// Rows of a task.
const ROWS: usize = 16;

struct Rotate<'a> {
    table: &'a Table,
    rotation: &'a Rotation,
    first_row: usize,
    rows: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (head_dim, half) = (self.table.head_dim, self.table.head_dim / 2);
        let sign = s.splat(if self.rotation.inverse { -1.0 } else { 1.0 });
        for (r, row) in self.rows.chunks_exact_mut(self.rotation.row_stride).enumerate() {
            let token = (self.first_row + r) % self.rotation.tokens_per_sequence;
            let position = self.rotation.first_position + token;
            let cos = &self.table.cos[position * half..][..half];
            let sin = &self.table.sin[position * half..][..half];
            for head in row[..self.rotation.num_heads * head_dim].chunks_exact_mut(head_dim) {
                let (left, right) = head.split_at_mut(half);
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

#[cfg(test)]
mod tests {
    use super::{Rotation, Table, rotate};
    use crate::reduce::testing::{
        assert_close, central_differences, dot, numbers, same_bits_everywhere, wide,
    };
    use crate::{Cpu, Isa, reference};

    const THETA: f64 = 10_000.0;

    fn rotation(num_heads: usize, head_dim: usize) -> Rotation {
        Rotation {
            row_stride: num_heads * head_dim + 3,
            num_heads,
            tokens_per_sequence: 7,
            first_position: 5,
            inverse: false,
        }
    }

    fn rotated(cpu: &Cpu, head_dim: usize, x: &[f32], rotation: &Rotation) -> Vec<f32> {
        let mut x = x.to_vec();
        rotate(cpu, &Table::new(head_dim, 12, THETA), &mut x, rotation);
        x
    }

    #[test]
    fn rows_of_odd_shapes_match_the_reference_in_both_directions() {
        for head_dim in [2, 4, 30, 32, 34, 64, 126, 256] {
            for num_heads in [1, 3] {
                for inverse in [false, true] {
                    let rotation = Rotation { inverse, ..rotation(num_heads, head_dim) };
                    let x = numbers(1, 3 * 7 * rotation.row_stride);
                    let got = same_bits_everywhere(|cpu| rotated(cpu, head_dim, &x, &rotation));
                    let expected = reference::rope::rotate(head_dim, THETA, &wide(&x), &rotation);
                    assert_close(&got, &expected, 1);
                    for (e, (got, x)) in got.iter().zip(&x).enumerate() {
                        let behind_the_heads = e % rotation.row_stride >= num_heads * head_dim;
                        assert!(!behind_the_heads || got.to_bits() == x.to_bits());
                    }
                }
            }
        }
    }

    #[test]
    fn the_inverse_is_the_gradient() {
        let rotation = rotation(2, 6);
        let (x, dy) = (numbers(2, 7 * 15), numbers(3, 7 * 15));
        let inverse = Rotation { inverse: true, ..rotation };
        let got = rotated(&Cpu::single(Isa::detect()), 6, &dy, &inverse);
        let expected = central_differences(&x, |x| {
            dot(&reference::rope::rotate(6, THETA, x, &rotation), &wide(&dy))
        });
        assert_close(&got, &expected, 1);
    }

    #[test]
    fn position_zero_is_unchanged_and_a_row_depends_on_its_position_only() {
        let cpu = Cpu::single(Isa::detect());
        let (table, x) = (Table::new(8, 12, THETA), numbers(4, 4 * 8));
        let all = Rotation {
            row_stride: 8,
            num_heads: 1,
            tokens_per_sequence: 4,
            first_position: 0,
            inverse: false,
        };
        let mut together = x.clone();
        rotate(&cpu, &table, &mut together, &all);
        assert_eq!(together[..8], x[..8]);
        // One row at a time, as in decoding with a key-value cache.
        for position in 0..4 {
            let mut row = x[8 * position..][..8].to_vec();
            let one = Rotation { tokens_per_sequence: 1, first_position: position, ..all };
            rotate(&cpu, &table, &mut row, &one);
            assert_eq!(row, together[8 * position..][..8]);
        }
    }

    #[test]
    fn far_positions_are_rotated_by_the_angle_rounded_once() {
        let table = Table::new(128, 100_000, 500_000.0);
        assert_eq!((table.head_dim(), table.num_positions()), (128, 100_000));
        for position in [1, 4_095, 99_999] {
            for i in 0..64 {
                let angle = position as f64 * 500_000f64.powf(-2.0 * f64::from(i) / 128.0);
                let at = position * 64 + i as usize;
                assert!((f64::from(table.cos[at]) - angle.cos()).abs() < 6.1e-8);
                assert!((f64::from(table.sin[at]) - angle.sin()).abs() < 6.1e-8);
            }
        }
    }

    #[test]
    #[should_panic(expected = "13 positions exceed the table's 12")]
    fn a_sequence_longer_than_the_table_is_refused() {
        let rotation = Rotation { first_position: 6, ..rotation(1, 2) };
        rotated(&Cpu::single(Isa::detect()), 2, &[0.0; 7 * 5], &rotation);
    }
}
