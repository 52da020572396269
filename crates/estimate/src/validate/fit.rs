//! Constants of types of devices, from published runs of all of them together.
//!
//! Every constant begins at what data sheets and measurements of single kernels and messages say
//! ([`Calibration::before`]), and is drawn back there: a move must pay for itself in rows. First
//! all types move together, by one factor for each constant that is about kernels and links: what
//! kernels reach of a peak is much the same on one type as on the next, so a type with few rows
//! borrows from the others. Then each moves by itself from there. What hosts take is each type's
//! own from the start.
//!
//! The walk goes one constant at a time, by factors that shrink, and keeps a move if the error over
//! all files falls. A file counts as one however many rows it has (less if it has very few), and an
//! error counts with its logarithm, so that twice as long is as wrong as half as long. Runs that no
//! constant explains (a broken link, a busy host) would pull a mean after them; beyond a bound an
//! error counts as the bound.

use super::row::Published;
use crate::calibration::Calibration;
use crate::time::{self, pipeline::Pipelines};
use std::collections::{BTreeMap, BTreeSet};

/// Errors beyond a factor of about one and a half count as this.
const BOUND: f64 = 0.4;

/// What a factor of e away from the beginning costs, summed over constants: for all types together,
/// and for one of them that one file knows (less the more files do).
const PULL_TOGETHER: f64 = 0.003;
const PULL_ALONE: f64 = 0.03;

/// Rows of a file on one type that are looked at, spread over all of them, and those from which on
/// it counts in full.
const ROWS: usize = 80;
const FULL: f64 = 8.0;

/// Steps that a constant goes at once in one direction.
const MOVES: usize = 3;

/// What hosts take, which is no matter of devices, and what was measured for each type: these do
/// not move together.
const ALONE: [&str; 7] = [
    "matrix_share",
    "launch_us",
    "collective_launch_us",
    "microbatch_us",
    "skew_us",
    "stage_wait_us",
    "step_ms",
];

/// Runs of one file.
#[derive(Debug, Clone)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its rows, on whatever devices.
    pub runs: Vec<Published>,
}

/// One type's rows of one file.
type Part<'a> = Vec<&'a Published>;
/// Every type's constants by name.
pub type Calibrations = BTreeMap<String, Calibration>;

/// The constants of every type of which something is known before any run, or that has rows in the
/// files; a type without rows moves with the others.
pub fn fit(files: &[File], rounds: usize, pipelines: &mut Pipelines) -> Calibrations {
    let rows = files.iter().flat_map(|file| &file.runs);
    let types: BTreeSet<&str> = rows.map(|run| run.cluster.device.calibration).collect();
    let parts: BTreeMap<&str, Vec<Part<'_>>> =
        types.into_iter().map(|name| (name, parts(files, name))).collect();
    let known = Calibration::KNOWN_BEFORE.into_iter().chain(parts.keys().copied());
    let mut before: BTreeMap<&str, Calibration> =
        known.map(|name| (name, Calibration::before(name))).collect();
    let together = together(&parts, &before, rounds, pipelines);
    for calibration in before.values_mut() {
        *calibration = moved(calibration, &together);
    }
    let mut all = Calibrations::new();
    for (name, start) in before {
        let mut alone = vec![1.0; together.len()];
        if let Some(parts) = parts.get(name) {
            // What one file alone says of a type may be that file's own; six agree on something.
            let files: f64 = parts.iter().map(|part| weight(part.len())).sum();
            let pull = PULL_ALONE / files.max(1.0);
            walk(&mut alone, rounds, |factors| {
                let calibration = moved(&start, factors);
                mean(parts.iter().map(|part| error(part, &calibration, pipelines)))
                    + pull * away(factors)
            });
        }
        let source = told(files, name);
        all.insert(name.to_owned(), Calibration { source, ..moved(&start, &alone) });
    }
    all
}

