//! Runs of the real trainer in folders that go away, with every loss kept.

use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_platform::{ScratchDir, World};
use lockstep_telemetry::{Event, Sink, Stamped, TelemetryError};
use lockstep_trainer::{Options, Summary, TrainError, train};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A scratch folder and the runs in it.
pub struct Runs {
    world: World,
    scratch: ScratchDir,
    num_started: usize,
}

/// What came out of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its figures.
    pub summary: Summary,
    /// The loss of every step of this process, before the update.
    pub losses: Vec<f64>,
    /// The run's folder.
    pub dir: PathBuf,
}

/// The two hashes that stand for all bits of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hashes {
    /// Of every step's loss.
    pub losses: String,
    /// Of the final weights.
    pub weights: String,
}

impl Outcome {
    /// The two hashes that stand for all bits of the run.
    pub fn hashes(&self) -> Hashes {
        let Summary { losses_hash, weights_hash, .. } = &self.summary;
        Hashes { losses: losses_hash.clone(), weights: weights_hash.clone() }
    }
}

impl Runs {
    /// An empty scratch folder; the label names it.
    pub fn new(label: &str) -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, label).expect("a scratch folder can be had");
        Self { world, scratch, num_started: 0 }
    }

    /// The world that the runs take place in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The scratch folder.
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    /// Trains in a folder of its own.
    pub fn run(&mut self, recipe: &Recipe, mut options: Options) -> Result<Outcome, TrainError> {
        let dir = self.path().join(format!("run-{}", self.num_started));
        self.num_started += 1;
        let mut recipe = recipe.clone();
        recipe.run.dir = dir.display().to_string();
        let (sender, losses) = channel();
        options.sinks.push(Box::new(Losses { sender }));
        (recipe.run.workers, recipe.parallel.data) = (1, 1);
        let end = &Comm::threads(&self.world, 1, &lockstep_comm::Options::default())?[0];
        let summary = train(&recipe, &self.world, end, options)?.expect("rank 0 has it");
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

/// Whether the long suites are asked for: `LOCKSTEP_SOAK=1`, as `cargo xtask soak` sets it.
pub fn soak() -> bool {
    is_set("LOCKSTEP_SOAK")
}

/// Whether golden losses are to be written rather than compared: `LOCKSTEP_BLESS=1`.
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

/// A sink that keeps losses.
struct Losses {
    sender: Sender<f64>,
}

impl Sink for Losses {
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
        if let Event::Step { loss, .. } = event.event {
            self.sender.send(loss).expect("the run's owner waits for them");
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(())
    }
}
