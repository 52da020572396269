//! Constants of a type of device, from all its rows together.
//!
//! The fit walks one constant at a time, by factors that shrink, and keeps a move if the error over
//! all files falls. A file counts as one however many rows it has, and an error counts with its
//! logarithm, so that twice as long is as wrong as half as long. Runs that no constant explains
//! (a broken link, a busy host) would pull a mean after them; beyond a bound an error counts as the
//! bound. Constants that no row knows anything about (what it takes to start a kernel, where all
//! models are large) are drawn gently towards what is usual for any device, instead of anywhere.

use super::row::Published;
use crate::calibration::Calibration;
use crate::time::{self, pipeline::Pipelines};

/// Errors beyond a factor of about one and a half count as this.
const BOUND: f64 = 0.4;

/// What a factor of e away from the usual costs, summed over constants.
const PULL: f64 = 0.001;

/// Runs of one file on one type of device.
#[derive(Debug, Clone)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its rows.
    pub runs: Vec<Published>,
    /// How much it counts.
    pub weight: f64,
}

/// The mean error of files under a calibration.
pub fn loss(files: &[File], calibration: &Calibration, pipelines: &mut Pipelines) -> f64 {
    let (mut sum, mut weights) = (0.0, 0.0);
    for file in files {
        let errors: Vec<f64> = file
            .runs
            .iter()
            .filter_map(|run| {
                let step = time::step(&run.job(), calibration, pipelines)?;
                Some((step.seconds / run.seconds?).ln().abs().min(BOUND))
            })
            .collect();
        if let Some(mean) = super::score::mean(&errors) {
            sum += file.weight * mean;
            weights += file.weight;
        }
    }
    let rows = if weights > 0.0 { sum / weights } else { 0.0 };
    rows + PULL * away(calibration)
}

/// How far constants are from what is usual, in factors of e.
fn away(calibration: &Calibration) -> f64 {
    let (mut usual, mut own) = (Calibration::usual(), calibration.clone());
    let pairs = usual.constants().map(|(_, value, ..)| *value);
    own.constants()
        .into_iter()
        .zip(pairs)
        .filter(|((_, value, ..), usual)| **value > 0.0 && *usual > 0.0)
        .map(|((_, value, ..), usual)| (*value / usual).ln().abs())
        .sum()
}

/// Moves the constants towards the smallest error, in so many rounds.
pub fn fit(
    files: &[File],
    start: &Calibration,
    rounds: usize,
    pipelines: &mut Pipelines,
) -> Calibration {
    let mut best = start.clone();
    let mut least = loss(files, &best, pipelines);
    let count = best.constants().len();
    let mut factors = vec![1.5_f64; count];
    for _ in 0..rounds {
        for (index, factor) in factors.iter_mut().enumerate() {
            let mut has_moved = false;
            for by in [*factor, 1.0 / *factor] {
                let mut trial = best.clone();
                {
                    let (_, value, low, high) = &mut trial.constants()[index];
                    **value = (**value * by).clamp(*low, *high);
                }
                let error = loss(files, &trial, pipelines);
                if error < least - 1e-9 {
                    (best, least, has_moved) = (trial, error, true);
                    break;
                }
            }
            *factor =
                if has_moved { factor.powf(1.2).min(3.0) } else { factor.powf(0.6).max(1.002) };
        }
    }
    best
}
