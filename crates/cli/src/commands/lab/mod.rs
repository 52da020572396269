//! `lockstep lab`: simulated experiments on distributed training, with sweeps and plots.

mod claims;
mod events;
pub(crate) mod live;
mod notebook;
mod walk;

use crate::failure::{Failure, chain};
use crate::output;
use lockstep_lab::experiments::{ALL, find};
use lockstep_lab::{Description, Experiment, LabError, Report, Study, chart, real};
use lockstep_platform::World;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Simulate experiments on distributed training: sweeps, seeds, tables, plots
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
`lockstep lab list` lists the experiments; `lockstep lab NAME --explain` describes one: question,
formula, results to look at, common surprises, parameters and columns. Values may have units: 10us,
50GB/s, 700MB, 25%.

Examples:
  lockstep lab list
  lockstep lab stragglers
  lockstep lab stragglers --explain
  lockstep lab all-reduce --param ranks=256 --sweep bytes=1MB,10MB,100MB
  lockstep lab data-parallel --param variation=0.1 --seeds 20 --plot step.svg
  lockstep lab stragglers --sweep workers=8,256 --sweep variation=0.1,0.3 --csv stragglers.csv
  lockstep lab stragglers --notebook stragglers.ipynb
  lockstep lab pipeline --timeline passes.svg
  lockstep lab data-parallel --real
  lockstep lab walk ring --ranks 4
  lockstep lab claims"
)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Name of the experiment
    name: Option<String>,
    /// List the experiments, as `lockstep lab list` does
    #[arg(long, conflicts_with = "name")]
    list: bool,
    /// Set a parameter of the experiment (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    param: Vec<String>,
    /// Values of a parameter; several sweeps make a grid (repeatable)
    #[arg(long, value_name = "KEY=A,B,C")]
    sweep: Vec<String>,
    /// Number of seeds; several give 95 % confidence intervals
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Also measure on this machine, over emulated links
    #[arg(long, conflicts_with = "seeds")]
    real: bool,
    /// Describe the experiment instead of running it
    #[arg(long)]
    explain: bool,
    /// Write the table as CSV, in seconds, bytes and fractions
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a plot: FILE.svg, or FILE.html with text and table
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write a Jupyter notebook that runs the experiment, with its table and chart: FILE.ipynb
    #[arg(long, value_name = "FILE")]
    notebook: Option<PathBuf>,
    /// Draw the timeline of the default point: FILE.svg or FILE.html
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

/// List the experiments
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
        (None, _) if arguments.list => self::list(arguments.json),
        (None, Some(name)) => experiment(name, arguments, world),
        (None, None) => Err(Failure::user("lab needs an experiment; try lockstep lab list")),
    }
}

fn experiment(name: &str, arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let experiment = find(name)?;
    let description = experiment.description();
    if arguments.explain {
        return output::text(&description.help());
    }
    let plot_format =
        arguments.plot.as_deref().map(|path| format_of("--plot", path)).transpose()?;
    let timeline_format = arguments.timeline.as_deref();
    let timeline_format = timeline_format.map(|path| format_of("--timeline", path)).transpose()?;
    let (description, report) = if arguments.real {
        let request = real::Request {
            params: &arguments.param,
            sweeps: &arguments.sweep,
            seed: arguments.seed,
        };
        // A closed standard error only loses the progress lines.
        let mut progress = |line: &str| drop(writeln!(std::io::stderr(), "{line}"));
        real::run(name, &request, world, &mut progress)?
    } else {
        let mut study = Study::with(description, &arguments.param, &arguments.sweep)?;
        (study.num_seeds, study.seed) = (arguments.seeds as usize, arguments.seed);
        if let (Some(path), Some(format)) = (&arguments.timeline, timeline_format) {
            let drawn = timeline(experiment, &study, format)?;
            world.files().write_atomic(path, drawn.as_bytes())?;
        }
        (*description, study.run(experiment)?)
    };
    if let Some(path) = &arguments.csv {
        world.files().write_atomic(path, report.rows.csv().as_bytes())?;
    }
    if let (Some(path), Some(format)) = (&arguments.plot, plot_format) {
        let drawn = match format {
            Format::Svg => chart::svg(&description, &report),
            Format::Html => chart::html(&description, &report),
        };
        world.files().write_atomic(path, drawn.as_bytes())?;
    }
    if let Some(path) = &arguments.notebook {
        let Arguments { param, sweep, seeds, seed, .. } = arguments;
        let mut list = notebook::arguments(name, param, sweep, *seeds);
        if *seed > 0 {
            list.extend(["--seed".to_owned(), seed.to_string()]);
        }
        list.extend(arguments.real.then(|| "--real".to_owned()));
        let text = notebook::notebook(&description, &list);
        world.files().write_atomic(path, text.as_bytes())?;
    }
    if arguments.json {
        return output::json(&report);
    }
    output::text(&text(&description, &report))
}

/// The timeline of an experiment.
fn timeline(
    experiment: &'static dyn Experiment,
    study: &Study,
    format: Format,
) -> Result<String, Failure> {
    let description = experiment.description();
    let Some(timeline) = study.timeline(experiment)? else {
        let name = description.name;
        return Err(Failure::user(format!(
            "{name} has no timeline; try data-parallel, stragglers, pipeline or overlap"
        )));
    };
    Ok(match format {
        Format::Svg => chart::timeline_svg(description, &timeline),
        Format::Html => chart::timeline_html(description, &timeline),
    })
}

/// File format of a plot.
#[derive(Clone, Copy)]
enum Format {
    Svg,
    Html,
}

/// The format by the file extension, checked before any work is done.
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

/// Prints the names; as text, with their titles.
fn list(json: bool) -> Result<(), Failure> {
    let descriptions = ALL.iter().map(|experiment| experiment.description());
    if json {
        return output::json(&descriptions.map(|description| description.name).collect::<Vec<_>>());
    }
    let width = descriptions.clone().map(|description| description.name.len()).max().unwrap_or(0);
    let lines = descriptions
        .map(|description| format!("{:<width$}  {}\n", description.name, description.title));
    output::text(&lines.collect::<String>())
}

/// The table and the findings.
fn text(description: &Description, report: &Report) -> String {
    let setting = report.setting(description);
    let mut text = format!("{}\n{setting}\n\n{}\n", description.title, report.rows.text());
    for finding in &report.findings {
        let _ = writeln!(text, "- {finding}");
    }
    text
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Self {
        Self::new(error.blame(), chain(&error))
    }
}
