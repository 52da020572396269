//! An experiment at work: every point of its sweep, under every seed, summed up in one table.
//!
//! An experiment only knows how to run at one point with one stream of random numbers. Sweeps,
//! seeds, means and confidence intervals are the same for all of them and are made here.

use crate::card::{Card, Column, Param};
use crate::error::LabError;
use crate::random::Random;
use crate::settings::{Settings, Value, sweep};
use crate::table::{Cell, Row, Table};
use crate::timeline::Timeline;
use lockstep_tensor::random::Key;
use serde::Serialize;
use std::collections::BTreeMap;

/// Something that can be tried out.
pub trait Experiment: Sync {
    /// What it says about itself.
    fn card(&self) -> &'static Card;

    /// The rows at one point of the sweep. The same settings give equally many rows, with the same
    /// words, whatever the random numbers.
    fn run(&self, at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError>;

    /// What the table shows, in sentences; the first is the title of the picture.
    fn findings(&self, table: &Table) -> Vec<String>;

    /// Who does what when at one point, where that can be drawn.
    fn timeline(&self, _: &Settings, _: &mut Random) -> Result<Option<Timeline>, LabError> {
        Ok(None)
    }
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    /// The point around which things are swept.
    pub settings: Settings,
    /// Parameters and their values, the first one slowest.
    pub sweeps: Vec<(&'static str, Vec<Value>)>,
    /// How many seeds.
    pub num_seeds: usize,
    /// The first of them.
    pub seed: u64,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The experiment.
    pub name: &'static str,
    /// Its parameters; of those that were swept, the value that a run without a sweep would have.
    pub parameters: Settings,
    /// What was swept.
    pub sweep: BTreeMap<&'static str, Vec<Value>>,
    /// How many seeds every row is the mean of.
    pub seeds: usize,
    /// The first of them.
    pub seed: u64,
    /// What the columns mean.
    pub columns: Vec<Column>,
    /// The table.
    pub rows: Table,
    /// What it shows.
    pub findings: Vec<String>,
}

impl Report {
    /// What was not swept, in words: without it nobody could make the same table.
    pub fn setting(&self, card: &Card) -> String {
        let fixed = card.params.iter().filter(|param| !self.sweep.contains_key(param.key));
        let words = |param: &Param| match self.parameters.value(param.key) {
            Value::Number(number) => format!("{} = {}", param.key, param.unit.show(*number)),
            Value::Word(word) => format!("{} = {word}", param.key),
        };
        let mut words: Vec<String> = fixed.map(words).collect();
        if self.seeds > 1 {
            words.push(format!("seeds = {}", self.seeds));
        }
        words.join(", ")
    }
}

/// Runs beyond which nobody would wait.
const MOST_RUNS: usize = 100_000;

impl Study {
    /// An experiment as its card has it.
    pub fn new(card: &Card) -> Self {
        let (key, values) = card.sweep;
        let values = values.iter().map(|value| Value::Number(*value)).collect();
        Self {
            settings: Settings::defaults(card),
            sweeps: vec![(key, values)],
            num_seeds: 1,
            seed: 0,
        }
    }

    /// The same with parameters set and swept as on the command line. A parameter that is set is no
    /// longer swept, and a sweep takes the place of the card's.
    pub fn with(card: &Card, params: &[String], sweeps: &[String]) -> Result<Self, LabError> {
        let mut study = Self::new(card);
        for text in params {
            study.settings.assign(card, text)?;
            let key = text.split_once('=').map_or("", |(key, _)| key.trim());
            study.sweeps.retain(|(swept, _)| *swept != key);
        }
        if !sweeps.is_empty() {
            study.sweeps = sweeps.iter().map(|text| sweep(card, text)).collect::<Result<_, _>>()?;
        }
        Ok(study)
    }

    /// Runs everything.
    pub fn run(&self, experiment: &dyn Experiment) -> Result<Report, LabError> {
        let card = experiment.card();
        let runs = self.sweeps.iter().map(|(_, values)| values.len()).product::<usize>();
        if runs.saturating_mul(self.num_seeds) > MOST_RUNS {
            let runs = runs.saturating_mul(self.num_seeds);
            return Err(LabError::TooMany { runs, most: MOST_RUNS });
        }
        let mut table = Table::new(self.columns(card), self.sweeps.len());
        for (point, settings) in self.points() {
            let by_seed = (0..self.num_seeds)
                .map(|seed| {
                    let key = Key::new(self.seed + seed as u64, card.name);
                    experiment.run(&settings, &mut Random::new(key))
                })
                .collect::<Result<Vec<_>, _>>()?;
            for index in 0..by_seed[0].len() {
                let (mut row, mut spread) = (point.clone(), vec![0.0; point.len()]);
                for column in 0..card.columns.len() {
                    let (mean, half) = summed_up(by_seed.iter().map(|rows| &rows[index][column]));
                    row.push(mean);
                    spread.push(half);
                }
                table.rows.push(row);
                table.spread.push(spread);
            }
        }
        Ok(Report {
            name: card.name,
            parameters: self.settings.clone(),
            sweep: self.sweeps.iter().cloned().collect(),
            seeds: self.num_seeds,
            seed: self.seed,
            columns: table.columns.clone(),
            findings: experiment.findings(&table),
            rows: table,
        })
    }

    /// Who does what when at the point around which things are swept, under the first seed.
    pub fn timeline(&self, experiment: &dyn Experiment) -> Result<Option<Timeline>, LabError> {
        let key = Key::new(self.seed, experiment.card().name);
        experiment.timeline(&self.settings, &mut Random::new(key))
    }

    /// Swept parameters, then the columns of the card.
    pub fn columns(&self, card: &Card) -> Vec<Column> {
        let swept = self.sweeps.iter().filter_map(|(key, _)| card.param(key));
        let columns = swept.map(|param| Column::new(param.key, param.unit, param.meaning));
        columns.chain(card.columns.iter().copied()).collect()
    }

    /// Every combination of swept values, as cells and as settings.
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
        Value::Word(word) => Cell::Word(word.clone()),
    }
}

/// The mean of a cell over seeds, and half the width of its 95 % confidence interval. What never
/// happens under one seed has no mean.
fn summed_up<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> (Cell, f64) {
    let first = cells.clone().next().expect("there is a seed");
    if matches!(first, Cell::Word(_)) {
        return (first.clone(), 0.0);
    }
    let numbers: Vec<f64> = cells
        .map(|cell| match cell {
            Cell::Number(number) => *number,
            Cell::Word(_) => f64::NAN,
        })
        .collect();
    let (mean, half) = confidence(&numbers);
    (Cell::Number(mean), half)
}

/// Student's t for 95 % by degrees of freedom, from one to ten.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// A mean and half the width of its 95 % confidence interval.
pub fn confidence(numbers: &[f64]) -> (f64, f64) {
    let n = numbers.len() as f64;
    if numbers.iter().all(|number| number.to_bits() == numbers[0].to_bits()) {
        return (numbers[0], 0.0);
    }
    let mean = numbers.iter().sum::<f64>() / n;
    let variance = numbers.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0);
    // Beyond the table: 1.96 and what a longer one would add, good to three digits.
    let student = STUDENT.get(numbers.len() - 2).copied().unwrap_or(1.96 + 2.4 / (n - 1.0));
    let half = student * (variance / n).sqrt();
    (mean, if half.is_finite() { half } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_shrink_with_the_root_of_the_seeds_and_vanish_where_all_agree() {
        assert_eq!(confidence(&[2.0, 2.0, 2.0]), (2.0, 0.0));
        let (mean, half) = confidence(&[1.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-12 && (half - 12.706).abs() < 1e-9, "{mean} {half}");
        let many: Vec<f64> = (0..400).map(|i| f64::from(i % 2)).collect();
        let (mean, half) = confidence(&many);
        assert!((mean - 0.5).abs() < 1e-12 && (half - 0.0491).abs() < 2e-4, "{half}");
    }
}
