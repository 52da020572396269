//! List of the runs in a folder, with state, steps, losses and recipe of each.
//!
//! Only files are read, and of an event file only its end, so a folder with thousands of runs is
//! listed in a moment. A run is alive while a process has its event file in use, which ends with
//! that process however it ends. A run that failed has a [record](crate::failure_record) of the
//! reason, or the flight records of its ranks. Folders without a recipe are skipped.

use crate::RunFolder;
use crate::failure_record::{FailureKind, RecordedFailure, read_failure};
use crate::run_folder::load_recipe;
use lockstep_config::Recipe;
use lockstep_platform::{FileError, FileKind, World};
use lockstep_telemetry::Event;
use lockstep_telemetry::json_lines::visit_backwards;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes at the end of an event file that are searched for the last losses.
const MAX_TAIL_BYTES: u64 = 1 << 20;

/// State of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunState {
    /// A process trains it.
    Running,
    /// All steps are done, or its target loss is reached.
    Finished,
    /// It ended before its last step, on request or killed.
    Stopped,
    /// It ended with an error.
    Failed(String),
    /// Its loss or gradients became non-finite.
    Diverged(String),
}

impl RunState {
    /// One word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
            Self::Failed(_) => "failed",
            Self::Diverged(_) => "diverged",
        }
    }

    /// Error of a run that ended with one.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Failed(reason) | Self::Diverged(reason) => Some(reason),
            Self::Running | Self::Finished | Self::Stopped => None,
        }
    }
}

/// A run of a list.
#[derive(Debug, Clone)]
pub struct ListedRun {
    /// Path of the run folder.
    pub folder: PathBuf,
    /// State now.
    pub state: RunState,
    /// Number of completed steps.
    pub steps: u64,
    /// Loss of the last step.
    pub loss: Option<f64>,
    /// Last validation loss.
    pub validation_loss: Option<f64>,
    /// Recipe; `None` if this version cannot read it.
    pub recipe: Option<Recipe>,
    /// Time of the start, since the UNIX epoch.
    pub started: Option<Duration>,
    /// Time of the last event, since the UNIX epoch.
    pub updated: Option<Duration>,
}

/// Lists the runs in a folder, or the run that the folder is, oldest first.
pub fn list_runs(folder: &Path, world: &World) -> Result<Vec<ListedRun>, FileError> {
    if let Some(run) = read_run(folder, world) {
        return Ok(vec![run]);
    }
    let paths = world.files().list(folder)?;
    let mut runs: Vec<_> = paths.iter().filter_map(|path| read_run(path, world)).collect();
    runs.sort_by(|a, b| (a.started, &a.folder).cmp(&(b.started, &b.folder)));
    Ok(runs)
}

/// Reads a run; `None` if the path is not a run folder.
fn read_run(path: &Path, world: &World) -> Option<ListedRun> {
    let folder = RunFolder::started(path, world).ok()?;
    let FileKind::File { .. } = world.files().metadata(&folder.recipe())? else { return None };
    let recipe = load_recipe(&folder, world).ok();
    let events = folder.events();
    // Before the events: a run that ends in between is then read with its last event.
    let is_running = world.files().is_in_use(&events);
    let tail = Tail::read(&events, world);
    let state = if is_running {
        RunState::Running
    } else if let Some(steps) = tail.finished_steps {
        let is_whole = recipe.as_ref().is_none_or(|recipe| {
            let loss = tail.validation_loss.unwrap_or(f64::INFINITY);
            let has_target = recipe.train.target_loss.is_some_and(|target| loss <= target);
            steps >= recipe.train.steps || has_target
        });
        if is_whole { RunState::Finished } else { RunState::Stopped }
    } else {
        match read_failure(path, world) {
            None => RunState::Stopped,
            Some(RecordedFailure { reason, kind: Some(FailureKind::Diverged) }) => {
                RunState::Diverged(reason)
            }
            Some(RecordedFailure { reason, .. }) => RunState::Failed(reason),
        }
    };
    let (steps, loss, validation_loss) = (tail.steps, tail.loss, tail.validation_loss);
    let started = world.files().modified(&folder.recipe());
    let updated = world.files().modified(&events).or(started);
    let folder = path.to_owned();
    Some(ListedRun { folder, state, steps, loss, validation_loss, recipe, started, updated })
}

/// End of an event file.
#[derive(Default)]
struct Tail {
    steps: u64,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    /// Number of steps of a run that has finished.
    finished_steps: Option<u64>,
}

