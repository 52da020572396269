//! Fit of the calibrations of all device types to published runs.
//!
//! Every constant starts at its prior ([`Calibration::prior`]: data sheets and measurements of
//! single kernels and messages) and is regularized towards it. First all types move together, by
//! one factor per constant of kernels and links: the achieved share of a peak is similar across
//! types, so a type with few rows borrows from the others. Then each type moves on its own. Host
//! times are specific to a type from the start.
//!
//! The fit is a coordinate descent with shrinking factors that accepts a move if the error over all
//! files falls. Every file has equal weight (less with very few rows). Errors are logarithmic, so
//! twice as long is as wrong as half as long, and clipped, so that runs no constant explains (a
//! broken link, a busy host) do not dominate the mean.

use super::row::PublishedRun;
use crate::calibration::Calibration;
use crate::job::Workload;
use crate::pipeline::Pipelines;
use crate::time::cluster as time;
use std::collections::{BTreeMap, BTreeSet};

/// Bound on the logarithmic error of a row, a factor of about 1.5.
const BOUND: f64 = 0.4;

/// Penalty per factor of e away from the prior, summed over constants: for the common factors, and
/// for those of a type with rows in one file (less with more files).
const PRIOR_WEIGHT_COMMON: f64 = 0.003;
const PRIOR_WEIGHT_TYPE: f64 = 0.03;

/// Most rows per file and type, evenly sampled, and the rows from which on a file has full weight.
const ROWS: usize = 80;
const FULL: f64 = 8.0;

/// Most consecutive moves of a constant in one direction.
const MOVES: usize = 3;

/// Host times and constants measured per type, which have no common factor.
const TYPE_SPECIFIC: [&str; 7] = [
    "matrix_share",
    "launch_us",
    "collective_launch_us",
    "microbatch_us",
    "skew_us",
    "stage_wait_us",
    "step_ms",
];

/// Published runs of one file.
#[derive(Debug, Clone)]
pub struct File {
    /// Name of the file.
    pub name: String,
    /// Runs of the file, of all device types.
    pub runs: Vec<PublishedRun>,
}

/// Rows of one type in one file.
type Part<'a> = Vec<&'a PublishedRun>;
/// Calibrations by device type.
pub type Calibrations = BTreeMap<String, Calibration>;

/// Calibrations of every type that has a prior or rows in the files; a type without rows only takes
/// the common factors.
pub fn fit(files: &[File], rounds: usize, pipelines: &mut Pipelines) -> Calibrations {
    let rows = files.iter().flat_map(|file| &file.runs);
    let types: BTreeSet<&str> = rows.map(|run| run.cluster.device.calibration).collect();
    let parts: BTreeMap<&str, Vec<Part<'_>>> =
        types.into_iter().map(|name| (name, parts(files, name))).collect();
    let known = Calibration::WITH_PRIOR.into_iter().chain(parts.keys().copied());
    let mut prior: BTreeMap<&str, Calibration> =
        known.map(|name| (name, Calibration::prior(name))).collect();
    let common_factors = common_factors(&parts, &prior, rounds, pipelines);
    for calibration in prior.values_mut() {
        *calibration = scaled(calibration, &common_factors);
    }
    let mut all = Calibrations::new();
    for (name, start) in prior {
        let mut own_factors = vec![1.0; common_factors.len()];
        if let Some(parts) = parts.get(name) {
            // A single file may be biased; agreement of several files weakens the prior.
            let files: f64 = parts.iter().map(|part| weight(part.len())).sum();
            let prior_weight = PRIOR_WEIGHT_TYPE / files.max(1.0);
            coordinate_descent(&mut own_factors, rounds, |factors| {
                let calibration = scaled(&start, factors);
                mean(parts.iter().map(|part| error(part, &calibration, pipelines)))
                    + prior_weight * distance(factors)
            });
        }
        let source = describe_source(files, name);
        all.insert(name.to_owned(), Calibration { source, ..scaled(&start, &own_factors) });
    }
    all
}

/// One factor per constant, common to all types.
fn common_factors(
    parts: &BTreeMap<&str, Vec<Part<'_>>>,
    prior: &BTreeMap<&str, Calibration>,
    rounds: usize,
    pipelines: &mut Pipelines,
) -> Vec<f64> {
    let mut factors = vec![1.0; names().count()];
    coordinate_descent(&mut factors, rounds, |factors| {
        if names()
            .zip(factors)
            .any(|(name, factor)| TYPE_SPECIFIC.contains(&name) && factor.ln().abs() > 0.0)
        {
            return f64::INFINITY;
        }
        let errors = parts.iter().flat_map(|(name, parts)| {
            let calibration = scaled(&prior[name], factors);
            parts.iter().map(|part| error(part, &calibration, pipelines)).collect::<Vec<_>>()
        });
        mean(errors) + PRIOR_WEIGHT_COMMON * distance(factors)
    });
    factors
}

