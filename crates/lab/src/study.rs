//! Execution of an experiment: all points of its sweep, all seeds, one table.
//!
//! An experiment runs at one point with one random stream. Sweeps, seeds, means and confidence
//! intervals are common to all experiments and implemented here.

use crate::description::{Column, Description, Param};
use crate::error::LabError;
use crate::random::Random;
use crate::settings::{Settings, Value, sweep};
use crate::table::{Cell, Row, Table};
use crate::timeline::Timeline;
use lockstep_tensor::random::Key;
use serde::Serialize;
use std::collections::BTreeMap;

/// An experiment.
pub trait Experiment: Sync {
    /// Its description.
    fn description(&self) -> &'static Description;

    /// Rows of one point of the sweep. Number of rows and their texts depend on the settings only,
    /// not on the random numbers.
    fn run(&self, at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError>;

    /// Findings as sentences; the first is the title of the chart.
    fn findings(&self, table: &Table) -> Vec<String>;

    /// Timeline of one point, for experiments that have one.
    fn timeline(&self, _: &Settings, _: &mut Random) -> Result<Option<Timeline>, LabError> {
        Ok(None)
    }
}

/// Settings, sweeps and seeds of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// Values of parameters that are not swept.
    pub settings: Settings,
    /// Swept parameters and their values; the first varies slowest.
    pub sweeps: Vec<(&'static str, Vec<Value>)>,
    /// Number of seeds.
    pub num_seeds: usize,
    /// First seed.
    pub seed: u64,
}

/// Result of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Name of the experiment.
    pub name: &'static str,
    /// Values of all parameters; for swept parameters, the value without the sweep.
    pub parameters: Settings,
    /// Swept parameters and their values.
    pub sweep: BTreeMap<&'static str, Vec<Value>>,
    /// Number of seeds that every row averages.
    pub seeds: usize,
    /// First seed.
    pub seed: u64,
    /// Columns of the table.
    pub columns: Vec<Column>,
    /// The table.
    pub rows: Table,
    /// Findings.
    pub findings: Vec<String>,
}

impl Report {
    /// Text of all parameters that were not swept, needed to reproduce the table.
    pub fn setting(&self, description: &Description) -> String {
        let fixed = description.params.iter().filter(|param| !self.sweep.contains_key(param.key));
        let text = |param: &Param| match self.parameters.value(param.key) {
            Value::Number(number) => format!("{} = {}", param.key, param.unit.show(*number)),
            Value::Text(text) => format!("{} = {text}", param.key),
        };
        let mut texts: Vec<String> = fixed.map(text).collect();
        if self.seeds > 1 {
            texts.push(format!("seeds = {}", self.seeds));
        }
        texts.join(", ")
    }
}

/// Maximum number of runs of a study.
const MAX_RUNS: usize = 100_000;

impl Study {
    /// An experiment with its defaults.
    pub fn new(description: &Description) -> Self {
        let (key, values) = description.sweep;
        let values = values.iter().map(|value| Value::Number(*value)).collect();
        Self {
            settings: Settings::defaults(description),
            sweeps: vec![(key, values)],
            num_seeds: 1,
            seed: 0,
        }
    }

    /// Parameters and sweeps as on the command line. Setting a parameter removes it from the
    /// default sweep; any sweep replaces the default sweep.
    pub fn with(
        description: &Description,
        params: &[String],
        sweeps: &[String],
    ) -> Result<Self, LabError> {
        let mut study = Self::new(description);
        for text in params {
            study.settings.assign(description, text)?;
            let key = text.split_once('=').map_or("", |(key, _)| key.trim());
            study.sweeps.retain(|(swept, _)| *swept != key);
        }
        if !sweeps.is_empty() {
            study.sweeps =
                sweeps.iter().map(|text| sweep(description, text)).collect::<Result<_, _>>()?;
        }
        Ok(study)
    }

