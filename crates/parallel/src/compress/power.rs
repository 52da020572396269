//! PowerSGD: a matrix travels as the product of two thin ones (Vogels et al. 2019).
//!
//! One step of the power method finds the directions in which a gradient is large. Of the matrix M
//! (rows x columns) of each worker, P = MQ is added up over workers and made orthonormal, then
//! Q' = MᵀP is added up, and P Q'ᵀ takes the place of the sum of all M. Both sums are linear, so
//! they are all-reduced. Q' is where the next step starts from (*warm start*): over steps the
//! method converges although each takes only one multiplication. What is left out is error
//! feedback's.

use lockstep_tensor::random::Key;

/// The shape of a matrix and of what travels of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thin {
    /// Rows of the matrix.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// Columns of the thin ones.
    pub rank: usize,
}

impl Thin {
    /// Elements that travel.
    pub const fn sent(&self) -> usize {
        self.rank * (self.rows + self.cols)
    }

    /// Where the power method starts, `cols` x `rank`.
    pub fn first_q(&self, key: Key) -> Vec<f32> {
        (0..(self.cols * self.rank) as u64).map(|index| key.normal(index)).collect()
    }
}

/// P = MQ, row by row.
pub fn project(thin: Thin, m: &[f32], q: &[f32], p: &mut [f32]) {
    for (row, out) in m.chunks_exact(thin.cols).zip(p.chunks_exact_mut(thin.rank)) {
        out.fill(0.0);
        for (value, q) in row.iter().zip(q.chunks_exact(thin.rank)) {
            out.iter_mut().zip(q).for_each(|(out, q)| *out += value * q);
        }
    }
}

/// Q = MᵀP, rows ascending.
pub fn project_back(thin: Thin, m: &[f32], p: &[f32], q: &mut [f32]) {
    q.fill(0.0);
    for (row, p) in m.chunks_exact(thin.cols).zip(p.chunks_exact(thin.rank)) {
        for (value, q) in row.iter().zip(q.chunks_exact_mut(thin.rank)) {
            q.iter_mut().zip(p).for_each(|(q, p)| *q += value * p);
        }
    }
}

/// M = PQᵀ.
pub fn expand(thin: Thin, p: &[f32], q: &[f32], m: &mut [f32]) {
    for (row, p) in m.chunks_exact_mut(thin.cols).zip(p.chunks_exact(thin.rank)) {
        for (value, q) in row.iter_mut().zip(q.chunks_exact(thin.rank)) {
            *value = p.iter().zip(q).fold(0.0, |sum, (p, q)| sum + p * q);
        }
    }
}

/// Makes the columns of P orthonormal, one after the other (Gram and Schmidt), in `f64`; a column
/// that the others span becomes zero.
pub fn orthonormalize(thin: Thin, p: &mut [f32]) {
    let (rows, rank) = (thin.rows, thin.rank);
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
        // What is not finite stays so, so that it is seen.
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

    /// One step; the matrix that arrives, and the next Q.
    fn step(thin: Thin, m: &[f32], q: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut p = vec![0.0; thin.rows * thin.rank];
        let mut next = vec![0.0; thin.cols * thin.rank];
        let mut out = vec![0.0; m.len()];
        project(thin, m, q, &mut p);
        orthonormalize(thin, &mut p);
        project_back(thin, m, &p, &mut next);
        expand(thin, &p, &next, &mut out);
        (out, next)
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn a_matrix_of_low_rank_arrives_whole() {
        let thin = Thin { rows: 9, cols: 14, rank: 3 };
        let (left, right) = (values(9 * 3, 1), values(14 * 3, 2));
        let mut m = vec![0.0; 9 * 14];
        expand(thin, &left, &right, &mut m);
        let (out, _) = step(thin, &m, &thin.first_q(Key::new(1, "q")));
        assert!(distance(&m, &out) < 1e-5 * distance(&m, &vec![0.0; m.len()]));
    }

    #[test]
    fn a_warm_start_finds_the_largest_directions() {
        // Singular values 8, 4, 2, 1 on a rotated grid: rank two leaves sqrt(2² + 1) behind.
        let (size, rank) = (4, 2);
        let thin = Thin { rows: size, cols: size, rank };
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
        let mut q = thin.first_q(Key::new(3, "q"));
        let mut left = f64::INFINITY;
        for _ in 0..12 {
            let (out, next) = step(thin, &m, &q);
            (left, q) = (distance(&m, &out), next);
        }
        assert!((left - 5.0_f64.sqrt()).abs() < 1e-3, "{left} is left of what must be");
    }
}
