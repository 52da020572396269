//! Errors of a file's rows.

use super::csv;
use super::row::{Published, read};
use crate::calibration::Calibration;
use crate::memory;
use crate::time::{self, pipeline::Pipelines};
use serde::Serialize;
use std::collections::BTreeMap;

/// A row and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The row's name.
    pub id: String,
    /// The rows that it competes with.
    pub sweep: String,
    /// The source's table that it stands in.
    pub table: String,
    /// The layout in brief.
    pub layout: String,
    /// Measured and predicted seconds.
    pub seconds: Option<(f64, f64)>,
    /// Measured and predicted bytes.
    pub memory: Option<(f64, f64)>,
    /// Whether it ran, and whether it should have fitted.
    pub fits: Option<(bool, bool)>,
}

/// A file's errors; shares of what was measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Score {
    /// The file.
    pub file: String,
    /// Its rows.
    pub rows: usize,
    /// Those that were predicted.
    pub rows_predicted: usize,
    /// Those that were not.
    pub rows_skipped: usize,
    /// Why not, and how many each.
    pub skipped: BTreeMap<String, usize>,
    /// Mean error of step time, signs left out.
    pub step_time_mape: Option<f64>,
    /// Its median.
    pub step_time_median_error: Option<f64>,
    /// The largest.
    pub step_time_worst: Option<f64>,
    /// Mean error of step time with its sign: above zero where predictions are too long.
    pub step_time_bias: Option<f64>,
    /// Mean error of memory.
    pub memory_mape: Option<f64>,
    /// Half of the rows are nearer.
    pub memory_median_error: Option<f64>,
    /// Share of right verdicts on what fits.
    pub oom_accuracy: Option<f64>,
    /// Median loss by running what was predicted to be quickest.
    pub regret_median: Option<f64>,
    /// Sweeps that this is the median of.
    pub sweeps: usize,
    /// Mean error of step time by table of the source, where it has several.
    pub tables: BTreeMap<String, f64>,
    /// Mean error of step time by constants that were fitted to all files, and without this one.
    pub left_out: Option<(f64, f64)>,
    /// The same of the median.
    pub left_out_median: Option<(f64, f64)>,
}

/// Reads a file's rows.
pub fn rows(text: &str) -> (Vec<Published>, BTreeMap<String, usize>, usize) {
    let rows = csv::parse(text);
    let (mut published, mut skipped) = (Vec::new(), BTreeMap::new());
    for row in &rows {
        match read(row) {
            Ok(run) => published.push(run),
            Err(reason) => *skipped.entry(reason).or_insert(0) += 1,
        }
    }
    let others = failed_otherwise(&published);
    if others.contains(&true) {
        let count = others.iter().filter(|other| **other).count();
        skipped.insert(
            "failed, but not for memory: the same layout ran on fewer copies".into(),
            count,
        );
        let mut others = others.into_iter();
        published.retain(|_| !others.next().unwrap_or(false));
    }
    (published, skipped, rows.len())
}

/// Whether a run failed that cannot have failed for memory: more copies hold no more on a device,
/// and with fewer it ran.
fn failed_otherwise(runs: &[Published]) -> Vec<bool> {
    let shape = |run: &Published| {
        let mut layout = run.layout;
        layout.data = 1;
        (run.model.name.clone(), format!("{layout:?}"))
    };
    let mut fewest: BTreeMap<(String, String), u64> = BTreeMap::new();
    for run in runs.iter().filter(|run| run.ran == Some(true)) {
        let least = fewest.entry(shape(run)).or_insert(u64::MAX);
        *least = run.layout.data.min(*least);
    }
    let ran_with = |run: &Published| fewest.get(&shape(run)).copied();
    runs.iter()
        .map(|run| {
            run.ran == Some(false) && ran_with(run).is_some_and(|least| least <= run.layout.data)
        })
        .collect()
}

/// Predicts a row; nothing if its device has no calibration here.
pub fn predict(
    run: &Published,
    calibrations: &BTreeMap<String, Calibration>,
    pipelines: &mut Pipelines,
) -> Option<Outcome> {
    let calibration = calibrations.get(run.cluster.device.calibration)?;
    let job = run.job();
    let held = memory::fullest(&job);
    let capacity = run.cluster.device.memory_bytes();
    let step = match run.seconds {
        Some(measured) => Some((measured, time::step(&job, calibration, pipelines)?.seconds)),
        None => None,
    };
    Some(Outcome {
        id: run.id.clone(),
        sweep: run.sweep.clone(),
        table: run.table.clone(),
        layout: run.layout.brief(),
        seconds: step,
        memory: run.memory.map(|measured| (measured, memory::reported(&job, calibration))),
        fits: run.ran.map(|ran| (ran, held.needed(calibration) <= capacity)),
    })
}

/// A file's errors, row by row and together.
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
    // A file that knows no run that failed says nothing about verdicts.
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

/// Mean errors by table, if there are several and they are not as many as rows.
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

/// Rows of a sweep from which a choice says something.
const SWEEP: usize = 5;

/// What each sweep loses by the layout that was predicted to be quickest: of those that ran, and
/// of those the ones that are said to fit, if any.
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

/// The mean, of at least one.
pub fn mean(numbers: &[f64]) -> Option<f64> {
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

/// The median, of at least one.
pub fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(numbers[middle - 1], numbers[middle])),
        _ => Some(numbers[middle]),
    }
}
