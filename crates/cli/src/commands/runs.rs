//! `lockstep runs`: lists the runs of a folder with state, steps, losses, layout and age.

use crate::failure::Failure;
use crate::output;
use crate::workers::print_status;
use lockstep_config::units::Seconds;
use lockstep_planner::layout::LEGEND;
use lockstep_planner::recipe::layout_from_recipe;
use lockstep_platform::World;
use lockstep_trainer::run_folder::RUNS;
use lockstep_trainer::run_list::{ListedRun, list_runs};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest reason of a failure in the table, in characters; `--json` has all of it.
const MAX_REASON_CHARS: usize = 88;

/// Titles of the table; the folder comes last, since paths have any length.
const TITLES: [&str; 7] = ["state", "step", "loss", "validation", "age", "layout", "folder"];

/// List runs: state, steps, losses, layout and age, newest last
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep runs                          the runs under runs/
  lockstep runs experiments              the runs under another folder
  lockstep runs --json | jq '.[] | select(.state == \"failed\") | .folder'

States: running (a process trains it), finished, stopped (ended early, by request or killed; resume
it with lockstep train --resume FOLDER), failed (with the reason; lockstep doctor FOLDER says more)
and diverged (loss or gradients were not finite). The age of a running run counts from its start,
that of any other from its end (its last event); --json has both, as age_seconds and idle_seconds.
Folders that are not runs are skipped, and nothing is written. The layout is that of lockstep plan,
with its abbreviations in the last line.")]
pub(crate) struct Arguments {
    /// Folder of run folders, or one run folder (default: runs)
    folder: Option<PathBuf>,
    /// One JSON value on standard output: a list of runs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let folder = arguments.folder.as_deref().unwrap_or(Path::new(RUNS));
    let is_missing = world.files().metadata(folder).is_none();
    let runs = match (&arguments.folder, is_missing) {
        // Nothing has been trained here yet.
        (None, true) => Vec::new(),
        _ => list_runs(folder, world).map_err(|error| Failure::user(error.to_string()))?,
    };
    let now = world.clock().wall();
    let rows: Vec<Row> = runs.iter().map(|run| Row::new(run, now)).collect();
    if arguments.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        let folder = folder.display();
        print_status(&format!("no runs in {folder}; lockstep train starts one\n"));
        return Ok(());
    }
    output::text(&format!("{}\nlayout: {LEGEND}\n", render(&rows)))
}

/// One run, as `--json` prints it.
#[derive(Serialize)]
struct Row {
    folder: String,
    state: &'static str,
    /// Error of a run that failed or diverged.
    reason: Option<String>,
    steps: u64,
    /// Steps of the recipe.
    num_steps: Option<u64>,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    layout: Option<String>,
    workers: Option<usize>,
    /// Time since the start.
    age_seconds: Option<f64>,
    /// Time since the last event.
    idle_seconds: Option<f64>,
}

impl Row {
    fn new(run: &ListedRun, now: Duration) -> Self {
        let since = |time: Duration| now.saturating_sub(time).as_secs_f64();
        let recipe = run.recipe.as_ref();
        Self {
            folder: run.folder.display().to_string(),
            state: run.state.name(),
            reason: run.state.reason().map(str::to_owned),
            steps: run.steps,
            num_steps: recipe.map(|recipe| recipe.train.steps),
            loss: run.loss,
            validation_loss: run.validation_loss,
            layout: recipe.map(|recipe| layout_from_recipe(recipe).to_string()),
            workers: recipe.map(|recipe| recipe.run.workers),
            age_seconds: run.started.map(since),
            idle_seconds: run.updated.map(since),
        }
    }

    /// Time since the start of a run that is alive, or since the end of one that is over.
    fn age(&self) -> String {
        let (event, seconds) = match self.state {
            "running" => ("started", self.age_seconds),
            _ => ("ended", self.idle_seconds),
        };
        seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{event} {} ago", age(seconds)))
    }

    fn cells(&self) -> [String; 7] {
        let loss = |loss: Option<f64>| loss.map_or_else(|| "-".to_owned(), |l| format!("{l:.4}"));
        let steps = match self.num_steps {
            Some(all) => format!("{}/{all}", self.steps),
            None => self.steps.to_string(),
        };
        [
            self.state.to_owned(),
            steps,
            loss(self.loss),
            loss(self.validation_loss),
            self.age(),
            self.layout.clone().unwrap_or_else(|| "-".to_owned()),
            self.folder.replace(char::is_control, "?"),
        ]
    }
}

/// A table, and the reason of a failure below its run.
fn render(rows: &[Row]) -> String {
    let cells: Vec<[String; 7]> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| {
        let widths = cells.iter().map(|row| row[column].chars().count());
        widths.fold(TITLES[column].len(), usize::max)
    };
    let widths: [usize; 7] = std::array::from_fn(width);
    let line = |row: &[String; 7]| {
        let mut text = String::new();
        for (column, cell) in row.iter().enumerate() {
            // Numbers end, and words start, at the same column.
            let width = widths[column];
            let _ = match column {
                1..=4 => write!(text, "{cell:>width$}  "),
                _ => write!(text, "{cell:<width$}  "),
            };
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&TITLES.map(str::to_owned));
    for (row, cells) in rows.iter().zip(&cells) {
        text += &line(cells);
        if let Some(reason) = &row.reason {
            let _ = writeln!(text, "  {}", shortened(reason));
        }
    }
    text
}

/// Largest unit of a duration: `12 s`, `5 min`, `3 h`, `8 d`.
fn age(seconds: f64) -> String {
    match seconds {
        _ if seconds < 100.0 => Seconds(seconds.round()).to_string(),
        _ if seconds < 6000.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} d", seconds / 86_400.0),
    }
}

fn shortened(reason: &str) -> String {
    match reason.char_indices().nth(MAX_REASON_CHARS) {
        Some((end, _)) => format!("{} ...", reason[..end].trim_end()),
        None => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &'static str, reason: Option<&str>) -> Row {
        Row {
            folder: "runs/0001".to_owned(),
            state,
            reason: reason.map(str::to_owned),
            steps: 20,
            num_steps: Some(400),
            loss: Some(2.5),
            validation_loss: None,
            layout: Some("TP2 PP2 DP4 mbs 1 ZeRO-1".to_owned()),
            workers: Some(16),
            age_seconds: Some(125.0),
            idle_seconds: Some(40.0),
        }
    }

    #[test]
    fn a_table_aligns_numbers_and_shows_reasons() {
        let text = render(&[row("running", None), row("failed", Some(&"x".repeat(100)))]);
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some(
                "state      step    loss  validation                age  layout                    \
                 folder"
            )
        );
        assert_eq!(
            lines.next(),
            Some(
                "running  20/400  2.5000           -  started 2 min ago  TP2 PP2 DP4 mbs 1 ZeRO-1  \
                 runs/0001"
            )
        );
        let over = lines.next().expect("the second run");
        assert!(over.contains("  ended 40 s ago  TP2"), "{over}");
        let reason = lines.next().expect("the reason of the second run");
        assert_eq!(reason, format!("  {} ...", "x".repeat(MAX_REASON_CHARS)));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn an_age_has_one_unit() {
        let texts = [0.4, 12.0, 300.0, 7200.0, 691_200.0].map(age);
        assert_eq!(texts, ["0 s", "12 s", "5 min", "2 h", "8 d"]);
    }
}
