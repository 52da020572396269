//! Adafactor (Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory
//! Cost") on a whole tensor: factored second moments and the direction of a step.
//!
//! Algorithm 4 of the paper with an absolute learning rate, without a first moment. With g the
//! scaled gradient of a matrix:
//! ```text
//! R_i ← beta2 R_i + (1 − beta2) (mean_j g_ij² + 1e-30)
//! C_j ← beta2 C_j + (1 − beta2) (mean_i g_ij² + 1e-30)
//! u_ij = g_ij / √(R_i C_j / mean(R))
//! d = u / max(1, RMS(u))
//! ```
//! A vector is a matrix of one row: C are its full second moments and R cancels, so it has none.
//!
//! Sums are in `f64`. A row is one chain of additions in each of eight accumulators, a column one
//! chain over the rows: the order follows from the shape alone, never from threads or from the part
//! of the tensor that a rank owns.

use crate::Cpu;
use crate::reduce::ELEMENTS;

/// Added to the means of squares.
pub(crate) const EPS: f64 = 1e-30;
/// Root mean square of a direction, at most.
pub(crate) const MAX_RMS: f64 = 1.0;
/// Columns whose sums one task computes.
const COLUMNS: usize = 128;
/// Accumulators of a row.
const ACCUMULATORS: usize = 8;

/// Scalars of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdafactorStep {
    /// Decay of the second moments in this step.
    pub beta2: f64,
    /// Factor on every gradient; clipping sets it below one.
    pub grad_scale: f32,
}

/// Updates the moments of the `rows` and `columns` of a tensor from its gradients `g`, and replaces
/// those by the direction. A vector has no moments of rows. `sums` has room for a number for each
/// row and each column.
pub fn direction(
    cpu: &Cpu,
    step: AdafactorStep,
    g: &mut [f32],
    [rows, columns]: [&mut [f32]; 2],
    sums: &mut [f64],
) {
    let (num_rows, num_columns) = (rows.len().max(1), columns.len());
    assert_eq!(g.len(), num_rows * num_columns, "moments of the rows and columns of a tensor");
    if g.is_empty() {
        return;
    }
    let AdafactorStep { beta2, grad_scale } = step;
    let (by_row, by_column) = sums[..num_rows + num_columns].split_at_mut(num_rows);
    square_rows(cpu, grad_scale, g, by_row);
    square_columns(cpu, grad_scale, g, by_column);
    let update = |moments: &mut [f32], sums: &mut [f64], len: usize| {
        for (moment, sum) in moments.iter_mut().zip(sums) {
            let mean = *sum / len as f64 + EPS;
            *moment = (beta2 * f64::from(*moment) + (1.0 - beta2) * mean) as f32;
            *sum = f64::from(*moment);
        }
    };
    update(columns, by_column, num_rows);
    if rows.is_empty() {
        by_row[0] = 1.0;
    } else {
        update(rows, by_row, num_columns);
    }
    let mean = by_row.iter().sum::<f64>() / num_rows as f64;
    for row in &mut *by_row {
        *row = (mean / *row).sqrt();
    }
    for column in &mut *by_column {
        *column = 1.0 / column.sqrt();
    }
    let per_task = rows_per_task(num_columns);
    cpu.for_each_part(g, per_task * num_columns, |task, part| {
        for (row, g) in part.chunks_exact_mut(num_columns).enumerate() {
            let row = by_row[task * per_task + row];
            for (g, column) in g.iter_mut().zip(&*by_column) {
                *g = (f64::from(*g * grad_scale) * row * column) as f32;
            }
        }
    });
    square_rows(cpu, 1.0, g, by_row);
    let rms = (by_row.iter().sum::<f64>() / g.len() as f64).sqrt();
    if rms > MAX_RMS {
        let scale = (MAX_RMS / rms) as f32;
        cpu.for_each_part(g, ELEMENTS, |_, part| {
            for g in part {
                *g *= scale;
            }
        });
    }
}

/// Rows of a task, which follow from the shape.
fn rows_per_task(num_columns: usize) -> usize {
    (ELEMENTS / num_columns).max(1)
}

/// The sum of squares of every row.
fn square_rows(cpu: &Cpu, scale: f32, g: &[f32], sums: &mut [f64]) {
    let num_columns = g.len() / sums.len();
    let per_task = rows_per_task(num_columns);
    cpu.for_each_part(sums, per_task, |task, sums| {
        let rows = g[task * per_task * num_columns..].chunks_exact(num_columns);
        for (sum, row) in sums.iter_mut().zip(rows) {
            let mut partial = [0.0_f64; ACCUMULATORS];
            for group in row.chunks(ACCUMULATORS) {
                for (partial, g) in partial.iter_mut().zip(group) {
                    let g = f64::from(*g * scale);
                    *partial += g * g;
                }
            }
            *sum = partial.iter().sum();
        }
    });
}

/// The sum of squares of every column.
fn square_columns(cpu: &Cpu, scale: f32, g: &[f32], sums: &mut [f64]) {
    let num_columns = sums.len();
    cpu.for_each_part(sums, COLUMNS, |task, sums| {
        sums.fill(0.0);
        for row in g.chunks_exact(num_columns) {
            for (sum, g) in sums.iter_mut().zip(&row[task * COLUMNS..]) {
                let g = f64::from(*g * scale);
                *sum += g * g;
            }
        }
    });
}
