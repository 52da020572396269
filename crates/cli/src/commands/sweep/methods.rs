//! `lockstep bench methods`: ways to distribute learning, held against each other on one recipe.
//!
//! Each row is a `lockstep train` of its own, one at a time since time is what is compared. What
//! it took is told by the run itself: the time and the bytes of its steps, and when an evaluation
//! first found the loss that the first row ended with. The folder is that of a sweep, so a table
//! that was killed goes on.

use super::figure::Figure;
use super::plan::{Plan, Run};
use super::store::{Status, Store};
use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers;
use lockstep_config::Blame;
use lockstep_config::units::Bytes;
use lockstep_platform::World;
use lockstep_telemetry::{Event, load_events};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The rows that nobody has to ask for.
const ROWS: &str = include_str!("methods.txt");

/// The recipe that nobody has to ask for.
const PRESET: &str = "methods";

/// The share of the time of steps by which computing may be late before the table says so.
const LATE: f64 = 0.05;

/// Hold ways to distribute learning against each other: time, bytes and loss of each
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench methods                           four workers on emulated links of 1 Gbit/s
  lockstep bench methods --only all-reduce,top-k,local-sgd-16
  lockstep bench methods --set emulate.bandwidth=12.5MB --out slow
  lockstep bench methods my.toml --rows mine.txt --json

