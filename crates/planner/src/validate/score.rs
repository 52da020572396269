//! Prediction errors over the rows of a file.

use super::csv;
use super::reported_memory::reported_memory;
use super::row::{PublishedRun, read};
use crate::calibration::Calibration;
use crate::job::Workload;
use crate::layout::Layout;
use crate::memory::cluster::largest_stage;
use crate::pipeline::Pipelines;
use crate::time::cluster as time;
use serde::Serialize;
use std::collections::BTreeMap;

/// Prediction and measurement of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Identifier of the row.
    pub id: String,
    /// Sweep that the row belongs to.
    pub sweep: String,
    /// Table of the source.
    pub table: String,
    /// Layout in short form.
    pub layout: String,
    /// Measured and predicted seconds.
    pub seconds: Option<(f64, f64)>,
    /// Measured and predicted bytes.
    pub memory: Option<(f64, f64)>,
    /// Whether the run succeeded, and whether it was predicted to fit.
    pub fits: Option<(bool, bool)>,
}

/// Errors of a file, relative to the measurements.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Score {
    /// Name of the file.
    pub file: String,
    /// Number of rows.
    pub rows: usize,
    /// Rows that were predicted.
    pub rows_predicted: usize,
    /// Rows that were not.
    pub rows_skipped: usize,
    /// Reasons for skipping, with their counts.
    pub skipped: BTreeMap<String, usize>,
    /// Mean absolute error of the step time.
    pub step_time_mape: Option<f64>,
    /// Median absolute error of the step time.
    pub step_time_median_error: Option<f64>,
    /// Largest error of the step time.
    pub step_time_worst: Option<f64>,
    /// Mean signed error of the step time: positive where predictions are too long.
    pub step_time_bias: Option<f64>,
    /// Mean absolute error of memory.
    pub memory_mape: Option<f64>,
    /// Median absolute error of memory.
    pub memory_median_error: Option<f64>,
    /// Share of correct out-of-memory predictions.
    pub oom_accuracy: Option<f64>,
    /// Median slowdown from running the layout that was predicted to be fastest.
    pub regret_median: Option<f64>,
    /// Number of sweeps behind `regret_median`.
    pub sweeps: usize,
    /// Mean error of the step time by table of the source, if it has several.
    pub tables: BTreeMap<String, f64>,
    /// Mean error of the step time with calibrations fitted to all files, and to all but this one.
    pub left_out: Option<(f64, f64)>,
    /// Median error of the step time with calibrations fitted to all files, and to all but this
    /// one.
    pub left_out_median: Option<(f64, f64)>,
}

/// Reads the runs of a file: usable runs, skip reasons with counts, number of rows.
pub fn rows(text: &str) -> (Vec<PublishedRun>, BTreeMap<String, usize>, usize) {
    let rows = csv::parse(text);
    let (mut published, mut skipped) = (Vec::new(), BTreeMap::new());
    for row in &rows {
        match read(row) {
            Ok(run) => published.push(run),
            Err(reason) => *skipped.entry(reason).or_insert(0) += 1,
        }
    }
    let fewest = fewest_replicas(&published);
    // More replicas need no more memory per device.
    let ran_with_fewer = |run: &PublishedRun| {
        let least = fewest.get(&shape(run));
        run.ran == Some(false) && least.is_some_and(|least| *least <= run.layout.data)
    };
    let all = published.len();
    published.retain(|run| !ran_with_fewer(run));
    if published.len() < all {
        skipped.insert(
            "failed, but not for memory: the same layout ran with fewer replicas".into(),
            all - published.len(),
        );
    }
    (published, skipped, rows.len())
}

/// Model and layout of a run, whatever its number of replicas.
fn shape(run: &PublishedRun) -> (String, String) {
    let layout = Layout { data: 1, ..run.layout };
    (run.model.name.clone(), format!("{layout:?}"))
}

/// Fewest replicas with which a shape ran.
fn fewest_replicas(runs: &[PublishedRun]) -> BTreeMap<(String, String), u64> {
    let mut fewest = BTreeMap::new();
    for run in runs.iter().filter(|run| run.ran == Some(true)) {
        let least = fewest.entry(shape(run)).or_insert(u64::MAX);
        *least = run.layout.data.min(*least);
    }
    fewest
}

