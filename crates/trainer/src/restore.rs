//! Where training starts: at the beginning, from a finished run, or from a checkpoint.
//!
//! A checkpoint is taken only if every file of it has its checksum. The workers read them in
//! parallel, each its share, and all hear of every fault; then the next older one is tried. What a
//! worker needs it reads itself, stretch by stretch, so nobody holds more than its part.

use crate::checkpoints;
use crate::device::kernel_class;
use crate::pretrained::{self, Pretrained};
use crate::saved::{self, Learner, Start, first_difference};
use crate::train::Life;
use crate::{Options, RunFolder, TrainError};
use crate::{rounds, uneven};
use lockstep_checkpoint::sharded::{MANIFEST, Position, Reader, Store};
use lockstep_checkpoint::{CheckpointError, TrainingState, weights};
use lockstep_comm::Comm;
use lockstep_config::{Recipe, Sources};
use lockstep_data::Cursor;
use lockstep_model::{Blueprint, Param};
use lockstep_optim::LearningRate;
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Takes up a saved run, or starts a new one, from the weights of the recipe's folder where it has
/// one. All workers do so together.
pub fn restore(
    options: &Options,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    learner: &mut Learner,
) -> Result<Start, TrainError> {
    let mut warnings = Vec::new();
    if let Some(store) = store_of_life(&options.life, recipe, world)
        && let Some(reader) = newest_sound(&store, None, comm, &mut warnings)?
    {
        return from_checkpoint(&reader, recipe, learner, warnings);
    }
    let Some(dir) = &options.resume else {
        warnings.extend(pretrained::load(recipe, world, learner)?);
        return Ok(Start { warnings, ..Start::new(recipe) });
    };
    match open(dir, recipe, world)? {
        Saved::Finished(folder, state) => from_finished(&folder, state, recipe, world, learner),
        Saved::Checkpoints { store, limit, .. } => {
            if let Some(reader) = newest_sound(&store, limit, comm, &mut warnings)? {
                return from_checkpoint(&reader, recipe, learner, warnings);
            }
            let (path, reason) = (store.dir().to_owned(), warnings.join("; "));
            Err(CheckpointError::BadCheckpoint { path, reason }.into())
        }
    }
}

/// What a folder has to go on from.
pub(crate) enum Saved {
    /// A run that ended.
    Finished(RunFolder, TrainingState),
    /// Checkpoints.
    Checkpoints {
        /// The folder of all of them.
        store: Store,
        /// The newest to look at, where not all of them are meant.
        limit: Option<u64>,
        /// What the newest that can be opened says about itself.
        position: Box<Position>,
    },
}

impl Saved {
    /// Steps that are done.
    pub(crate) fn step(&self) -> u64 {
        match self {
            Self::Finished(_, state) => state.step,
            Self::Checkpoints { position, .. } => position.step,
        }
    }
}

/// Finds what a folder has to go on from, if it is of this recipe: the folder of a run, of
/// checkpoints, or of one checkpoint.
pub(crate) fn open(dir: &Path, recipe: &Recipe, world: &World) -> Result<Saved, TrainError> {
    let finished = saved_at_end(dir, world)?;
    let checkpoints = match checkpoints_in(dir, world) {
        // Nobody needs them.
        Err(_) if finished.is_some() => None,
        found => found?,
    };
    let end = finished.as_ref().map_or(0, |(_, state)| state.step);
    match (finished, checkpoints) {
        (_, Some(saved)) if saved.step() > end || end == 0 => {
            if let Saved::Checkpoints { position, .. } = &saved
                && position.recipe_hash != recipe.hash()
            {
                refuse_another(dir, &recipe_in(&position.recipe, dir)?, recipe, position.step)?;
            }
            Ok(saved)
        }
        (Some((folder, state)), _) => {
            if state.recipe_hash != recipe.hash() {
                let before = Pretrained::open(dir, world)?.recipe(world)?;
                refuse_another(dir, &before, recipe, state.step)?;
            }
            Ok(Saved::Finished(folder, state))
        }
        // As if nothing but a finished run would do: it says what is missing.
        (None, _) => {
            RunFolder::finished(dir, world)?;
            let folder = RunFolder::started(dir, world)?;
            Ok(TrainingState::load(world, &folder.state()).map(|s| Saved::Finished(folder, s))?)
        }
    }
}

fn saved_at_end(
    dir: &Path,
    world: &World,
) -> Result<Option<(RunFolder, TrainingState)>, TrainError> {
    let Ok(folder) = RunFolder::finished(dir, world) else { return Ok(None) };
    if world.files().metadata(&folder.state()).is_none() {
        return Ok(None);
    }
    let state = TrainingState::load(world, &folder.state())?;
    Ok(Some((folder, state)))
}

