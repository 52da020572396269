//! Record of a past run: recipe, losses and positions, without tensors.

use crate::run_folder::load_recipe;
use crate::{RunFolder, TrainError};
use lockstep_checkpoint::TrainingState;
use lockstep_config::Recipe;
use lockstep_platform::World;
use lockstep_telemetry::{Event, load_events};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) struct RunRecord {
    pub(super) folder: RunFolder,
    pub(super) recipe: Recipe,
    /// Losses by step, counted from one; never empty.
    pub(super) losses: BTreeMap<u64, f64>,
    /// Number of steps done when the weights were saved; none without weights.
    pub(super) weights_step: Option<u64>,
    /// Fingerprint of the corpus.
    pub(super) corpus: Option<String>,
    pub(super) kernel_class: Option<String>,
}

impl RunRecord {
    /// Reads a run, finished or not.
    pub(super) fn read(path: &Path, world: &World) -> Result<Self, TrainError> {
        let folder = RunFolder::started(path, world)?;
        let recipe = load_recipe(&folder, world)?;
        let (losses, corpus) = (BTreeMap::new(), None);
        let mut past =
            Self { folder, recipe, losses, weights_step: None, corpus, kernel_class: None };
        past.read_events(world)?;
        let state_step = past.read_state(world)?;
        if past.losses.is_empty() {
            let (dir, missing) = (path.display().to_string(), "events.jsonl".to_owned());
            return Err(TrainError::NoRun { dir, missing });
        }
        if world.files().metadata(&past.folder.weights()).is_some() {
            // Weights without a saved state are those after the last step.
            past.weights_step = state_step.or(Some(past.last_step()));
        }
        Ok(past)
    }

    pub(super) fn last_step(&self) -> u64 {
        *self.losses.last_key_value().expect("a run that was read has a step").0
    }

    /// Reads the losses of the event file, which a killed run has too.
    fn read_events(&mut self, world: &World) -> Result<(), TrainError> {
        let path = self.folder.events();
        if world.files().metadata(&path).is_none() {
            return Ok(());
        }
        let events = load_events(world, &path).map_err(|error| TrainError::SavedEvents {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        for stamped in events {
            match stamped.event {
                Event::Step { step, loss, .. } => drop(self.losses.insert(step, loss)),
                Event::RunStarted { kernel_class, .. } => self.kernel_class = Some(kernel_class),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the losses before an interruption, if the state was saved.
    fn read_state(&mut self, world: &World) -> Result<Option<u64>, TrainError> {
        let path = self.folder.state();
        if world.files().metadata(&path).is_none() {
            return Ok(None);
        }
        let state = TrainingState::load(world, &path)?;
        self.losses.extend((1..).zip(state.losses));
        self.corpus = Some(state.corpus);
        self.kernel_class = Some(state.kernel_class);
        Ok(Some(state.step))
    }
}