/// Predicts a run; `None` if its device has no calibration.
pub fn predict(
    run: &PublishedRun,
    calibrations: &BTreeMap<String, Calibration>,
    pipelines: &mut Pipelines,
) -> Option<Outcome> {
    let calibration = calibrations.get(run.cluster.device.calibration)?;
    let workload = Workload { job: run.job(), calibration, reserve: 0.0 };
    let held = largest_stage(&workload.job);
    let step = match run.seconds {
        Some(measured) => Some((measured, time::step(&workload, pipelines)?.seconds)),
        None => None,
    };
    Some(Outcome {
        id: run.id.clone(),
        sweep: run.sweep.clone(),
        table: run.table.clone(),
        layout: run.layout.to_string(),
        seconds: step,
        memory: run.memory.map(|measured| (measured, reported_memory(&workload))),
        fits: run.ran.map(|ran| (ran, held.fits(&workload))),
    })
}

/// Errors of a file, row by row and in total.
pub fn score(
    file: &str,
    text: &str,
    calibrations: &BTreeMap<String, Calibration>,
    pipelines: &mut Pipelines,
) -> (Score, Vec<Outcome>) {
    let (published, mut skipped, rows) = rows(text);
    let mut outcomes = Vec::new();
    for run in &published {
        match predict(run, calibrations, pipelines) {
            Some(outcome) => outcomes.push(outcome),
            None => *skipped.entry("its pipeline cannot be built".into()).or_insert(0) += 1,
        }
    }
    (summary(file, rows, skipped, &outcomes), outcomes)
}

fn summary(
    file: &str,
    rows: usize,
    skipped: BTreeMap<String, usize>,
    outcomes: &[Outcome],
) -> Score {
    let signed: Vec<f64> =
        outcomes.iter().filter_map(|o| o.seconds).map(|(was, said)| said / was - 1.0).collect();
    let errors: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
    let memory: Vec<f64> = outcomes
        .iter()
        .filter_map(|outcome| outcome.memory)
        .map(|(was, said)| (said / was - 1.0).abs())
        .collect();
    // A file without failed runs has no out-of-memory accuracy.
    let verdicts: Vec<(bool, bool)> = outcomes.iter().filter_map(|outcome| outcome.fits).collect();
    let has_failures = verdicts.iter().any(|(ran, _)| !ran);
    let right = verdicts.iter().filter(|(ran, fits)| ran == fits).count();
    let regrets = regrets(outcomes);
    Score {
        file: file.to_owned(),
        rows,
        rows_predicted: outcomes.len(),
        rows_skipped: rows - outcomes.len(),
        skipped,
        step_time_mape: mean(&errors),
        step_time_median_error: median(errors.clone()),
        step_time_worst: errors.iter().copied().reduce(f64::max),
        step_time_bias: mean(&signed),
        memory_mape: mean(&memory),
        memory_median_error: median(memory),
        oom_accuracy: has_failures.then(|| right as f64 / verdicts.len() as f64),
        sweeps: regrets.len(),
        regret_median: median(regrets),
        tables: tables(outcomes),
        left_out: None,
        left_out_median: None,
    }
}

/// Mean errors by table, if there are several tables with several rows each.
fn tables(outcomes: &[Outcome]) -> BTreeMap<String, f64> {
    let mut tables: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for outcome in outcomes {
        if let Some((was, said)) = outcome.seconds {
            tables.entry(outcome.table.clone()).or_default().push((said / was - 1.0).abs());
        }
    }
    let rows: usize = tables.values().map(Vec::len).sum();
    if tables.len() < 2 || 2 * tables.len() > rows {
        return BTreeMap::new();
    }
    tables.into_iter().filter_map(|(table, errors)| Some((table, mean(&errors)?))).collect()
}

/// Fewest rows of a sweep for which regret is meaningful.
const SWEEP: usize = 5;

/// Slowdown of each sweep's predicted best layout: among runs that succeeded, preferring those
/// predicted to fit.
fn regrets(outcomes: &[Outcome]) -> Vec<f64> {
    let mut sweeps: BTreeMap<&str, Vec<(bool, f64, f64)>> = BTreeMap::new();
    for outcome in outcomes {
        if let Some((was, said)) = outcome.seconds {
            let is_too_large = outcome.fits.is_some_and(|(_, fits)| !fits);
            sweeps.entry(&outcome.sweep).or_default().push((is_too_large, said, was));
        }
    }
    sweeps
        .into_values()
        .filter(|rows| rows.len() >= SWEEP)
        .map(|rows| {
            let best = rows.iter().map(|(_, _, was)| *was).fold(f64::INFINITY, f64::min);
            let chosen = rows.iter().min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            chosen.map_or(0.0, |(_, _, was)| was / best - 1.0)
        })
        .collect()
}

/// Mean of a non-empty list.
pub fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

/// Median of a non-empty list.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(numbers[middle - 1], numbers[middle])),
        _ => Some(numbers[middle]),
    }
}
