//! Adafactor by its definition, in `f64`.

use crate::adafactor::{EPS, MAX_RMS};

/// Updates the moments of the rows and columns of a matrix from its gradients `d`, and replaces
/// those by the direction. The moments of the row of a vector cancel.
pub fn direction(beta2: f64, scale: f64, d: &mut [f64], rows: &mut [f64], columns: &mut [f64]) {
    let (m, n) = (rows.len(), columns.len());
    for g in &mut *d {
        *g *= scale;
    }
    let square = |i: usize, j: usize| d[i * n + j] * d[i * n + j];
    for (i, row) in rows.iter_mut().enumerate() {
        let mean = (0..n).map(|j| square(i, j)).sum::<f64>() / n as f64;
        *row = beta2 * *row + (1.0 - beta2) * (mean + EPS);
    }
    for (j, column) in columns.iter_mut().enumerate() {
        let mean = (0..m).map(|i| square(i, j)).sum::<f64>() / m as f64;
        *column = beta2 * *column + (1.0 - beta2) * (mean + EPS);
    }
    let mean = rows.iter().sum::<f64>() / m as f64;
    for (at, g) in d.iter_mut().enumerate() {
        *g /= (rows[at / n] * columns[at % n] / mean).sqrt();
    }
    let rms = (d.iter().map(|u| u * u).sum::<f64>() / d.len() as f64).sqrt();
    for u in d {
        *u /= (rms / MAX_RMS).max(1.0);
    }
}
