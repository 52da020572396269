//! `lockstep explain`: where the time of a run went, why, and what to try next.

mod run_report;
mod straggler_trace;

use crate::diagnosis::diagnose_run;
use crate::failure::Failure;
use crate::newest_run::newest_run;
use crate::output;
use crate::workers::print_status;
use lockstep_planner::diagnosis::Diagnosis;
use lockstep_platform::{FileKind, World};
use lockstep_trainer::recorded_run::RecordedRun;
use run_report::{RunReport, render};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Explain where the time of a run went, why, and what to try next
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep explain                      the newest run
  lockstep explain runs/0007            verdict, parts of the step, what-ifs, next setting
  lockstep explain runs/0007 --json     all figures, for programs
  lockstep explain runs/0007 --json | jq .next.settings
  lockstep explain trace.csv            stragglers in a trace of another trainer

The verdict is the largest cause of the step time: compute, communication (bytes), latency (number
of messages), straggler (a slow rank), bubble (idle pipeline stages), input (data), checkpoint or
memory (recomputation). Times are medians over steps. What-if figures replay the step program with
the durations that the run measured and one thing changed; lockstep plan calibrate adds those of
other micro-batches. A run with telemetry.trace = true, or with 64 steps, has spans that make
replays more accurate. A failed run has more in lockstep doctor.

A trace is a CSV file with a line for each operation of a worker, of a few steps of any trainer
with data and pipeline parallelism: step, rank, dp_rank, stage, optype (forward-compute,
backward-compute, forward-send, forward-recv, backward-send, backward-recv, params-all-gather,
grads-reduce-scatter, layernorm-grads-all-reduce, embedding-grads-all-reduce,
optimizer-clip-main-grad, optimizer, gc), seq_id (number within its kind), start_ts and duration in
seconds. The steps are replayed with the same duration for the same operation on all workers; the
ratio to the recorded durations is the slowdown (Lin et al. 2025).")]
pub(crate) struct Arguments {
    /// Run directory, or a trace of operations (CSV) of another trainer (default: the newest run)
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let path = match &arguments.run {
        Some(path) => path.clone(),
        None => newest_run("explain", world)?.path().to_owned(),
    };
    if let Some(FileKind::File { .. }) = world.files().metadata(&path) {
        return straggler_trace::explain(&path, arguments.json, world);
    }
    let (recorded, diagnosis) = diagnosed(&path, world)?;
    let report = RunReport::new(&recorded, &diagnosis);
    if arguments.json {
        return output::json(&report);
    }
    if arguments.run.is_none() {
        print_status(&format!("the newest run is {}\n", path.display()));
    }
    output::text(&render(&report))
}

/// The report of a run as JSON, as `--json` prints it.
pub(crate) fn report_json(folder: &Path, world: &World) -> Result<Value, Failure> {
    let (recorded, diagnosis) = diagnosed(folder, world)?;
    Ok(serde_json::to_value(RunReport::new(&recorded, &diagnosis)).expect("our values are JSON"))
}

/// The report of a run as text, or why there is none.
pub(crate) fn report_text(folder: &Path, world: &World) -> Result<String, String> {
    match diagnosed(folder, world) {
        Ok((recorded, diagnosis)) => Ok(render(&RunReport::new(&recorded, &diagnosis))),
        Err(failure) => Err(failure.text().to_owned()),
    }
}

fn diagnosed(folder: &Path, world: &World) -> Result<(RecordedRun, Diagnosis), Failure> {
    let recorded = RecordedRun::read(folder, world)?;
    let diagnosis = diagnose_run(&recorded, world)?.ok_or_else(|| no_step(&recorded))?;
    Ok((recorded, diagnosis))
}

fn no_step(run: &RecordedRun) -> Failure {
    let why = run.failure.as_ref().map_or_else(String::new, |it| format!(": {}", it.reason));
    let folder = run.folder.path().display();
    Failure::user(format!(
        "{folder} has no finished step{why}; lockstep doctor {folder} reads the records of a \
         failure"
    ))
}
