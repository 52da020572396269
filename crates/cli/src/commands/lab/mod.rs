//! `lockstep lab`: the experiments of distributed training, simulated, swept and drawn.

mod claims;
mod events;
mod real;
mod walk;

use crate::failure::Failure;
use crate::output;
use lockstep_lab::experiments::{ALL, find};
use lockstep_lab::{Card, Experiment, LabError, Report, Study, plot};
use lockstep_platform::World;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Simulate the experiments of the field: sweeps, seeds, tables, pictures
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
`lockstep lab list` names the experiments; `lockstep lab NAME --explain` is a page about one: its
question, its formula, what to look at, what surprises people, its parameters and columns. Values
may have units: 10us, 50GB/s, 700MB, 25%.

Examples:
  lockstep lab list
  lockstep lab stragglers
  lockstep lab stragglers --explain
  lockstep lab all-reduce --param ranks=256 --sweep bytes=1MB,10MB,100MB
  lockstep lab data-parallel --param variation=0.1 --seeds 20 --plot step.svg
  lockstep lab stragglers --sweep workers=8,256 --sweep variation=0.1,0.3 --csv stragglers.csv
  lockstep lab pipeline --timeline passes.svg
  lockstep lab data-parallel --real
  lockstep lab walk ring --ranks 4
  lockstep lab claims"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// An experiment
    name: Option<String>,
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
    /// Run it on this machine as well, over emulated links: simulated beside measured
    #[arg(long, conflicts_with = "seeds")]
    real: bool,
    /// What the experiment asks and shows, instead of running it
    #[arg(long)]
    explain: bool,
    /// Write the table as comma-separated values, in seconds, bytes and fractions
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a picture: FILE.svg, or FILE.html with the words and the table beside it
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Draw who does what when, at the point that is not swept: FILE.svg or FILE.html
    #[arg(long, value_name = "FILE", conflicts_with = "real")]
    timeline: Option<PathBuf>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    List(ListArguments),
    Walk(walk::Arguments),
    Claims(claims::Arguments),
    Events(events::Arguments),
}

/// Name the experiments
#[derive(clap::Args)]
struct ListArguments {
    /// One JSON value on standard output: a list of names
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    match (&arguments.command, &arguments.name) {
        (Some(Command::List(list)), _) => self::list(list.json),
        (Some(Command::Walk(arguments)), _) => walk::run(arguments, world),
        (Some(Command::Claims(arguments)), _) => claims::run(arguments),
        (Some(Command::Events(arguments)), _) => events::run(arguments, world),
        (None, Some(name)) => experiment(name, arguments, world),
        (None, None) => Err(Failure::user("lab needs an experiment; try lockstep lab list")),
    }
}

fn experiment(name: &str, arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let experiment = find(name)?;
    let card = experiment.card();
    if arguments.explain {
        return output::text(&card.help());
    }
    let picture = arguments.plot.as_deref().map(|path| format_of("--plot", path)).transpose()?;
    let drawn_when = arguments.timeline.as_deref();
    let drawn_when = drawn_when.map(|path| format_of("--timeline", path)).transpose()?;
    let (card, report) = if arguments.real {
        real::run(name, arguments, world)?
    } else {
        let mut study = Study::with(card, &arguments.param, &arguments.sweep)?;
        (study.num_seeds, study.seed) = (arguments.seeds as usize, arguments.seed);
        if let (Some(path), Some(format)) = (&arguments.timeline, drawn_when) {
            let drawn = timeline(experiment, &study, format)?;
            world.files().write_atomic(path, drawn.as_bytes())?;
        }
        (*card, study.run(experiment)?)
    };
    if let Some(path) = &arguments.csv {
        world.files().write_atomic(path, report.rows.csv().as_bytes())?;
    }
    if let (Some(path), Some(format)) = (&arguments.plot, picture) {
        let drawn = match format {
            Format::Svg => plot::svg(&card, &report),
            Format::Html => plot::html(&card, &report),
        };
        world.files().write_atomic(path, drawn.as_bytes())?;
    }
    if arguments.json {
        return output::json(&report);
    }
    output::text(&text(&card, &report))
}

/// Who does what when, as a picture.
fn timeline(
    experiment: &'static dyn Experiment,
    study: &Study,
    format: Format,
) -> Result<String, Failure> {
    let card = experiment.card();
    let Some(timeline) = study.timeline(experiment)? else {
        let name = card.name;
        return Err(Failure::user(format!(
            "{name} has no timeline; try data-parallel, stragglers, pipeline or overlap"
        )));
    };
    Ok(match format {
        Format::Svg => plot::timeline_svg(card, &timeline),
        Format::Html => plot::timeline_html(card, &timeline),
    })
}

/// What a picture's name asks for.
#[derive(Clone, Copy)]
enum Format {
    Svg,
    Html,
}

/// By the end of the name, before anything is done that would be lost.
fn format_of(option: &str, path: &Path) -> Result<Format, Failure> {
    match path.extension().and_then(|end| end.to_str()) {
        Some("svg") => Ok(Format::Svg),
        Some("html") => Ok(Format::Html),
        _ => Err(Failure::user(format!(
            "{option} {}: the name must end in .svg or .html; try lab.svg",
            path.display()
        ))),
    }
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

/// The table, then what it shows.
fn text(card: &Card, report: &Report) -> String {
    let setting = report.setting(card);
    let mut text = format!("{}\n{setting}\n\n{}\n", card.title, report.rows.text());
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
