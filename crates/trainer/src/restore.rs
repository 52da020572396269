//! Restores a run from a checkpoint, from a finished run, or from the start.
//!
//! A checkpoint is used only if the checksums of all its files match. The ranks verify the files in
//! parallel and share all faults; after a fault they try the next older checkpoint. Each rank reads
//! only the ranges that it owns.

use crate::checkpoint_dir::{self, recipe_in, store_in};
use crate::learner::Learner;
use crate::options::Attempt;
use crate::pretrained::{self, MOMENTS, Pretrained, outlines};
use crate::resume_state::{ResumeState, differences};
use crate::run_list::list_runs;
use crate::{Options, RunFolder, TrainError, stragglers, worker_state};
use lockstep_checkpoint::pytorch::{self, OptimizerState};
use lockstep_checkpoint::sharded::{MANIFEST, Position, Reader, Store};
use lockstep_checkpoint::{CheckpointError, TrainingState, weights};
use lockstep_comm::Comm;
use lockstep_config::{OptimName, Recipe};
use lockstep_data::Cursor;
use lockstep_model::{Blueprint, Param, describe};
use lockstep_optim::{LearningRate, Optimizer};
use lockstep_parallel::Replica;
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Restores a saved run, or starts a new one with pretrained weights if the recipe names any. All
/// ranks call it together.
pub fn restore(
    options: &Options,
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    learner: &mut Learner,
) -> Result<ResumeState, TrainError> {
    let mut warnings = Vec::new();
    if let Some(store) = store_of_attempt(&options.attempt, recipe, world)
        && let Some(reader) = newest_valid(&store, None, comm, &mut warnings)?
    {
        return from_checkpoint(reader, recipe, learner, warnings);
    }
    let Some(dir) = &options.resume else {
        warnings.extend(pretrained::load(recipe, world, learner)?);
        let Learner { replica, optimizer, .. } = learner;
        optimizer.start_at(|slot| replica.owned_values(slot));
        return Ok(ResumeState { warnings, ..ResumeState::new(recipe) });
    };
    match open(dir, recipe, world)? {
        SavedState::Finished(folder, state) => {
            from_finished(&folder, state, recipe, world, learner)
        }
        SavedState::Checkpoints { store, limit, .. } => {
            if let Some(reader) = newest_valid(&store, limit, comm, &mut warnings)? {
                return from_checkpoint(reader, recipe, learner, warnings);
            }
            let (path, reason) = (store.dir().to_owned(), warnings.join("; "));
            Err(CheckpointError::BadCheckpoint { path, reason }.into())
        }
        SavedState::OtherProgram { pretrained, state } => {
            from_other_program(&pretrained, &state, recipe, learner)
        }
    }
}

/// SavedState state that a folder offers.
pub(crate) enum SavedState {
    /// A finished run.
    Finished(RunFolder, TrainingState),
    /// A folder of checkpoints.
    Checkpoints {
        /// Store of the checkpoints.
        store: Store,
        /// Newest step to consider, if the path names one checkpoint.
        limit: Option<u64>,
        /// Position of the newest checkpoint that opens.
        position: Box<Position>,
    },
    /// A checkpoint of a PyTorch program.
    OtherProgram {
        /// Its model.
        pretrained: Box<Pretrained>,
        /// State of its optimizer.
        state: Box<OptimizerState>,
    },
}

impl SavedState {
    /// Number of finished steps.
    pub(crate) fn step(&self) -> u64 {
        match self {
            Self::Finished(_, state) => state.step,
            Self::Checkpoints { position, .. } => position.step,
            Self::OtherProgram { state, .. } => state.step,
        }
    }
}

