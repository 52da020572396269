//! `lockstep lab NAME --real`: the same experiment on this machine, simulated beside measured.
//!
//! Ranks are threads over TCP whose links are emulated, running the engine's own collectives and
//! messages; computing is sleeping. Parameters are the simulation's, with defaults that a laptop
//! can play: few ranks, slow links, tens of milliseconds.

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
mod overlap;
mod parameter_server;
mod pipeline;
mod reproducibility;
mod stragglers;

use super::Arguments;
use crate::failure::Failure;
use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_lab::experiments::find;
use lockstep_lab::{
    Card, Cell, Column, LabError, Picture, Random, Report, Settings, Study, Table, Unit, sweep,
};
use lockstep_platform::World;
use lockstep_schedule::Link;
use std::io::Write;

/// How an experiment is run for real.
struct Real {
    name: &'static str,
    /// The column that is measured.
    column: &'static str,
    /// The column whose words tell the rows of a point apart, if there are several.
    rows: Option<&'static str>,
    /// Parameters in place of the card's defaults.
    params: &'static [&'static str],
    /// What is swept when nobody says.
    sweep: &'static str,
    /// Measures a row; not a number where a row cannot be run here.
    measure: fn(&Point<'_>) -> Result<f64, Failure>,
}

/// What one row is about.
struct Point<'a> {
    at: &'a Settings,
    /// The word of the row.
    word: &'a str,
    seed: u64,
    name: &'static str,
    world: &'a World,
}

impl Point<'_> {
    /// The random numbers that the simulation has.
    fn random(&self) -> Random {
        Random::named(self.seed, self.name)
    }

    /// The link of the settings.
    fn link(&self) -> Link {
        Link { latency: self.at.seconds("latency"), bandwidth: self.at.bandwidth("bandwidth") }
    }
}

/// Links that carry as much as this machine can.
const OPEN: Link = Link { latency: Seconds(0.0), bandwidth: BytesPerSecond(0.0) };

const ALL: [&Real; 15] = [
    &data_parallel::REAL,
    &stragglers::REAL,
    &asynchronous::BOUNDED,
    &all_reduce::REAL,
    &pipeline::REAL,
    &compression::REAL,
    &local_sgd::REAL,
    &heterogeneous::REAL,
    &overlap::REAL,
    &parameter_server::REAL,
    &asynchronous::AWARE,
    &checkpointing::REAL,
    &consistency::REAL,
    &hierarchical::REAL,
    &reproducibility::REAL,
];

/// Runs an experiment both ways; its card, to be drawn, and what came out.
pub(super) fn run(
    name: &str,
    arguments: &Arguments,
    world: &World,
) -> Result<(Card, Report), Failure> {
    let experiment = find(name)?;
    let card = experiment.card();
    let real = ALL.iter().find(|real| real.name == card.name).ok_or_else(|| {
        let names: Vec<&str> = ALL.iter().map(|real| real.name).collect();
        let names = names.join(", ");
        Failure::user(format!("{name} cannot be run for real; try lab NAME --real of {names}"))
    })?;
    let study = study(real, card, arguments)?;
    let mut all = study.columns(card)[..study.sweeps.len()].to_vec();
    all.extend(columns(real, card));
    let mut table = Table::new(all, study.sweeps.len());
    for (point, settings) in study.points() {
        let simulated = Study { settings: settings.clone(), sweeps: Vec::new(), ..study.clone() }
            .run(experiment)?
            .rows;
        let words = real.rows.map(|column| simulated.words(column));
        for (row, expected) in simulated.numbers(real.column).into_iter().enumerate() {
            let word = words.as_ref().map_or("", |words| words[row].as_str());
            let what = Point { at: &settings, word, seed: study.seed, name: card.name, world };
            let measured = (real.measure)(&what)?;
            if measured.is_nan() {
                continue;
            }
            progress(real, &point, word);
            let mut cells = point.clone();
            cells.extend(real.rows.map(|_| Cell::from(word)));
            let is_same = expected.to_bits() == measured.to_bits();
            let apart = if is_same { 0.0 } else { measured / expected - 1.0 };
            cells.extend([expected, measured, apart].map(Cell::from));
            table.spread.push(vec![0.0; cells.len()]);
            table.rows.push(cells);
        }
    }
    let picture = Picture {
        y: &["simulated", "measured"],
        x: table.columns[0].name,
        series: real.rows,
        ..card.picture
    };
    let report = Report {
        name: card.name,
        parameters: study.settings.clone(),
        sweep: study.sweeps.iter().cloned().collect(),
        seeds: 1,
        seed: study.seed,
        columns: table.columns.clone(),
        findings: findings(&table),
        rows: table,
    };
    Ok((Card { picture, ..*card }, report))
}

/// The simulation's study, with what a laptop can play where nobody says otherwise.
fn study(real: &Real, card: &Card, arguments: &Arguments) -> Result<Study, LabError> {
    let ours = real.params.iter().map(|&text| text.to_owned());
    let params: Vec<String> = ours.chain(arguments.param.iter().cloned()).collect();
    let mut study = Study::with(card, &params, &arguments.sweep)?;
    if arguments.sweep.is_empty() {
        let (key, values) = sweep(card, real.sweep)?;
        let is_set = arguments
            .param
            .iter()
            .any(|text| text.split_once('=').is_some_and(|(name, _)| name.trim() == key));
        study.sweeps = if is_set {
            vec![(key, vec![study.settings.value(key).clone()])]
        } else {
            vec![(key, values)]
        };
    }
    study.seed = arguments.seed;
    Ok(study)
}

/// What stands behind the swept parameters.
fn columns(real: &Real, card: &Card) -> Vec<Column> {
    let of = |name: &str| card.columns.iter().find(|column| column.name == name).copied();
    let unit = of(real.column).map_or(Unit::Number, |column| column.unit);
    let meaning = of(real.column).map_or("", |column| column.meaning);
    let words = real.rows.and_then(of);
    words
        .into_iter()
        .chain([
            Column::new("simulated", unit, meaning),
            Column::new("measured", unit, "the same on this machine"),
            Column::new("difference", Unit::Share, "measured over simulated, less one"),
        ])
        .collect()
}

fn progress(real: &Real, point: &[Cell], word: &str) {
    let cells: Vec<String> = point
        .iter()
        .map(|cell| match cell {
            Cell::Number(number) => number.to_string(),
            Cell::Word(word) => word.clone(),
        })
        .collect();
    // Progress is a courtesy; nobody is told when standard error is closed.
    let _ = writeln!(std::io::stderr(), "{} {} {word}", real.name, cells.join(" "));
}

fn findings(table: &Table) -> Vec<String> {
    let apart = table.numbers("difference");
    let worst = (0..apart.len()).max_by(|a, b| apart[*a].abs().total_cmp(&apart[*b].abs()));
    let Some(worst) = worst else { return vec!["Nothing could be run".to_owned()] };
    let words = table.words("difference");
    let near = apart.iter().filter(|apart| apart.abs() <= 0.2).count();
    vec![
        format!("{near} of {} measurements are within 20 % of the simulation", apart.len()),
        format!(
            "the farthest is {} off, at {} = {}",
            words[worst],
            table.columns[0].name,
            table.words(table.columns[0].name)[worst]
        ),
    ]
}