    /// Runs all points and seeds.
    pub fn run(&self, experiment: &dyn Experiment) -> Result<Report, LabError> {
        let description = experiment.description();
        let runs = self.sweeps.iter().map(|(_, values)| values.len()).product::<usize>();
        if runs.saturating_mul(self.num_seeds) > MAX_RUNS {
            let runs = runs.saturating_mul(self.num_seeds);
            return Err(LabError::TooMany { runs, max: MAX_RUNS });
        }
        let mut table = Table::new(self.columns(description), self.sweeps.len());
        for (point, settings) in self.points() {
            let by_seed = (0..self.num_seeds)
                .map(|seed| {
                    let key = Key::new(self.seed + seed as u64, description.name);
                    experiment.run(&settings, &mut Random::new(key))
                })
                .collect::<Result<Vec<_>, _>>()?;
            for index in 0..by_seed[0].len() {
                let (mut row, mut spread) = (point.clone(), vec![0.0; point.len()]);
                for column in 0..description.columns.len() {
                    let (mean, half) = aggregate(by_seed.iter().map(|rows| &rows[index][column]));
                    row.push(mean);
                    spread.push(half);
                }
                table.rows.push(row);
                table.spread.push(spread);
            }
        }
        Ok(Report {
            name: description.name,
            parameters: self.settings.clone(),
            sweep: self.sweeps.iter().cloned().collect(),
            seeds: self.num_seeds,
            seed: self.seed,
            columns: table.columns.clone(),
            findings: experiment.findings(&table),
            rows: table,
        })
    }

    /// Timeline of the point that is not swept, for the first seed.
    pub fn timeline(&self, experiment: &dyn Experiment) -> Result<Option<Timeline>, LabError> {
        let key = Key::new(self.seed, experiment.description().name);
        experiment.timeline(&self.settings, &mut Random::new(key))
    }

    /// Swept parameters, then the columns of the experiment.
    pub fn columns(&self, description: &Description) -> Vec<Column> {
        let swept = self.sweeps.iter().filter_map(|(key, _)| description.param(key));
        let columns = swept.map(|param| Column::new(param.key, param.unit, param.meaning));
        columns.chain(description.columns.iter().copied()).collect()
    }

    /// All combinations of swept values, as cells and as settings.
    pub fn points(&self) -> Vec<(Row, Settings)> {
        let mut points = vec![(Row::new(), self.settings.clone())];
        for (key, values) in &self.sweeps {
            let extended = |(row, settings): &(Row, Settings)| {
                let with = |value: &Value| {
                    let (mut row, mut settings) = (row.clone(), settings.clone());
                    row.push(cell(value));
                    settings.set(key, value.clone());
                    (row, settings)
                };
                values.iter().map(with).collect::<Vec<_>>()
            };
            points = points.iter().flat_map(extended).collect();
        }
        points
    }
}

fn cell(value: &Value) -> Cell {
    match value {
        Value::Number(number) => Cell::Number(*number),
        Value::Text(text) => Cell::Text(text.clone()),
    }
}

/// Mean of a cell over seeds, and the half-width of its 95 % confidence interval. An infinite value
/// under any seed makes the mean infinite.
fn aggregate<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> (Cell, f64) {
    let first = cells.clone().next().expect("at least one seed");
    if matches!(first, Cell::Text(_)) {
        return (first.clone(), 0.0);
    }
    let numbers: Vec<f64> = cells
        .map(|cell| match cell {
            Cell::Number(number) => *number,
            Cell::Text(_) => f64::NAN,
        })
        .collect();
    let (mean, half) = confidence(&numbers);
    (Cell::Number(mean), half)
}

/// Student's t for 95 % with one to ten degrees of freedom.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// Mean and half-width of its 95 % confidence interval.
pub fn confidence(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    if numbers.iter().all(|number| number.to_bits() == numbers[0].to_bits()) {
        return (numbers[0], 0.0);
    }
    let mean = numbers.iter().sum::<f64>() / n;
    let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
    // Beyond the table: an approximation to three digits.
    let student = STUDENT.get(numbers.len() - 2).copied().unwrap_or(1.96 + 2.4 / (n - 1.0));
    let half = student * (variance / n).sqrt();
    (mean, if half.is_finite() { half } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_intervals_shrink_with_the_root_of_the_number_of_seeds() {
        assert_eq!(confidence(&[2.0, 2.0, 2.0]), (2.0, 0.0));
        let (mean, half) = confidence(&[1.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-12 && (half - 12.706).abs() < 1e-9, "{mean} {half}");
        let many: Vec<f64> = (0..400).map(|i| f64::from(i % 2)).collect();
        let (mean, half) = confidence(&many);
        assert!((mean - 0.5).abs() < 1e-12 && (half - 0.0491).abs() < 2e-4, "{half}");
    }
}
