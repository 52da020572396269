//! Record of a past run: recipe, losses and positions; its tensors are loaded when needed.

use crate::checkpoint_dir::newest_in;
use crate::pretrained::outlines;
use crate::run_folder::load_recipe;
use crate::{RunFolder, TrainError};
use lockstep_checkpoint::sharded::Reader;
use lockstep_checkpoint::{CheckpointError, Tensor, TrainingState, weights};
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_platform::World;
use lockstep_telemetry::{Event, load_events};
use std::collections::BTreeMap;
use std::path::Path;

/// Kind of saved tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorKind {
    Weights,
    OptimizerState,
}

pub(super) struct RunRecord {
    pub(super) folder: RunFolder,
    pub(super) recipe: Recipe,
    /// Losses by step, counted from one; never empty.
    pub(super) losses: BTreeMap<u64, f64>,
    /// Number of steps done when the weights were saved; none without weights.
    pub(super) weights_step: Option<u64>,
    /// Newest checkpoint of a run without final weights.
    checkpoint: Option<Reader>,
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
        let mut past = Self {
            folder,
            recipe,
            losses,
            weights_step: None,
            checkpoint: None,
            corpus,
            kernel_class: None,
        };
        past.read_events(world)?;
        let state_step = past.read_state(world)?;
        let has_weights = world.files().metadata(&past.folder.weights()).is_some();
        if !has_weights && let Some(reader) = newest_in(path, world)? {
            past.read_checkpoint(reader)?;
        }
        if past.losses.is_empty() {
            let (dir, missing) = (path.display().to_string(), "events.jsonl".to_owned());
            return Err(TrainError::NoRun { dir, missing });
        }
        if has_weights {
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

    /// Whether the tensors are those of a checkpoint, not of the end of the run.
    pub(super) fn has_checkpoint_only(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Saved tensors of one kind; none if the run has not saved any.
    pub(super) fn load_tensors(
        &self,
        kind: TensorKind,
        world: &World,
    ) -> Result<Option<BTreeMap<String, Tensor>>, CheckpointError> {
        if let Some(reader) = &self.checkpoint {
            let tensors = self.checkpoint_tensors(reader, kind)?;
            return Ok(Some(tensors).filter(|tensors| !tensors.is_empty()));
        }
        let path = match kind {
            TensorKind::Weights => self.folder.weights(),
            TensorKind::OptimizerState => self.folder.optimizer(),
        };
        if world.files().metadata(&path).is_none() {
            return Ok(None);
        }
        Ok(Some(weights::load(world, &path)?.tensors))
    }

    /// Tensors of a checkpoint, which holds weights, optimizer state (`weight.m`) and state of
    /// single ranks in one table.
    fn checkpoint_tensors(
        &self,
        reader: &Reader,
        kind: TensorKind,
    ) -> Result<BTreeMap<String, Tensor>, CheckpointError> {
        let params = outlines(&describe(&self.recipe.model));
        let is_of_kind = |name: &str| match kind {
            TensorKind::Weights => params.contains_key(name),
            TensorKind::OptimizerState => {
                let owner = name.rsplit_once('.').map(|(owner, _)| owner);
                owner.is_some_and(|owner| params.contains_key(owner)) && !params.contains_key(name)
            }
        };
        let entries = reader.manifest().tensors.iter().filter(|(name, _)| is_of_kind(name));
        let tensors = entries.map(|(name, entry)| {
            let shape = entry.shape.clone();
            let mut data = vec![0.0; shape.iter().product()];
            reader.read(name, &shape, 0, &mut data)?;
            Ok((name.clone(), Tensor { shape, data }))
        });
        tensors.collect()
    }

    /// Takes the position of the newest checkpoint of a run that did not come to its end.
    fn read_checkpoint(&mut self, reader: Reader) -> Result<(), TrainError> {
        let position = &reader.manifest().position;
        self.losses.extend((1..).zip(reader.losses()?));
        self.corpus = Some(position.corpus.clone());
        self.kernel_class = Some(position.kernel_class.clone());
        self.weights_step = Some(position.step);
        self.checkpoint = Some(reader);
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