impl Tail {
    fn read(events: &Path, world: &World) -> Self {
        let mut tail = Self::default();
        // A run that failed before its first step has no file.
        let _ = visit_backwards(world, events, MAX_TAIL_BYTES, |stamped| {
            tail.take(&stamped.event);
            let is_known = tail.loss.is_some() && tail.validation_loss.is_some();
            if is_known || tail.finished_steps.is_some() {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        tail
    }

    /// Takes an event that is older than all before it.
    fn take(&mut self, event: &Event) {
        match *event {
            Event::Step { step, loss, .. } if self.loss.is_none() => {
                (self.steps, self.loss) = (step, Some(loss));
            }
            Event::Evaluated { validation_loss, .. } => {
                self.validation_loss.get_or_insert(validation_loss);
            }
            // A resumed run carries the end of the run before it.
            Event::RunFinished { steps, final_loss, validation_loss, .. }
                if self.loss.is_none() =>
            {
                (self.steps, self.loss) = (steps, Some(final_loss));
                self.finished_steps = Some(steps);
                self.validation_loss = validation_loss;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainError;
    use crate::failure_record::record_failure;
    use lockstep_platform::ScratchDir;
    use lockstep_telemetry::{JsonLines, Sink, Stamped, VERSION};

    fn step(step: u64, loss: f64) -> Event {
        Event::Step {
            step,
            loss,
            lr: 1e-3,
            grad_norm: 1.0,
            tokens_per_second: 1.0,
            step_seconds: 1.0,
            data_wait_seconds: 0.0,
            exposed_communication_seconds: 0.0,
            straggler_wait_seconds: 0.0,
            is_skipped: false,
            loss_scale: None,
            zeroed_fraction: None,
            preference_accuracy: None,
            preference_margin: None,
            seqlen: None,
        }
    }

    fn evaluated(step: u64, validation_loss: f64) -> Event {
        let (perplexity, train_seconds, wire_bytes) = (1.0, 1.0, 0);
        Event::Evaluated { step, validation_loss, perplexity, train_seconds, wire_bytes }
    }

    fn finished(steps: u64) -> Event {
        Event::RunFinished {
            steps,
            final_loss: 2.0,
            validation_loss: Some(2.5),
            losses_hash: String::new(),
            weights_hash: String::new(),
            run_seconds: 1.0,
        }
    }

    /// Writes a run of 10 steps with these events; the file is in use as long as the result.
    fn write_run(path: &Path, world: &World, events: Vec<Event>) -> JsonLines {
        world.files().create_dir_all(path).unwrap();
        let recipe = Recipe::default();
        let text =
            recipe.to_toml().replace(&format!("steps = {}\n", recipe.train.steps), "steps = 10\n");
        world.files().write_atomic(&path.join("recipe.toml"), text.as_bytes()).unwrap();
        let mut sink = JsonLines::open(world, &path.join("events.jsonl")).unwrap();
        for event in events {
            sink.write(&Stamped { v: VERSION, seconds: 0.0, rank: 0, event }).unwrap();
        }
        sink
    }

    #[test]
    fn every_state_is_recognised_and_foreign_folders_are_skipped() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "run-list").unwrap();
        let at = |name: &str| scratch.path().join(name);
        let running = write_run(&at("0001"), &world, vec![evaluated(1, 3.0), step(2, 2.75)]);
        drop(write_run(&at("0002"), &world, vec![step(10, 2.0), finished(10)]));
        drop(write_run(&at("0003"), &world, vec![step(4, 2.0), finished(4)]));
        drop(write_run(&at("0004"), &world, vec![step(4, f64::NAN)]));
        let diverged = TrainError::Diverged {
            step: 5,
            what: "loss".into(),
            value: f64::NAN,
            source_of: String::new(),
        };
        record_failure(&at("0004"), &diverged, &world);
        drop(write_run(&at("0005"), &world, vec![step(3, 2.0)]));
        let flight = br#"{"version": 1, "rank": 0, "num_ranks": 2, "written_by": 0, "host": null,
            "process": null, "culprit": 1, "verdict": "rank 1 left\nduring all-reduce",
            "groups": [], "calls": []}"#;
        world.files().create_dir_all(&at("0005/flight")).unwrap();
        world.files().write_atomic(&at("0005/flight/flight-rank-0.json"), flight).unwrap();
        drop(write_run(&at("0006"), &world, vec![]));
        world.files().write_atomic(&at("0006/events.jsonl"), b"\xff\x00 garbage").unwrap();
        // A folder without a recipe, a file, and a recipe that is a folder.
        world.files().create_dir_all(&at("notes")).unwrap();
        world.files().write_atomic(&at("file"), b"x").unwrap();
        world.files().create_dir_all(&at("odd/recipe.toml")).unwrap();

        let runs = list_runs(scratch.path(), &world).unwrap();
        let states: Vec<_> = runs.iter().map(|run| run.state.clone()).collect();
        let text = diverged.to_string();
        let failed = "rank 1 left during all-reduce".to_owned();
        assert_eq!(
            states,
            [
                RunState::Running,
                RunState::Finished,
                RunState::Stopped,
                RunState::Diverged(text),
                RunState::Failed(failed),
                RunState::Stopped,
            ]
        );
        let figures: Vec<_> = runs.iter().map(|run| (run.steps, run.validation_loss)).collect();
        let expected =
            [(2, Some(3.0)), (10, Some(2.5)), (4, Some(2.5)), (4, None), (3, None), (0, None)];
        assert_eq!(figures, expected);
        assert_eq!((runs[0].loss, runs[5].loss), (Some(2.75), None));
        assert!(runs.iter().all(|run| run.recipe.is_some() && run.started.is_some()));

        drop(running);
        let one = list_runs(&at("0001"), &world).unwrap();
        assert_eq!((one.len(), &one[0].state), (1, &RunState::Stopped), "the writer has ended");
        assert!(list_runs(&at("none"), &world).is_err());
    }

    #[test]
    fn a_reached_target_is_a_finished_run() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "run-target").unwrap();
        drop(write_run(scratch.path(), &world, vec![step(4, 2.0), finished(4)]));
        let state = || list_runs(scratch.path(), &world).unwrap()[0].state.clone();
        assert_eq!(state(), RunState::Stopped);
        let path = scratch.path().join("recipe.toml");
        let text = world.files().read_to_string(&path).unwrap();
        let text = text.replace("[train]\n", "[train]\ntarget_loss = 2.6\n");
        world.files().write_atomic(&path, text.as_bytes()).unwrap();
        assert_eq!(state(), RunState::Finished);
    }
}