/// One factor for each constant, the same for all types.
fn together(
    parts: &BTreeMap<&str, Vec<Part<'_>>>,
    before: &BTreeMap<&str, Calibration>,
    rounds: usize,
    pipelines: &mut Pipelines,
) -> Vec<f64> {
    let mut factors = vec![1.0; names().count()];
    walk(&mut factors, rounds, |factors| {
        if names().zip(factors).any(|(name, by)| ALONE.contains(&name) && by.ln().abs() > 0.0) {
            return f64::INFINITY;
        }
        let errors = parts.iter().flat_map(|(name, parts)| {
            let calibration = moved(&before[name], factors);
            parts.iter().map(|part| error(part, &calibration, pipelines)).collect::<Vec<_>>()
        });
        mean(errors) + PULL_TOGETHER * away(factors)
    });
    factors
}

/// What a type's constants were fitted to.
fn told(files: &[File], name: &str) -> String {
    let has = |file: &&File| file.runs.iter().any(|run| run.cluster.device.calibration == name);
    let names: Vec<&str> = files.iter().filter(has).map(|file| file.name.as_str()).collect();
    if names.is_empty() {
        return "what is known without runs, moved as other types were".into();
    }
    format!("fitted to {}", names.join(", "))
}

/// A type's rows with step times, file by file.
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

/// Names of constants, in their order.
fn names() -> impl Iterator<Item = &'static str> {
    Calibration::usual().constants().map(|(name, ..)| name).into_iter()
}

/// Constants times factors, within the bounds of physics.
fn moved(calibration: &Calibration, factors: &[f64]) -> Calibration {
    let mut moved = calibration.clone();
    for ((_, value, low, high), by) in moved.constants().into_iter().zip(factors) {
        *value = (*value * by).clamp(low, high);
    }
    moved
}

/// How far factors are from one, in factors of e.
fn away(factors: &[f64]) -> f64 {
    factors.iter().map(|factor| factor.ln().abs()).sum()
}

/// The mean error of rows, and how much they count.
fn error(rows: &[&Published], calibration: &Calibration, pipelines: &mut Pipelines) -> (f64, f64) {
    let errors: Vec<f64> = rows
        .iter()
        .filter_map(|run| {
            let step = time::step(&run.job(), calibration, pipelines)?;
            Some((step.seconds / run.seconds?).ln().abs().min(BOUND))
        })
        .collect();
    (super::score::mean(&errors).unwrap_or(0.0), weight(errors.len()))
}

/// How much so many rows of a file count.
fn weight(rows: usize) -> f64 {
    (rows as f64 / FULL).min(1.0)
}

/// The weighted mean.
fn mean(errors: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (sum, weights) =
        errors.fold((0.0, 0.0), |(sum, all), (error, weight)| (sum + error * weight, all + weight));
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// Moves factors towards the smallest loss, one at a time, in so many rounds of ever smaller steps.
fn walk(factors: &mut [f64], rounds: usize, mut loss: impl FnMut(&[f64]) -> f64) {
    let mut least = loss(factors);
    for round in 0..rounds {
        // From a half down to one in a hundred.
        let done = round as f64 / rounds.max(2) as f64;
        let step = 1.0 + 0.5 * 0.02_f64.powf(done);
        for index in 0..factors.len() {
            for by in [step, 1.0 / step] {
                let began = factors[index];
                for _ in 0..MOVES {
                    let was = factors[index];
                    factors[index] *= by;
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
    fn a_walk_finds_the_smallest_loss() {
        let mut factors = [1.0, 1.0, 1.0];
        walk(&mut factors, 40, |f| (f[0] / 2.0).ln().abs() + (3.0 * f[1]).ln().powi(2));
        assert!((factors[0] - 2.0).abs() < 0.03, "{factors:?}");
        assert!((factors[1] - 1.0 / 3.0).abs() < 0.02, "{factors:?}");
        assert!((factors[2] - 1.0).abs() < 1e-12, "{factors:?}");
    }

    #[test]
    fn without_rows_types_are_what_is_known_before() {
        for (name, fitted) in fit(&[], 3, &mut Pipelines::default()) {
            let before = Calibration::before(&name);
            assert_eq!(Calibration { source: before.source.clone(), ..fitted }, before);
        }
    }
}
