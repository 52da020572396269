//! `lockstep lab`: the experiments of distributed training, simulated, swept and drawn.

use crate::failure::Failure;
use crate::output;
use lockstep_lab::experiments::{ALL, find};
use lockstep_lab::{LabError, Report, Study};
use lockstep_platform::World;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Simulate the experiments of the field: sweeps, seeds, tables, pictures
#[derive(clap::Args)]
#[command(after_help = "\
`lockstep lab list` names the experiments; `lockstep lab NAME --explain` is a page about one: its
question, its formula, what to look at, what surprises people, its parameters and columns. Values
may have units: 10us, 50GB/s, 700MB, 25%.

Examples:
  lockstep lab list
  lockstep lab stragglers
  lockstep lab stragglers --explain
  lockstep lab all-reduce --param ranks=256 --sweep bytes=1MB,10MB,100MB
  lockstep lab data-parallel --param variation=0.1 --seeds 20 --plot step.svg
  lockstep lab stragglers --sweep workers=8,256 --sweep variation=0.1,0.3 --csv stragglers.csv")]
pub(crate) struct Arguments {
    /// `list`, or an experiment
    name: String,
    /// Set a parameter of the experiment (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    param: Vec<String>,
    /// Run at several values of a parameter; several sweeps make a grid (repeatable)
    #[arg(long, value_name = "KEY=A,B,C")]
    sweep: Vec<String>,
    /// Seeds; with several, means have 95 % confidence intervals
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What the experiment asks and shows, instead of running it
    #[arg(long)]
    explain: bool,
    /// Write the table as comma-separated values, in seconds, bytes and fractions
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    if arguments.name == "list" {
        return list(arguments.json);
    }
    let experiment = find(&arguments.name)?;
    let card = experiment.card();
    if arguments.explain {
        return output::text(&card.help());
    }
    let mut study = Study::with(card, &arguments.param, &arguments.sweep)?;
    (study.num_seeds, study.seed) = (arguments.seeds as usize, arguments.seed);
    let report = study.run(experiment)?;
    write(world, arguments.csv.as_deref(), || report.rows.csv())?;
    if arguments.json {
        return output::json(&report);
    }
    output::text(&text(card.title, &report))
}

/// The names; for a person, with what they are about.
fn list(json: bool) -> Result<(), Failure> {
    let cards = ALL.iter().map(|experiment| experiment.card());
    if json {
        return output::json(&cards.map(|card| card.name).collect::<Vec<_>>());
    }
    let width = cards.clone().map(|card| card.name.len()).max().unwrap_or(0);
    let lines = cards.map(|card| format!("{:<width$}  {}\n", card.name, card.title));
    output::text(&lines.collect::<String>())
}

fn write(world: &World, path: Option<&Path>, text: impl Fn() -> String) -> Result<(), Failure> {
    if let Some(path) = path {
        world.files().write_atomic(path, text().as_bytes())?;
    }
    Ok(())
}

/// The findings, then the table they come from.
fn text(title: &str, report: &Report) -> String {
    let mut text = format!("{title}\n\n{}\n", report.rows.text());
    for finding in &report.findings {
        let _ = writeln!(text, "- {finding}");
    }
    text
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}
