//! `lockstep report`: a run as one file to keep or to send, without a server and without scripts.
//!
//! # Layout
//! - [`page`]: the text of the page; [`charts`]: its pictures
//! - [`pdf`]: the page as PDF, printed by Chromium

mod charts;
mod page;
mod pdf;

use crate::dashboard_runs::FolderRuns;
use crate::failure::Failure;
use crate::newest_run::newest_run;
use crate::prediction;
use crate::workers::print_status;
use lockstep_dashboard::{History, Runs};
use lockstep_planner::memory::Process;
use lockstep_platform::{FileKind, ScratchDir, World};
use lockstep_telemetry::json_lines::visit_events;
use lockstep_trainer::RunFolder;
use page::Subject;
use std::path::{Path, PathBuf};

/// Write a run as one page: curves, ranks, the step in time, diagnosis, recipe
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep report runs/0007 --html run.html            one file, without scripts
  lockstep report runs/0007 --pdf run.pdf              printed by Chromium, where it is installed
  lockstep report --html run.html                      the newest run

The page has what lockstep serve shows, at the end of the run or now.")]
pub(crate) struct Arguments {
    /// Run directory (default: the newest run)
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// Write HTML into this file
    #[arg(long, value_name = "FILE", required_unless_present = "pdf")]
    html: Option<PathBuf>,
    /// Write PDF into this file
    #[arg(long, value_name = "FILE")]
    pdf: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let folder = match &arguments.run {
        Some(path) => RunFolder::started(path, world)?,
        None => newest_run("report", world)?,
    };
    // Found before the work, where it is needed.
    let process = prediction::measure_process(world);
    let printer = arguments.pdf.as_ref().map(|_| pdf::find_chromium(world)).transpose()?;
    let page = write_page(folder.path(), process, world)?;
    if let Some(path) = &arguments.html {
        world.files().write_atomic(path, page.as_bytes())?;
        print_status(&format!("wrote {}\n", path.display()));
    }
    if let (Some(path), Some(chromium)) = (&arguments.pdf, printer) {
        let scratch = ScratchDir::new(world, "report")?;
        let source = scratch.path().join("report.html");
        world.files().write_atomic(&source, page.as_bytes())?;
        pdf::print(world, &chromium, &source, path)?;
        print_status(&format!("wrote {}\n", path.display()));
    }
    Ok(())
}

fn write_page(folder: &Path, process: Process, world: &World) -> Result<String, Failure> {
    let runs = FolderRuns::new(world, vec![folder.to_owned()], process);
    let mut history = History::default();
    let events = runs.events(folder);
    if matches!(world.files().metadata(&events), Some(FileKind::File { .. })) {
        let visited = visit_events(world, &events, |stamped| {
            history.take(stamped.seconds, &stamped.event);
            Ok(())
        });
        visited.map_err(|error| Failure::user(error.to_string()))?;
    }
    Ok(page::render(&Subject {
        folder: folder.display().to_string(),
        state: runs.state(folder),
        info: runs.info(folder),
        explanation: crate::commands::explain::report_text(folder, world),
        planned: runs.planned_step(folder),
        history: &history,
    }))
}
