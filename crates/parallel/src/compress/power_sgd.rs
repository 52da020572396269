//! PowerSGD (Vogels et al. 2019): a matrix is sent as the product of two low-rank factors.
//!
//! One step of the power method finds the directions in which a gradient is large. With each rank's
//! gradient matrix M (rows x columns), P = MQ is all-reduced and orthonormalized, then Q' = MᵀP is
//! all-reduced, and P Q'ᵀ replaces the sum of all M. Both reductions are linear. The next step
//! starts from Q' (*warm start*), so the method converges over steps although each takes one
//! multiplication. Error feedback adds the remainder to the next gradient.

use lockstep_tensor::random::Key;

/// Shape of a matrix and of its low-rank factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowRank {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Rank of the factors.
    pub rank: usize,
}

impl LowRank {
    /// Elements sent.
    pub const fn sent(&self) -> usize {
        self.rank * (self.rows + self.cols)
    }

    /// Initial Q factor, `cols` x `rank`.
    pub fn first_q(&self, key: Key) -> Vec<f32> {
        (0..(self.cols * self.rank) as u64).map(|index| key.normal(index)).collect()
    }
}

/// P = MQ, row by row.
pub fn project(shape: LowRank, m: &[f32], q: &[f32], p: &mut [f32]) {
    for (row, out) in m.chunks_exact(shape.cols).zip(p.chunks_exact_mut(shape.rank)) {
        out.fill(0.0);
        for (value, q) in row.iter().zip(q.chunks_exact(shape.rank)) {
            out.iter_mut().zip(q).for_each(|(out, q)| *out += value * q);
        }
    }
}

/// Q = MᵀP, rows ascending.
pub fn project_back(shape: LowRank, m: &[f32], p: &[f32], q: &mut [f32]) {
    q.fill(0.0);
    for (row, p) in m.chunks_exact(shape.cols).zip(p.chunks_exact(shape.rank)) {
        for (value, q) in row.iter().zip(q.chunks_exact_mut(shape.rank)) {
            q.iter_mut().zip(p).for_each(|(q, p)| *q += value * p);
        }
    }
}

/// M = PQᵀ.
pub fn expand(shape: LowRank, p: &[f32], q: &[f32], m: &mut [f32]) {
    for (row, p) in m.chunks_exact_mut(shape.cols).zip(p.chunks_exact(shape.rank)) {
        for (value, q) in row.iter_mut().zip(q.chunks_exact(shape.rank)) {
            *value = p.iter().zip(q).fold(0.0, |sum, (p, q)| sum + p * q);
        }
    }
}

/// Orthonormalizes the columns of P by Gram-Schmidt in `f64`; a column in the span of the others
/// becomes zero.
pub fn orthonormalize(shape: LowRank, p: &mut [f32]) {
    let (rows, rank) = (shape.rows, shape.rank);
    let column = |p: &[f32], index: usize| -> Vec<f64> {
        (0..rows).map(|row| f64::from(p[row * rank + index])).collect()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b);
    for index in 0..rank {
        let mut own = column(p, index);
        let before = dot(&own, &own);
        for other in 0..index {
            let other = column(p, other);
            let along = dot(&own, &other);
            own.iter_mut().zip(&other).for_each(|(own, other)| *own -= along * other);
        }
        let left = dot(&own, &own);
        // Non-finite values stay non-finite, so that the health check finds them.
        let scale = if left <= 1e-12 * before { 0.0 } else { 1.0 / left.sqrt() };
        for (row, value) in own.into_iter().enumerate() {
            p[row * rank + index] = (value * scale) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testing::values;

    /// One step; returns the reconstructed matrix and the next Q.
    fn step(shape: LowRank, m: &[f32], q: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut p = vec![0.0; shape.rows * shape.rank];
        let mut next = vec![0.0; shape.cols * shape.rank];
        let mut out = vec![0.0; m.len()];
        project(shape, m, q, &mut p);
        orthonormalize(shape, &mut p);
        project_back(shape, m, &p, &mut next);
        expand(shape, &p, &next, &mut out);
        (out, next)
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn a_matrix_of_low_rank_arrives_whole() {
        let shape = LowRank { rows: 9, cols: 14, rank: 3 };
        let (left, right) = (values(9 * 3, 1), values(14 * 3, 2));
        let mut m = vec![0.0; 9 * 14];
        expand(shape, &left, &right, &mut m);
        let (out, _) = step(shape, &m, &shape.first_q(Key::new(1, "q")));
        assert!(distance(&m, &out) < 1e-5 * distance(&m, &vec![0.0; m.len()]));
    }

    #[test]
    fn a_warm_start_finds_the_largest_directions() {
        // Singular values 8, 4, 2, 1 on a rotated grid: rank two leaves an error of sqrt(2² + 1).
        let (size, rank) = (4, 2);
        let shape = LowRank { rows: size, cols: size, rank };
        let half = 0.5_f32;
        let signs = [[1., 1., 1., 1.], [1., -1., 1., -1.], [1., 1., -1., -1.], [1., -1., -1., 1.]];
        let mut m = vec![0.0; 16];
        for (signs, sigma) in signs.iter().zip([8.0, 4.0, 2.0, 1.0_f32]) {
            for row in 0..4 {
                for col in 0..4 {
                    m[row * 4 + col] += sigma * half * signs[row] * half * signs[col];
                }
            }
        }
        let mut q = shape.first_q(Key::new(3, "q"));
        let mut left = f64::INFINITY;
        for _ in 0..12 {
            let (out, next) = step(shape, &m, &q);
            (left, q) = (distance(&m, &out), next);
        }
        assert!((left - 5.0_f64.sqrt()).abs() < 1e-3, "{left} is not the error of rank two");
    }
}