/// Finds the saved state in a run folder, a checkpoint folder or a single checkpoint, and refuses
/// one of another recipe.
pub(crate) fn open(dir: &Path, recipe: &Recipe, world: &World) -> Result<SavedState, TrainError> {
    if pytorch::is_one(world, dir) {
        return open_other_program(dir, recipe, world);
    }
    let finished = finished_run(dir, world)?;
    let checkpoints = match checkpoints_in(dir, world) {
        // The finished run makes them unnecessary.
        Err(_) if finished.is_some() => None,
        found => found?,
    };
    let end = finished.as_ref().map_or(0, |(_, state)| state.step);
    match (finished, checkpoints) {
        (_, Some(saved)) if saved.step() > end || end == 0 => {
            if let SavedState::Checkpoints { position, .. } = &saved
                && position.recipe_hash != recipe.hash()
            {
                refuse_other_recipe(
                    dir,
                    &recipe_in(&position.recipe, dir)?,
                    recipe,
                    position.step,
                )?;
            }
            Ok(saved)
        }
        (Some((folder, state)), _) => {
            if state.recipe_hash != recipe.hash() {
                let before = Pretrained::open(dir, world)?.recorded_recipe(world)?;
                refuse_other_recipe(dir, &before, recipe, state.step)?;
            }
            Ok(SavedState::Finished(folder, state))
        }
        (None, _) => {
            refuse_unsaved(dir, world)?;
            // Report the file that a finished run would have.
            RunFolder::finished(dir, world)?;
            let folder = RunFolder::started(dir, world)?;
            Ok(TrainingState::load(world, &folder.state())
                .map(|s| SavedState::Finished(folder, s))?)
        }
    }
}

/// Opens a checkpoint of a PyTorch program and checks that its state is that of the recipe's model
/// and optimizer.
fn open_other_program(
    dir: &Path,
    recipe: &Recipe,
    world: &World,
) -> Result<SavedState, TrainError> {
    let refuse = |reason: String| {
        let path = dir.to_owned();
        Err(TrainError::Checkpoint(CheckpointError::Foreign { path, reason }))
    };
    if !matches!(recipe.optim.name, OptimName::AdamW | OptimName::Adam) {
        let name = recipe.optim.name.name();
        return refuse(format!(
            "optim.name = {name} cannot continue from its optimizer state, which is that of adamw \
             or adam; set one of them, or train from the folder instead of resuming"
        ));
    }
    let pretrained = Pretrained::open(dir, world)?;
    let blueprint = describe(&recipe.model);
    pretrained.prove(&blueprint)?;
    let Some(folder) = pretrained.hugging_face() else {
        return refuse("it is no checkpoint of a PyTorch program".to_owned());
    };
    let state = pytorch::optimizer_state(world, folder)?;
    for (name, shape) in outlines(&blueprint) {
        for kind in MOMENTS {
            let name = format!("{name}.{kind}");
            match state.tensors.shape(&name) {
                Some(found) if found == shape => {}
                Some(found) => {
                    return refuse(format!(
                        "{name} has shape {found:?}, the model needs {shape:?}"
                    ));
                }
                None => return refuse(format!("it has no optimizer state {name}")),
            }
        }
    }
    Ok(SavedState::OtherProgram { pretrained: Box::new(pretrained), state: Box::new(state) })
}

/// Refuses a run that ended before it saved anything.
fn refuse_unsaved(dir: &Path, world: &World) -> Result<(), TrainError> {
    let is_unfinished =
        RunFolder::started(dir, world).is_ok() && RunFolder::finished(dir, world).is_err();
    let runs = if is_unfinished { list_runs(dir, world)? } else { Vec::new() };
    let Some(run) = runs.first() else { return Ok(()) };
    let requested = run.recipe.as_ref().map_or(run.steps, |recipe| recipe.train.steps);
    let dir = dir.display().to_string();
    Err(TrainError::NoCheckpoint { dir, done: run.steps, requested })
}

