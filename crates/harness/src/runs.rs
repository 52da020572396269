//! Runs of the real trainer in temporary folders; the loss of every step is recorded.

use lockstep_comm::Comm;
use lockstep_config::Recipe;
pub use lockstep_conformance::cases::some;
use lockstep_platform::{ScratchDir, World};
use lockstep_telemetry::{Event, Sink, Stamped, TelemetryError};
use lockstep_trainer::{Options, Summary, TrainError, train_on_comms};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A scratch folder and the runs in it.
pub struct Runs {
    world: World,
    scratch: ScratchDir,
    num_started: usize,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Summary of the run.
    pub summary: Summary,
    /// Training loss of every step of this process, before the update.
    pub losses: Vec<f64>,
    /// The run's folder.
    pub dir: PathBuf,
}

/// Hashes of all losses and of the final weights of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// Hash of every step's loss.
    pub losses: String,
    /// Hash of the final weights.
    pub weights: String,
}

impl Outcome {
    /// Hashes of all losses and of the final weights.
    pub fn hashes(&self) -> Hashes {
        let Summary { losses_hash, weights_hash, .. } = &self.summary;
        Hashes { losses: losses_hash.clone(), weights: weights_hash.clone() }
    }
}

impl Runs {
    /// Creates an empty scratch folder whose name contains the label.
    pub fn new(label: &str) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, label).expect("a scratch folder can be created");
        Self { world, scratch, num_started: 0 }
    }

    /// The platform of the runs.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The scratch folder.
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// Trains in a new folder.
    pub fn run(&mut self, recipe: &Recipe, mut options: Options) -> Result<Outcome, TrainError> {
        let dir = self.path().join(format!("run-{}", self.num_started));
        self.num_started += 1;
        let mut recipe = recipe.clone();
        recipe.run.dir = dir.display().to_string();
        let (sender, losses) = channel();
        options.sinks.push(Box::new(Losses { sender }));
        let summary = train_on_threads(&recipe, &self.world, options)?;
        Ok(Outcome { summary, losses: drain(&losses), dir })
    }

    /// Trains to the end.
    ///
    /// # Panics
    /// When the run fails.
    pub fn finish(&mut self, recipe: &Recipe) -> Outcome {
        let outcome = self.run(recipe, Options::default());
        outcome.unwrap_or_else(|error| panic!("the run failed: {error}"))
    }
}

/// Trains with the recipe's workers as threads of this process, whatever `run.isolation` is.
pub fn train_on_threads(
    recipe: &Recipe,
    world: &World,
    options: Options,
) -> Result<Summary, TrainError> {
    lockstep_trainer::train_on_threads(recipe, world, options_by_rank(options))
}

/// Trains with one thread for each of these communicators.
pub fn train_on(
    ends: &[Comm],
    recipe: &Recipe,
    world: &World,
    options: Options,
) -> Result<Summary, TrainError> {
    train_on_comms(ends, recipe, world, options_by_rank(options))
}

/// Equal options on every rank; the first gets the sinks.
fn options_by_rank(mut options: Options) -> impl FnMut(usize) -> Options {
    move |_rank| Options {
        sinks: std::mem::take(&mut options.sinks),
        resume: options.resume.clone(),
        stop_after: options.stop_after,
        attempt: options.attempt.clone(),
        ..Options::default()
    }
}

/// Whether the long suites are requested: `LOCKSTEP_SOAK=1`, as `cargo xtask soak` sets it.
pub fn soak() -> bool {
    is_set("LOCKSTEP_SOAK")
}

/// Whether golden losses are written instead of compared: `LOCKSTEP_BLESS=1`.
pub fn bless() -> bool {
    is_set("LOCKSTEP_BLESS")
}

fn is_set(name: &str) -> bool {
    let value = lockstep_platform::real().host().env(name);
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

fn drain(receiver: &Receiver<f64>) -> Vec<f64> {
    receiver.try_iter().collect()
}

/// Telemetry sink that records losses.
struct Losses {
    sender: Sender<f64>,
}

impl Sink for Losses {
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
        if let Event::Step { loss, .. } = event.event {
            self.sender.send(loss).expect("the receiver outlives the run");
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(())
    }
}