/// The checkpoints that a folder has or is.
fn checkpoints_in(dir: &Path, world: &World) -> Result<Option<Saved>, TrainError> {
    if world.files().metadata(&dir.join(MANIFEST)).is_some() {
        let position = Reader::open(world, dir)?.manifest().position.clone();
        let store = Store::new(world, dir.parent().unwrap_or(Path::new(".")));
        let limit = Some(position.step);
        return Ok(Some(Saved::Checkpoints { store, limit, position: Box::new(position) }));
    }
    let store = store_in(dir, world)?;
    let mut first_fault = None;
    for step in store.steps()? {
        match store.open(step) {
            Ok(reader) => {
                let position = Box::new(reader.manifest().position.clone());
                return Ok(Some(Saved::Checkpoints { limit: None, store, position }));
            }
            Err(error) => first_fault = first_fault.or(Some(error)),
        }
    }
    first_fault.map_or(Ok(None), |error| Err(error.into()))
}

/// Where the checkpoints of a run lie; a folder that is none of a run holds them itself.
fn store_in(dir: &Path, world: &World) -> Result<Store, TrainError> {
    let place = match RunFolder::started(dir, world) {
        Ok(folder) => checkpoints::dir_of(&saved::recipe_of(&folder, world)?, dir),
        Err(_) => dir.to_owned(),
    };
    Ok(Store::new(world, &place))
}

/// The newest sound checkpoint of a run, or of a folder of checkpoints, if there are any.
pub(crate) fn newest_in(dir: &Path, world: &World) -> Result<Option<Reader>, TrainError> {
    let store = store_in(dir, world)?;
    let mut first_fault = None;
    for step in store.steps()? {
        let whole = |reader: Reader| reader.verify_all().map(|()| reader);
        match store.open(step).and_then(whole) {
            Ok(reader) => return Ok(Some(reader)),
            Err(error) => first_fault = first_fault.or(Some(error)),
        }
    }
    first_fault.map_or(Ok(None), |error| Err(error.into()))
}

/// Refuses to go on with another recipe. One that asks for more steps is the same, as long as all
/// steps that are done would have been what they were: then the bits are those of a run that was
/// that long from its beginning.
fn refuse_another(dir: &Path, before: &Recipe, now: &Recipe, done: u64) -> Result<(), TrainError> {
    let dir = dir.display().to_string();
    let mut longer = before.clone();
    longer.train.steps = now.train.steps;
    longer.optim.warmup_steps = now.optim.warmup_steps;
    if now.train.steps <= before.train.steps || longer.hash() != now.hash() {
        let (saved, asked) = first_difference(&before.identity_text(), &now.identity_text());
        return Err(TrainError::OtherRecipe { dir, saved, asked });
    }
    // Nothing but rates and rounds depends on how many steps there are.
    let [was, is] = [before, now].map(|r| LearningRate::new(&r.optim, r.train.steps));
    let batches = now.batch_plan();
    let rates = |step| [&was, &is].map(|lr| lr.at(step, batches.at(step).batch).to_bits());
    let steps = now.train.steps;
    if let Some(step) = (0..done).find(|step| rates(*step)[0] != rates(*step)[1]) {
        return Err(TrainError::OtherRates { dir, steps, step });
    }
    match (0..done).find(|step| before.round_at(*step) != now.round_at(*step)) {
        None => Ok(()),
        Some(step) => Err(TrainError::OtherRounds { dir, steps, step }),
    }
}

pub(crate) fn recipe_in(text: &str, dir: &Path) -> Result<Recipe, TrainError> {
    let name = dir.join(MANIFEST).display().to_string();
    let file = Some((name.clone(), text.to_owned()));
    lockstep_config::resolve(&Sources { file, ..Sources::default() })
        .map_err(|errors| TrainError::SavedRecipe { path: name, reason: errors.to_string() })
}

/// The checkpoints of the lives before this one.
fn store_of_life(life: &Life, recipe: &Recipe, world: &World) -> Option<Store> {
    let dir = life.dir.as_deref().filter(|_| life.restarts > 0)?;
    Some(Store::new(world, &checkpoints::dir_of(recipe, dir)))
}

/// The newest checkpoint, not newer than `newest`, whose files all have their checksums; a warning
/// for each that is passed over.
fn newest_sound(
    store: &Store,
    newest: Option<u64>,
    comm: &Comm,
    warnings: &mut Vec<String>,
) -> Result<Option<Reader>, TrainError> {
    // One worker looks, so that all try the same.
    let is_first = comm.group_rank() == 0;
    let own = if is_first { store.steps()? } else { Vec::new() };
    let mut steps = Vec::new();
    comm.all_gather_v(&own, &mut steps)?;
    steps.retain(|step| newest.is_none_or(|newest| *step <= newest));
    for (index, step) in steps.iter().enumerate() {
        let opened = store.open(*step);
        let found = opened.and_then(|reader| {
            let mine = (comm.group_rank()..reader.manifest().files.len()).step_by(comm.group_size());
            mine.into_iter().try_for_each(|file| reader.verify(file)).map(|()| reader)
        });
        let fault = found.as_ref().err().map_or_else(String::new, |error| format!("{error}\n"));
        let mut faults = Vec::new();
        comm.all_gather_v(fault.as_bytes(), &mut faults)?;
        if let (true, Ok(reader)) = (faults.is_empty(), found) {
            return Ok(Some(reader));
        }
        let faults = String::from_utf8_lossy(&faults);
        let first = faults.lines().next().unwrap_or_default();
        let is_last = index + 1 == steps.len();
        let next = if is_last { "there is no older one" } else { "trying the next older one" };
        warnings.push(format!("{first}; {next}"));
    }
    Ok(None)
}