fn finished_run(
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

/// Checkpoints in a folder, or the folder itself as one checkpoint.
fn checkpoints_in(dir: &Path, world: &World) -> Result<Option<SavedState>, TrainError> {
    if world.files().metadata(&dir.join(MANIFEST)).is_some() {
        let position = Reader::open(world, dir)?.manifest().position.clone();
        let store = Store::new(world, dir.parent().unwrap_or(Path::new(".")));
        let limit = Some(position.step);
        return Ok(Some(SavedState::Checkpoints { store, limit, position: Box::new(position) }));
    }
    let store = store_in(dir, world)?;
    let mut first_fault = None;
    for step in store.steps()? {
        match store.open(step) {
            Ok(reader) => {
                let position = Box::new(reader.manifest().position.clone());
                return Ok(Some(SavedState::Checkpoints { limit: None, store, position }));
            }
            Err(error) => first_fault = first_fault.or(Some(error)),
        }
    }
    first_fault.map_or(Ok(None), |error| Err(error.into()))
}

/// Refuses another recipe. A recipe with more steps is accepted if every finished step would have
/// been the same; the bits are then those of a run that had this length from the start. Other
/// weights of a mixture are accepted, since the position of every source is saved.
fn refuse_other_recipe(
    dir: &Path,
    before: &Recipe,
    now: &Recipe,
    done: u64,
) -> Result<(), TrainError> {
    // An earlier version may have recorded another hash of an equal recipe.
    if before.hash() == now.hash() {
        return Ok(());
    }
    let mut before = before.clone();
    before.data.mixture = before.data.mixture.with_weights_of(&now.data.mixture);
    let before = &before;
    if before.hash() == now.hash() {
        return Ok(());
    }
    let dir = dir.display().to_string();
    let mut longer = before.clone();
    longer.train.steps = now.train.steps;
    longer.optim.warmup_steps = now.optim.warmup_steps;
    if now.train.steps <= before.train.steps || longer.hash() != now.hash() {
        let differences = differences(&before.identity_text(), &now.identity_text());
        return Err(TrainError::OtherRecipe { dir, differences });
    }
    // Only learning rates and rounds depend on the number of steps.
    let [was, is] = [before, now].map(|r| LearningRate::new(&r.optim, r.train.steps));
    let batches = now.batch_plan();
    let rates = |step| [&was, &is].map(|lr| lr.at(step, batches.at(step).batch).to_bits());
    let (saved_steps, steps) = (before.train.steps, now.train.steps);
    if let Some(step) = (0..done).find(|step| rates(*step)[0] != rates(*step)[1]) {
        return Err(TrainError::OtherRates { dir, saved_steps, steps, step });
    }
    match (0..done).find(|step| before.round_at(*step) != now.round_at(*step)) {
        None => Ok(()),
        Some(step) => Err(TrainError::OtherRounds { dir, saved_steps, steps, step }),
    }
}

/// Checkpoints of earlier attempts.
fn store_of_attempt(attempt: &Attempt, recipe: &Recipe, world: &World) -> Option<Store> {
    let dir = attempt.dir.as_deref().filter(|_| attempt.restarts > 0)?;
    Some(Store::new(world, &checkpoint_dir::dir_of(recipe, dir)))
}

/// Newest valid checkpoint up to step `newest`; adds a warning for each one that is skipped.
fn newest_valid(
    store: &Store,
    newest: Option<u64>,
    comm: &Comm,
    warnings: &mut Vec<String>,
) -> Result<Option<Reader>, TrainError> {
    // Rank 0 lists the steps, so that all ranks try the same ones.
    let is_first = comm.group_rank() == 0;
    let own = if is_first { store.steps()? } else { Vec::new() };
    let mut steps = Vec::new();
    comm.all_gather_v(&own, &mut steps)?;
    steps.retain(|step| newest.is_none_or(|newest| *step <= newest));
    for (index, step) in steps.iter().enumerate() {
        let opened = store.open(*step);
        let found = opened.and_then(|reader| {
            let mine =
                (comm.group_rank()..reader.manifest().files.len()).step_by(comm.group_size());
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
    reader: Reader,
    recipe: &Recipe,
    learner: &mut Learner,
    warnings: Vec<String>,
) -> Result<ResumeState, TrainError> {
    let position = &reader.manifest().position;
    // The state belongs to the last finished step; the next step may change the phase.
    learner.enter(recipe, position.step.saturating_sub(1))?;
    learner.stability.num_skipped = position.num_skipped;
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
    if !recipe.has_local_state() {
        fill_state(replica, optimizer, |name, len, place, values| {
            Ok(reader.read(name, &[len], place, values)?)
        })?;
    }
    replica.swap_averages(optimizer)?;
    worker_state::load(recipe, &reader, learner)?;
    stragglers::load(&reader, &mut learner.replica)?;
    let mut start = ResumeState::new(recipe);
    start.losses.extend(reader.losses()?);
    start.step = position.step;
    start.cursor = Cursor {
        next_step: position.step,
        corpus: Some(position.corpus.clone()),
        positions: position.data_positions.clone(),
    };
    start.seconds = position.seconds;
    start.from = Some(PathBuf::from(reader.folder()));
    start.warnings = warnings;
    start.warnings.extend(kernel_class_warning(&position.kernel_class, &learner.kernel_class));
    learner.resume_product_algorithms(&position.kernel_class, &position.product_algorithms)?;
    start.reader = Some(reader);
    Ok(start)
}

/// Reads the optimizer state that this rank owns: `read` gets its name, the length of the whole
/// state, and the index of the first element.
fn fill_state(
    replica: &Replica,
    optimizer: &mut Optimizer,
    read: impl Fn(&str, usize, usize, &mut [f32]) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let params = by_piece(replica.blueprint());
    for slot in optimizer.slots().to_vec() {
        let param = params[&(slot.name.as_str(), slot.piece)];
        let first = slot.first - param.first();
        for (kind, name) in optimizer.state_names_of(slot.matrix).iter().enumerate() {
            let name = format!("{}.{name}", slot.name);
            optimizer.write_state((&slot.name, slot.piece), kind, |at, own| {
                let first = first + at;
                for (run, place) in param.runs(first..first + own.len()) {
                    let own = &mut own[run.start - first..run.end - first];
                    read(&name, param.tensor_len(), place, own)?;
                }
                Ok::<_, TrainError>(())
            })?;
        }
    }
    for (param, kind, values) in optimizer.factored_state_mut() {
        read(&format!("{param}.{kind}"), values.len(), 0, values)?;
    }
    Ok(())
}

/// Continues after the last update of a PyTorch program, whose losses are unknown. The data goes on
/// at that step of this recipe's order.
fn from_other_program(
    pretrained: &Pretrained,
    state: &OptimizerState,
    recipe: &Recipe,
    learner: &mut Learner,
) -> Result<ResumeState, TrainError> {
    learner.enter(recipe, state.step.saturating_sub(1))?;
    let Learner { replica, optimizer, .. } = learner;
    replica.fill(|param, first, values| pretrained.read_piece(param, first, values))?;
    fill_state(replica, optimizer, |name, _, place, values| {
        Ok(state.tensors.read(name, place, values)?)
    })?;
    replica.swap_averages(optimizer)?;
    let mut start = ResumeState::new(recipe);
    start.losses.extend((0..state.step).map(|_| f64::NAN));
    start.step = state.step;
    start.cursor = Cursor { next_step: state.step, ..Cursor::start() };
    start.from = Some(pretrained.path().to_owned());
    Ok(start)
}

fn from_finished(
    folder: &RunFolder,
    state: TrainingState,
    recipe: &Recipe,
    world: &World,
    learner: &mut Learner,
) -> Result<ResumeState, TrainError> {
    learner.enter(recipe, state.step.saturating_sub(1))?;
    learner.resume_scaling(recipe, state.scaling);
    let weights = weights::load(world, &folder.weights())?;
    if weights.hash() != state.weights_hash {
        let reason = "the hash of the weights differs from that in state.json".to_owned();
        return Err(CheckpointError::Damaged { path: folder.weights(), reason }.into());
    }
    let Learner { replica, optimizer, .. } = learner;
    replica.restore(|param| Ok::<_, TrainError>(weights.tensor(&param.name, &param.shape)?))?;
    let moments = weights::load(world, &folder.optimizer())?;
    let params = by_piece(replica.blueprint());
    for slot in optimizer.slots().to_vec() {
        let param = params[&(slot.name.as_str(), slot.piece)];
        for (kind, name) in optimizer.state_names_of(slot.matrix).iter().enumerate() {
            let saved = moments.tensor(&format!("{}.{name}", slot.name), &[param.tensor_len()])?;
            optimizer.write_state((&slot.name, slot.piece), kind, |at, own| {
                param.pick(slot.first - param.first() + at, saved, own);
                Ok::<_, TrainError>(())
            })?;
        }
    }
    for (param, kind, values) in optimizer.factored_state_mut() {
        values.copy_from_slice(moments.tensor(&format!("{param}.{kind}"), &[values.len()])?);
    }
    replica.swap_averages(optimizer)?;
    let mut start = ResumeState::new(recipe);
    start.losses.extend(&state.losses);
    start.warnings.extend(kernel_class_warning(&state.kernel_class, &learner.kernel_class));
    learner.resume_product_algorithms(&state.kernel_class, &state.product_algorithms)?;
    start.step = state.step;
    let positions = state.data_positions;
    start.cursor = Cursor { next_step: state.step, corpus: Some(state.corpus), positions };
    Ok(start)
}

/// Warns if the kernel class changed.
fn kernel_class_warning(before: &str, now: &str) -> Option<String> {
    let message = format!(
        "the run was computed with kernels of class {before} and resumes with {now}: its bits are \
         not those of an uninterrupted run"
    );
    (before != now).then_some(message)
}

/// Parameters of this rank, by name and shard.
fn by_piece(blueprint: &Blueprint) -> BTreeMap<(&str, usize), &Param> {
    let params = blueprint.owned_params();
    params.map(|(_, param)| ((param.name.as_str(), param.piece.index), param)).collect()
}