/// Description of the runs behind a type's calibration.
fn describe_source(files: &[File], name: &str) -> String {
    let has = |file: &&File| file.runs.iter().any(|run| run.cluster.device.calibration == name);
    let names: Vec<&str> = files.iter().filter(has).map(|file| file.name.as_str()).collect();
    if names.is_empty() {
        return "prior, scaled by the factors common to all types".into();
    }
    format!("fitted to {}", names.join(", "))
}

/// Rows of a type with step times, file by file.
fn parts<'a>(files: &'a [File], name: &str) -> Vec<Part<'a>> {
    let of = |file: &'a File| -> Part<'a> {
        let rows: Part<'a> = file
            .runs
            .iter()
            .filter(|run| run.seconds.is_some() && run.cluster.device.calibration == name)
            .collect();
        let every = rows.len().div_ceil(ROWS).max(1);
        rows.into_iter().step_by(every).collect()
    };
    files.iter().map(of).filter(|part| !part.is_empty()).collect()
}

/// Names of the constants, in order.
fn names() -> impl Iterator<Item = &'static str> {
    Calibration::typical().constants().map(|(name, ..)| name).into_iter()
}

/// Constants times factors, within physical bounds.
fn scaled(calibration: &Calibration, factors: &[f64]) -> Calibration {
    let mut scaled = calibration.clone();
    for ((_, value, low, high), factor) in scaled.constants().into_iter().zip(factors) {
        *value = (*value * factor).clamp(low, high);
    }
    scaled
}

/// Distance of the factors from one, in logarithms.
fn distance(factors: &[f64]) -> f64 {
    factors.iter().map(|factor| factor.ln().abs()).sum()
}

/// Mean error of rows, and their weight.
fn error(
    rows: &[&PublishedRun],
    calibration: &Calibration,
    pipelines: &mut Pipelines,
) -> (f64, f64) {
    let errors: Vec<f64> = rows
        .iter()
        .filter_map(|run| {
            let workload = Workload { job: run.job(), calibration, reserve: 0.0 };
            let step = time::step(&workload, pipelines)?;
            Some((step.seconds / run.seconds?).ln().abs().min(BOUND))
        })
        .collect();
    (super::score::mean(&errors).unwrap_or(0.0), weight(errors.len()))
}

/// Weight of a file with this many rows.
fn weight(rows: usize) -> f64 {
    (rows as f64 / FULL).min(1.0)
}

/// Weighted mean.
fn mean(errors: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, weights) =
        errors.fold((0.0, 0.0), |(sum, all), (error, weight)| (sum + error * weight, all + weight));
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// Coordinate descent on the factors with steps that shrink every round.
fn coordinate_descent(factors: &mut [f64], rounds: usize, mut loss: impl FnMut(&[f64]) -> f64) {
    let mut least = loss(factors);
    for round in 0..rounds {
        // From a half down to one percent.
        let done = round as f64 / rounds.max(2) as f64;
        let step = 1.0 + 0.5 * 0.02_f64.powf(done);
        for index in 0..factors.len() {
            for factor in [step, 1.0 / step] {
                let began = factors[index];
                for _ in 0..MOVES {
                    let was = factors[index];
                    factors[index] *= factor;
                    let error = loss(factors);
                    if error >= least - 1e-9 {
                        factors[index] = was;
                        break;
                    }
                    least = error;
                }
                if factors[index].total_cmp(&began).is_ne() {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinate_descent_finds_the_smallest_loss() {
        let mut factors = [1.0, 1.0, 1.0];
        coordinate_descent(&mut factors, 40, |f| {
            (f[0] / 2.0).ln().abs() + (3.0 * f[1]).ln().powi(2)
        });
        assert!((factors[0] - 2.0).abs() < 0.03, "{factors:?}");
        assert!((factors[1] - 1.0 / 3.0).abs() < 0.02, "{factors:?}");
        assert!((factors[2] - 1.0).abs() < 1e-12, "{factors:?}");
    }

    #[test]
    fn without_rows_calibrations_equal_their_priors() {
        for (name, fitted) in fit(&[], 3, &mut Pipelines::default()) {
            let prior = Calibration::prior(&name);
            assert_eq!(Calibration { source: prior.source.clone(), ..fitted }, prior);
        }
    }
}
