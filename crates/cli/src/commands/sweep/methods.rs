//! `lockstep bench methods`: distributed training methods compared on one recipe.
//!
//! Each row is a `lockstep train`, one at a time because time is compared. A row reports the time
//! and the bytes sent of its steps, and the first evaluation that reached the final loss of the
//! first row. The folder is a sweep's, so an interrupted table resumes.

use super::resolve::plan_runs;
use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use crate::recipe_args::RecipeArguments;
use crate::workers::print_status;
use lockstep_config::Blame;
use lockstep_platform::World;
use lockstep_sweep::metric::Metric;
use lockstep_sweep::outcome::{Outcome, Status};
use lockstep_sweep::plan::Run;
use lockstep_sweep::store::Store;
use lockstep_telemetry::{Event, load_events};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Default rows.
const ROWS: &str = include_str!("methods.txt");

/// Default recipe.
const PRESET: &str = "methods";

/// Share of the step time by which compute may exceed the emulation before the table warns.
const MAX_OVERRUN_SHARE: f64 = 0.05;

/// Compare distributed training methods: time, bytes sent and loss of each
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench methods                           four workers on emulated links of 1 Gbit/s
  lockstep bench methods --only all-reduce,top-k,local-sgd-16
  lockstep bench methods --set emulate.bandwidth=12.5MB --out slow
  lockstep bench methods my.toml --rows mine.txt --json

A row is a name and settings, one per line: `top-k compress.method=top-k compress.ratio=0.01`. The
first row is the reference: the others report when they reached its final loss. Runs execute one
after the other, each a `lockstep train` with its own folder under --out; the same command resumes.
Times are of emulated workers (emulate.microbatch_ms) as long as this machine computes a micro-batch
in less than that; the table warns where it did not.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// File with rows: a name and settings on each line
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
    /// Only these rows, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Folder of the runs: new, or one that this table resumes
    #[arg(long, value_name = "DIR", default_value = "methods")]
    out: PathBuf,
    /// Print the runs without starting them
    #[arg(long)]
    dry_run: bool,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// The table as a sweep.
    fn as_sweep(&self) -> super::Arguments {
        super::Arguments {
            recipe: self.recipe.or_preset(PRESET),
            over: Vec::new(),
            random: None,
            seed: 1,
            halving: None,
            jobs: Some(1),
            by: Metric::ValidationLoss,
            out: self.out.clone(),
            dry_run: self.dry_run,
            measured: true,
            quiet: self.quiet,
            json: self.json,
            csv: false,
            svg: None,
        }
    }
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    world.processes().accept_interrupts();
    let sweep = arguments.as_sweep();
    let rows = select(parse_rows(&read_rows(arguments, world)?)?, &arguments.only)?;
    let plan = plan_runs(&sweep, world, Vec::new(), rows)?;
    if arguments.dry_run {
        return output::text(&(super::announcement(&plan) + &super::listing(&sweep, &plan)));
    }
    let store = Store::open(world, &arguments.out, &plan)?;
    if !arguments.quiet {
        print_status(&super::announcement(&plan));
    }
    let done = super::run_rungs(&sweep, world, &plan, &store);
    store.release()?;
    let emulated = sweep.recipe.resolve(world)?.emulate.description();
    let mut table =
        Table { reference: String::new(), reference_loss: None, emulated, rows: vec![] };
    for row in done? {
        let dir = store.run_dir(row.run, 0);
        table.add(row.run, &row.outcome, &evaluations(world, &dir)?, |run| {
            super::command(&sweep, &plan, run)
        });
    }
    if arguments.json { output::json(&table) } else { output::text(&table.text()) }
}

fn read_rows(arguments: &Arguments, world: &World) -> Result<String, Failure> {
    let Some(path) = &arguments.rows else { return Ok(ROWS.to_owned()) };
    world.files().read_to_string(path).map_err(|error| Failure::user(error.to_string()))
}

/// The rows of a text, or every error in it.
fn parse_rows(text: &str) -> Result<Vec<Run>, Failure> {
    let (mut rows, mut wrong) = (Vec::<Run>::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let mut parts = line.split_whitespace().map(str::to_owned);
        let Some(name) = parts.next().filter(|name| !name.starts_with('#')) else { continue };
        let sets: Vec<String> = parts.collect();
        let number = index + 1;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !name.chars().all(is_plain) || name.starts_with('.') {
            let fix = "try letters, digits and dashes";
            wrong.push(format!("line {number} of the rows: {name} is not a folder name; {fix}"));
        } else if rows.iter().any(|row| row.name == name) {
            let fix = "give one of them another name";
            wrong.push(format!("line {number} of the rows: {name} is repeated; {fix}"));
        }
        if let Some(set) = sets.iter().find(|set| !set.contains('=')) {
            let fix = "try KEY=VALUE without spaces";
            wrong.push(format!("line {number} of the rows: {set} is not KEY=VALUE; {fix}"));
        }
        rows.push(Run::unresolved(name, Vec::new(), sets));
    }
    if rows.is_empty() {
        wrong.push("the file has no rows; try a line `all-reduce`".to_owned());
    }
    if wrong.is_empty() { Ok(rows) } else { Err(Failure::user(wrong.join("\n"))) }
}

/// The rows that `--only` names, in their own order.
fn select(mut rows: Vec<Run>, only: &[String]) -> Result<Vec<Run>, Failure> {
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        let rule = format!("--only {unknown} is not a row");
        return Err(Failure::user(format!("{rule}; try {}", names.join(", "))));
    }
    rows.retain(|row| only.is_empty() || only.contains(&row.name));
    Ok(rows)
}