fn from_checkpoint(
    reader: &Reader,
    recipe: &Recipe,
    learner: &mut Learner,
    warnings: Vec<String>,
) -> Result<Start, TrainError> {
    let position = &reader.manifest().position;
    // What was saved is of the last step that was done; the next may change what is held.
    learner.enter(recipe, position.step.saturating_sub(1))?;
    learner.num_skipped = position.num_skipped;
    learner.resume_scaling(recipe, position.scaling);
    let Learner { replica, optimizer, .. } = learner;
    replica.fill(|param, first, values| {
        let name = param.mirror_of.as_ref().unwrap_or(&param.name);
        for (run, place) in param.runs(first..first + values.len()) {
            let values = &mut values[run.start - first..run.end - first];
            reader.read(name, &param.shape, place, values)?;
        }
        Ok::<_, TrainError>(())
    })?;
    let params = by_piece(replica.blueprint());
    let shared = if recipe.has_own_state() { Vec::new() } else { optimizer.slots().to_vec() };
    for slot in shared {
        let param = params[&(slot.name.as_str(), slot.piece)];
        let first = slot.first - param.first();
        for (kind, name) in optimizer.kinds().iter().enumerate() {
            let own = optimizer.state_mut(&slot.name, slot.piece, kind).expect("its own");
            let name = format!("{}.{name}", slot.name);
            for (run, place) in param.runs(first..first + own.len()) {
                let own = &mut own[run.start - first..run.end - first];
                reader.read(&name, &[param.tensor_len()], place, own)?;
            }
        }
    }
    rounds::load(recipe, reader, learner)?;
    uneven::load(reader, &mut learner.replica)?;
    let mut start = Start::new(recipe);
    start.losses.extend(reader.losses()?);
    start.step = position.step;
    start.cursor = Cursor { next_step: position.step, corpus: Some(position.corpus.clone()) };
    start.seconds = position.seconds;
    start.from = Some(PathBuf::from(reader.folder()));
    start.warnings = warnings;
    start.warnings.extend(other_class(&position.kernel_class, recipe));
    Ok(start)
}

fn from_finished(
    folder: &RunFolder,
    state: TrainingState,
    recipe: &Recipe,
    world: &World,
    learner: &mut Learner,
) -> Result<Start, TrainError> {
    learner.enter(recipe, state.step.saturating_sub(1))?;
    learner.resume_scaling(recipe, state.scaling);
    let weights = weights::load(world, &folder.weights())?;
    if weights.hash() != state.weights_hash {
        let reason = "its weights are not those that state.json speaks of".to_owned();
        return Err(CheckpointError::Damaged { path: folder.weights(), reason }.into());
    }
    let Learner { replica, optimizer, .. } = learner;
    replica.restore(|param| Ok::<_, TrainError>(weights.tensor(&param.name, &param.shape)?))?;
    let moments = weights::load(world, &folder.optimizer())?;
    let params = by_piece(replica.blueprint());
    for slot in optimizer.slots().to_vec() {
        let param = params[&(slot.name.as_str(), slot.piece)];
        for (kind, name) in optimizer.kinds().iter().enumerate() {
            let saved = moments.tensor(&format!("{}.{name}", slot.name), &[param.tensor_len()])?;
            let own = optimizer.state_mut(&slot.name, slot.piece, kind).expect("its own");
            param.pick(slot.first - param.first(), saved, own);
        }
    }
    let mut start = Start::new(recipe);
    start.losses.extend(&state.losses);
    start.warnings.extend(other_class(&state.kernel_class, recipe));
    start.step = state.step;
    start.cursor = Cursor { next_step: state.step, corpus: Some(state.corpus) };
    Ok(start)
}

/// A warning where a run goes on with kernels of another class.
fn other_class(before: &str, recipe: &Recipe) -> Option<String> {
    let now = kernel_class(recipe);
    let message = format!(
        "it was computed with kernels of class {before} and goes on with {now}: its bits are not \
         those of an unbroken run"
    );
    (before != now).then_some(message)
}

/// The parameters that are held, by name and piece.
fn by_piece(blueprint: &Blueprint) -> BTreeMap<(&str, usize), &Param> {
    let params = blueprint.owned_params();
    params.map(|(_, param)| ((param.name.as_str(), param.piece.index), param)).collect()
}