A row is a name and settings, one row a line: `top-k compress.method=top-k compress.ratio=0.01`.
The others are held against the first: when did they reach the loss that it ended with? Runs are
done one after the other, each a `lockstep train` with a folder under --out; the same command goes
on where it was stopped. Times are those of emulated workers (emulate.microbatch_ms) as long as this
machine computes a micro-batch in less than that, and the table says where it did not.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Rows of your own: a file with a name and settings on each line
    #[arg(long, value_name = "FILE")]
    rows: Option<PathBuf>,
    /// Only these rows; commas between
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The folder of the runs: a new one, or that of this table
    #[arg(long, value_name = "DIR", default_value = "methods")]
    out: PathBuf,
    /// Only say what would run
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
    /// The sweep that this is.
    fn as_sweep(&self) -> super::Arguments {
        super::Arguments {
            recipe: self.recipe.or_preset(PRESET),
            over: Vec::new(),
            random: None,
            seed: 1,
            halving: None,
            jobs: Some(1),
            by: Figure::ValidationLoss,
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
    let rows = chosen(rows(&text_of_rows(arguments, world)?)?, &arguments.only)?;
    let plan = Plan::of(&sweep, world, Vec::new(), rows)?;
    if arguments.dry_run {
        return output::text(&(super::announcement(&plan) + &super::listing(&sweep, &plan)));
    }
    let store = Store::open(world, &arguments.out, &plan)?;
    if !arguments.quiet {
        workers::tell(&super::announcement(&plan));
    }
    let done = super::carry_out(&sweep, world, &plan, &store);
    store.leave()?;
    let emulated = sweep.recipe.resolve(world)?.emulate.in_words();
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

fn text_of_rows(arguments: &Arguments, world: &World) -> Result<String, Failure> {
    let Some(path) = &arguments.rows else { return Ok(ROWS.to_owned()) };
    world.files().read_to_string(path).map_err(|error| Failure::user(error.to_string()))
}

/// The rows that a text has, or everything that is wrong with it.
fn rows(text: &str) -> Result<Vec<Run>, Failure> {
    let (mut rows, mut wrong) = (Vec::<Run>::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_whitespace().map(str::to_owned);
        let Some(name) = words.next().filter(|name| !name.starts_with('#')) else { continue };
        let sets: Vec<String> = words.collect();
        let number = index + 1;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !name.chars().all(is_plain) || name.starts_with('.') {
            let fix = "try letters, digits and dashes";
            wrong.push(format!("line {number} of the rows: {name} names no folder; {fix}"));
        } else if rows.iter().any(|row| row.name == name) {
            let fix = "give one of them another name";
            wrong.push(format!("line {number} of the rows: {name} is there twice; {fix}"));
        }
        if let Some(set) = sets.iter().find(|set| !set.contains('=')) {
            let fix = "try KEY=VALUE without spaces";
            wrong.push(format!("line {number} of the rows: {set} sets nothing; {fix}"));
        }
        rows.push(Run::asked(name, Vec::new(), sets));
    }
    if rows.is_empty() {
        wrong.push("there are no rows; try a line `all-reduce`".to_owned());
    }
    if wrong.is_empty() { Ok(rows) } else { Err(Failure::user(wrong.join("\n"))) }
}

/// Those of them that were asked for, in their own order.
fn chosen(mut rows: Vec<Run>, only: &[String]) -> Result<Vec<Run>, Failure> {
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        let rule = format!("--only {unknown} is no row");
        return Err(Failure::user(format!("{rule}; try {}", names.join(", "))));
    }
    rows.retain(|row| only.is_empty() || only.contains(&row.name));
    Ok(rows)
}

/// What a run had done when it was judged.
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

/// For programs. Names are stable: scripts rely on them.
#[derive(Serialize)]
struct Table {
    /// The row that others are held against.
    reference: String,
    /// The validation loss that it ended with.
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
    /// Time of all steps.
    seconds: Option<f64>,
    /// Bytes that all workers moved in them.
    wire_bytes: Option<u64>,
    validation_loss: Option<f64>,
    /// How much worse than the reference, as a fraction.
    excess_loss: Option<f64>,
    /// What it took to reach the reference's loss, if it was.
    steps_to_reference: Option<u64>,
    seconds_to_reference: Option<f64>,
    wire_bytes_to_reference: Option<u64>,
    /// By how much this machine took longer to compute than the emulated one.
    late_seconds: f64,
    command: String,
}

impl Table {
    fn add(
        &mut self,
        run: &Run,
        outcome: &super::store::Outcome,
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
            wire_bytes: figure("moved_bytes").map(|bytes| bytes as u64),
            validation_loss: loss,
            excess_loss: loss.zip(target).map(|(loss, target)| loss / target - 1.0),
            steps_to_reference: reached.map(|e| e.step),
            seconds_to_reference: reached.map(|e| e.seconds),
            wire_bytes_to_reference: reached.map(|e| e.bytes),
            late_seconds: figure("emulated_late_seconds").unwrap_or(0.0),
            command: command(run),
        });
    }

    fn cells(&self) -> Vec<Vec<String>> {
        let target = self.reference_loss.map_or("?".to_owned(), |loss| format!("{loss:.4}"));
        let to = |what: &str| format!("{what} to {target}");
        let heading = ["method", "seconds", "moved", "of first", "validation loss", "worse"];
        let heading = heading.map(str::to_owned).to_vec();
        let mut cells = vec![[heading, vec![to("steps"), to("seconds"), to("moved")]].concat()];
        let all = self.rows.first().and_then(|row| row.wire_bytes).unwrap_or(0) as f64;
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let bytes = |bytes: u64| Bytes(bytes).to_string();
        let seconds = |seconds: f64| format!("{seconds:.1}");
        for row in &self.rows {
            let loss = match row.status {
                Status::Done => shown(row.validation_loss.map(|loss| format!("{loss:.4}"))),
                Status::Diverged => "diverged".to_owned(),
            };
            cells.push(vec![
                row.method.clone(),
                shown(row.seconds.map(seconds)),
                shown(row.wire_bytes.map(bytes)),
                shown(row.wire_bytes.map(|bytes| format!("{:.2} %", 100.0 * bytes as f64 / all))),
                loss,
                shown(row.excess_loss.map(|excess| format!("{:+.2} %", 100.0 * excess))),
                shown(row.steps_to_reference.map(|steps| steps.to_string())),
                shown(row.seconds_to_reference.map(seconds)),
                shown(row.wire_bytes_to_reference.map(bytes)),
            ]);
        }
        cells
    }

    /// For people: names to the left, figures to the right.
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
        if let Some(words) = &self.emulated {
            let _ = writeln!(text, "\nemulated: {words}");
        }
        let is_late = |row: &&Row| row.seconds.is_some_and(|all| row.late_seconds > LATE * all);
        let late: Vec<&str> =
            self.rows.iter().filter(is_late).map(|row| row.method.as_str()).collect();
        if !late.is_empty() {
            let rows = late.join(", ");
            let _ = writeln!(
                text,
                "this machine took longer to compute than the emulated one, so times are partly \
                 its own: {rows}; try a larger emulate.microbatch_ms"
            );
        }
        text
    }
}