/// An evaluation of a run.
struct Evaluation {
    step: u64,
    loss: f64,
    seconds: f64,
    bytes: u64,
}

fn evaluations(world: &World, dir: &Path) -> Result<Vec<Evaluation>, Failure> {
    let events = load_events(world, &dir.join("events.jsonl"));
    let events = events.map_err(|error| Failure::new(Blame::Storage, error.to_string()))?;
    let of = |event| match event {
        Event::Evaluated { step, validation_loss, train_seconds, wire_bytes, .. } => {
            let (loss, seconds, bytes) = (validation_loss, train_seconds, wire_bytes);
            Some(Evaluation { step, loss, seconds, bytes })
        }
        _ => None,
    };
    Ok(events.into_iter().filter_map(|stamped| of(stamped.event)).collect())
}

/// The comparison. Field names are stable: scripts rely on them.
#[derive(Serialize)]
struct Table {
    /// Name of the reference row.
    reference: String,
    /// Its final validation loss.
    reference_loss: Option<f64>,
    emulated: Option<String>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    method: String,
    set: Vec<String>,
    status: Status,
    steps: u64,
    /// Seconds of all steps.
    seconds: Option<f64>,
    /// Bytes that all workers sent in them.
    wire_bytes: Option<u64>,
    validation_loss: Option<f64>,
    /// Excess over the reference loss, as a fraction.
    excess_loss: Option<f64>,
    /// Cost to reach the reference loss, if it was reached.
    steps_to_reference: Option<u64>,
    seconds_to_reference: Option<f64>,
    wire_bytes_to_reference: Option<u64>,
    /// Seconds by which this machine computed slower than the emulated one.
    overrun_seconds: f64,
    command: String,
}

impl Table {
    fn add(
        &mut self,
        run: &Run,
        outcome: &Outcome,
        evaluations: &[Evaluation],
        command: impl Fn(&Run) -> String,
    ) {
        let figure = |name: &str| outcome.figures.get(name).copied();
        let loss = figure("validation_loss");
        if self.rows.is_empty() {
            (self.reference, self.reference_loss) = (run.name.clone(), loss);
        }
        let target = self.reference_loss;
        let reached = target.and_then(|target| evaluations.iter().find(|e| e.loss <= target));
        self.rows.push(Row {
            method: run.name.clone(),
            set: run.sets(&[]),
            status: outcome.status,
            steps: outcome.steps,
            seconds: figure("train_seconds"),
            wire_bytes: figure("total_wire_bytes").map(|bytes| bytes as u64),
            validation_loss: loss,
            excess_loss: loss.zip(target).map(|(loss, target)| loss / target - 1.0),
            steps_to_reference: reached.map(|e| e.step),
            seconds_to_reference: reached.map(|e| e.seconds),
            wire_bytes_to_reference: reached.map(|e| e.bytes),
            overrun_seconds: figure("emulated_overrun_seconds").unwrap_or(0.0),
            command: command(run),
        });
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let target = self.reference_loss.map_or("?".to_owned(), |loss| format!("{loss:.4}"));
        let to = |what: &str| format!("{what} to {target}");
        let heading = ["method", "seconds", "sent", "of first", "validation loss", "excess"];
        let heading = heading.map(str::to_owned).to_vec();
        let mut cells = vec![[heading, vec![to("steps"), to("seconds"), to("sent")]].concat()];
        let all = self.rows.first().and_then(|row| row.wire_bytes).unwrap_or(0) as f64;
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let seconds = |seconds: f64| format!("{seconds:.1}");
        for row in &self.rows {
            let loss = match row.status {
                Status::Done => or_dash(row.validation_loss.map(|loss| format!("{loss:.4}"))),
                Status::Diverged => "diverged".to_owned(),
            };
            cells.push(vec![
                row.method.clone(),
                or_dash(row.seconds.map(seconds)),
                or_dash(row.wire_bytes.map(si_bytes)),
                or_dash(row.wire_bytes.map(|bytes| format!("{:.2} %", 100.0 * bytes as f64 / all))),
                loss,
                or_dash(row.excess_loss.map(|excess| format!("{:+.2} %", 100.0 * excess))),
                or_dash(row.steps_to_reference.map(|steps| steps.to_string())),
                or_dash(row.seconds_to_reference.map(seconds)),
                or_dash(row.wire_bytes_to_reference.map(si_bytes)),
            ]);
        }
        cells
    }

    /// Aligned columns.
    fn text(&self) -> String {
        let cells = self.cells();
        let width = |column: usize| cells.iter().map(|line| line[column].chars().count()).max();
        let mut text = String::new();
        for line in &cells {
            for (column, cell) in line.iter().enumerate() {
                let width = width(column).unwrap_or(0);
                let _ = match column {
                    0 => write!(text, "{cell:<width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text.push('\n');
        }
        if let Some(emulated) = &self.emulated {
            let _ = writeln!(text, "\nemulated: {emulated}");
        }
        let is_overrun = |row: &&Row| {
            row.seconds.is_some_and(|all| row.overrun_seconds > MAX_OVERRUN_SHARE * all)
        };
        let overrun: Vec<&str> =
            self.rows.iter().filter(is_overrun).map(|row| row.method.as_str()).collect();
        if !overrun.is_empty() {
            let rows = overrun.join(", ");
            let _ = writeln!(
                text,
                "this machine computed slower than the emulated one, so these times are partly its \
                 own: {rows}; try a larger emulate.microbatch_ms"
            );
        }
        text
    }
}
