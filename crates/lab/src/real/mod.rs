//! Measurements of the experiments on this machine, next to their simulation.
//!
//! Ranks are threads connected by TCP over emulated links. They run the engine's collectives,
//! point-to-point messages and optimizers; compute is a sleep. Parameters are those of the
//! simulation, with defaults for a laptop: few ranks, slow links, tens of milliseconds.

mod all_reduce;
mod asynchronous;
mod checkpointing;
mod cluster;
mod compression;
mod consistency;
mod data_parallel;
mod heterogeneous;
mod hierarchical;
mod local_sgd;
mod measurement;
mod overlap;
mod parameter_server;
mod pipeline;
mod reproducibility;
mod stragglers;

use crate::description::{ChartSpec, Column, Description, Unit};
use crate::error::LabError;
use crate::experiments::{at, find};
use crate::settings::sweep;
use crate::study::{Report, Study};
use crate::table::{Cell, Table};
use lockstep_platform::World;
use measurement::{Measurement, Point};

/// Parameters, sweeps and seed of a measurement, as on the command line.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Parameters as `key=value`.
    pub params: &'a [String],
    /// Sweeps as `key=a,b,c`; the measurement's default where there is none.
    pub sweeps: &'a [String],
    /// Random seed.
    pub seed: u64,
}

const ALL: [&Measurement; 15] = [
    &data_parallel::MEASUREMENT,
    &stragglers::MEASUREMENT,
    &asynchronous::BOUNDED_STALENESS,
    &all_reduce::MEASUREMENT,
    &pipeline::MEASUREMENT,
    &compression::MEASUREMENT,
    &local_sgd::MEASUREMENT,
    &heterogeneous::MEASUREMENT,
    &overlap::MEASUREMENT,
    &parameter_server::MEASUREMENT,
    &asynchronous::STALENESS_AWARE,
    &checkpointing::MEASUREMENT,
    &consistency::MEASUREMENT,
    &hierarchical::MEASUREMENT,
    &reproducibility::MEASUREMENT,
];

/// Whether an experiment can be measured.
pub fn is_measured(name: &str) -> bool {
    ALL.iter().any(|measurement| measurement.name == name)
}

/// Simulates and measures an experiment. Returns its description, with the chart of the
/// measurement, and the report; `progress` gets one line per measured row.
pub fn run(
    name: &str,
    request: &Request<'_>,
    world: &World,
    progress: &mut dyn FnMut(&str),
) -> Result<(Description, Report), LabError> {
    let experiment = find(name)?;
    let description = experiment.description();
    let measurement =
        ALL.iter().find(|measurement| measurement.name == description.name).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|measurement| measurement.name).collect();
            LabError::NotMeasurable { name: name.to_owned(), measurable: names.join(", ") }
        })?;
    let study = study(measurement, description, request)?;
    let mut all = study.columns(description)[..study.sweeps.len()].to_vec();
    all.extend(columns(measurement, description));
    let mut table = Table::new(all, study.sweeps.len());
    for (point, settings) in study.points() {
        let simulated = Study { settings: settings.clone(), sweeps: Vec::new(), ..study.clone() }
            .run(experiment)?
            .rows;
        let row_texts = measurement.row_column.map(|column| simulated.texts(column));
        for (index, expected) in simulated.numbers(measurement.column).into_iter().enumerate() {
            let row = row_texts.as_ref().map_or("", |texts| texts[index].as_str());
            let seed = study.seed;
            let measured = (measurement.measure)(&Point {
                at: &settings,
                row,
                seed,
                name: description.name,
                world,
            })?;
            if measured.is_nan() {
                continue;
            }
            progress(&progress_line(measurement, &point, row));
            let mut cells = point.clone();
            cells.extend(measurement.row_column.map(|_| Cell::from(row)));
            let is_same = expected.to_bits() == measured.to_bits();
            let difference = if is_same { 0.0 } else { measured / expected - 1.0 };
            cells.extend([expected, measured, difference].map(Cell::from));
            table.spread.push(vec![0.0; cells.len()]);
            table.rows.push(cells);
        }
    }
    let chart = ChartSpec {
        y: &["simulated", "measured"],
        x: table.columns[0].name,
        series: measurement.row_column,
        ..description.chart
    };
    let report = Report {
        name: description.name,
        parameters: study.settings.clone(),
        sweep: study.sweeps.iter().cloned().collect(),
        seeds: 1,
        seed: study.seed,
        columns: table.columns.clone(),
        findings: findings(&table),
        rows: table,
    };
    Ok((Description { chart, ..*description }, report))
}

/// The study of the simulation, with the measurement's defaults where the request has none.
fn study(
    measurement: &Measurement,
    description: &Description,
    request: &Request<'_>,
) -> Result<Study, LabError> {
    let defaults = measurement.params.iter().map(|&text| text.to_owned());
    let params: Vec<String> = defaults.chain(request.params.iter().cloned()).collect();
    let mut study = Study::with(description, &params, request.sweeps)?;
    if request.sweeps.is_empty() {
        let (key, values) = sweep(description, measurement.sweep)?;
        let is_set = request
            .params
            .iter()
            .any(|text| text.split_once('=').is_some_and(|(name, _)| name.trim() == key));
        study.sweeps = if is_set {
            vec![(key, vec![study.settings.value(key).clone()])]
        } else {
            vec![(key, values)]
        };
    }
    study.seed = request.seed;
    Ok(study)
}

/// Columns after the swept parameters.
fn columns(measurement: &Measurement, description: &Description) -> Vec<Column> {
    let column = |name: &str| description.columns.iter().find(|other| other.name == name).copied();
    let measured = column(measurement.column);
    let unit = measured.map_or(Unit::Number, |column| column.unit);
    let meaning = measured.map_or("", |column| column.meaning);
    let row_column = measurement.row_column.and_then(column);
    row_column
        .into_iter()
        .chain([
            Column::new("simulated", unit, meaning),
            Column::new("measured", unit, "measured on this machine"),
            Column::new("difference", Unit::Share, "measured/simulated - 1"),
        ])
        .collect()
}

fn progress_line(measurement: &Measurement, point: &[Cell], row: &str) -> String {
    let cells: Vec<String> = point
        .iter()
        .map(|cell| match cell {
            Cell::Number(number) => number.to_string(),
            Cell::Text(text) => text.clone(),
        })
        .collect();
    format!("{} {} {row}", measurement.name, cells.join(" "))
}

fn findings(table: &Table) -> Vec<String> {
    let differences = table.numbers("difference");
    let worst = (0..differences.len())
        .max_by(|a, b| differences[*a].abs().total_cmp(&differences[*b].abs()));
    let Some(worst) = worst else { return vec!["No row could be measured".to_owned()] };
    let texts = table.texts("difference");
    let close = differences.iter().filter(|difference| difference.abs() <= 0.2).count();
    vec![
        format!("{close} of {} measurements are within 20 % of the simulation", differences.len()),
        format!("{}the difference is largest: {}", at(table, worst), texts[worst]),
    ]
}
