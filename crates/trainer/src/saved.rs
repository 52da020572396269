//! What a worker learns with, and how it survives the process.
//!
//! A finished run leaves its weights, its optimizer's state and its position. Going on from them
//! gives the bits that the run would have had without the interruption.

use crate::device::kernel_class;
use crate::run_folder::TOKENIZER;
use crate::{RunFolder, Summary, TrainError};
use crate::{federated, rounds, uneven};
use lockstep_checkpoint::weights;
use lockstep_checkpoint::{CheckpointError, Scaling, TrainingState, WeightsHasher};
use lockstep_config::units::Bytes;
use lockstep_config::{BatchPlan, LossScale, OffloadState, Partition, Recipe, Sources, Stragglers};
use lockstep_data::{Cursor, Tokenizer};
use lockstep_optim::{ClipPlan, LearningRate, LossScaler, Optimizer, Phases, Slot};
use lockstep_parallel::federated::Federation;
use lockstep_parallel::{Groups, Replica, Shares, Stages};
use lockstep_parallel::{measure, tune};
use lockstep_platform::{FileKind, World};
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use lockstep_parallel::asked::{arena_bytes, blueprint_on, footprint};
pub(crate) use lockstep_parallel::asked::{phases_of, plan_at};

/// The model and everything that changes it.
pub struct Learner {
    /// Weights, gradients and activations.
    pub replica: Replica,
    /// Moments.
    pub optimizer: Optimizer,
    /// Learning rate by step.
    pub lr: LearningRate,
    /// Which gradients are clipped together, and by how much.
    pub clip: ClipPlan,
    /// The batch of every step.
    pub batches: BatchPlan,
    /// What is trained when.
    phases: Phases,
    /// What holds at present.
    now: Moment,
    /// Steps skipped in a row.
    pub num_skipped: u64,
    /// Steps left out since what is trained changed last: the optimizer does not count them.
    pub num_skipped_in_phase: u64,
    /// What the loss is multiplied by.
    pub scaler: LossScaler,
    /// Clients, where there are any.
    pub federation: Option<Federation>,
    world: World,
}

/// What may change between two steps of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Moment {
    phase: usize,
    batch: usize,
}

impl Learner {
    /// Allocates what this worker needs for training and fills in the initial weights.
    pub fn materialize(
        recipe: &Recipe,
        cpu: &Cpu,
        groups: &Groups,
        world: &World,
    ) -> Result<Self, TrainError> {
        let (blueprint, seed) = (blueprint_on(recipe, groups.rank()), recipe.train.seed);
        let mut plan = plan_at(recipe, &blueprint, 0);
        if recipe.num_servers() > 0 {
            plan.bucket_len = usize::MAX;
        } else if recipe.parallel.bucket_bytes == Bytes(0) {
            plan.bucket_len = tune::bucket_len(groups, world, blueprint.num_params())?;
        }
        if recipe.parallel.partition == Partition::Measured {
            let costs = measure::block_costs(&blueprint, plan.microbatch, cpu, groups, world)?;
            plan.stages = Stages::by_costs(recipe, &costs);
        }
        let batches = recipe.batch_plan();
        let now = Moment { phase: plan.phase, batch: batches.at(0).batch };
        let phases = plan.phases.clone();
        let mut replica = Replica::among(blueprint, seed, cpu, plan, groups.clone(), world)?;
        rounds::prepare(recipe, &mut replica)?;
        uneven::prepare(recipe, world, &mut replica)?;
        let tensors = replica.blueprint().tensors();
        let clip = ClipPlan::new(&recipe.optim, tensors.iter().map(|(_, p)| p.name.as_str()));
        let federation = federated::prepare(recipe, &mut replica, &clip, cpu, world)?;
        let optimizer = match recipe.num_servers() {
            0 => optimizer_at(recipe, &replica.slots(), 0, world)?,
            // Servers step, so nothing is kept here.
            _ => Optimizer::new(&recipe.optim, &[]),
        };
        Ok(Self {
            federation,
            optimizer,
            world: world.clone(),
            lr: LearningRate::new(&recipe.optim, recipe.train.steps),
            clip,
            batches,
            phases,
            now,
            num_skipped: 0,
            num_skipped_in_phase: 0,
            scaler: LossScaler::new(&recipe.precision),
            replica,
        })
    }

    /// Goes over to what holds in a step: another batch, other parameters that are frozen. State
    /// of parameters that are trained on stays; of others it goes or begins with zeros.
    pub fn enter(&mut self, recipe: &Recipe, step: u64) -> Result<(), TrainError> {
        let next = Moment { phase: self.phases.at(step), batch: self.batches.at(step).batch };
        if next == self.now {
            return Ok(());
        }
        let microbatches_per_leaf = next.batch / recipe.train.microbatch_size / recipe.num_leaves();
        self.replica.enter(next.phase, microbatches_per_leaf)?;
        if next.phase != self.now.phase {
            let first_step = self.phases.first_step(next.phase);
            let slots = self.replica.slots();
            let mut optimizer = optimizer_at(recipe, &slots, first_step, &self.world)?;
            optimizer.continue_from(&self.optimizer);
            self.optimizer = optimizer;
            self.num_skipped_in_phase = 0;
        }
        self.now = next;
        Ok(())
    }

    /// What a checkpoint says of the scale and of steps that were left out.
    pub fn scaling(&self) -> Scaling {
        Scaling {
            exponent: self.scaler.scale().map_or(0, LossScale::exponent),
            clean_steps: self.scaler.clean_steps(),
            num_skipped_in_phase: self.num_skipped_in_phase,
        }
    }

    /// Goes on from it.
    pub fn resume_scaling(&mut self, recipe: &Recipe, saved: Scaling) {
        let scale = LossScale::of_exponent(saved.exponent);
        self.scaler = LossScaler::resumed(&recipe.precision, scale, saved.clean_steps);
        self.num_skipped_in_phase = saved.num_skipped_in_phase;
    }

    /// The learning rate of a step.
    pub fn lr(&self, step: u64) -> f64 {
        self.lr.at(step, self.batches.at(step).batch)
    }
}

/// State of zeros for what is trained in a step, in memory or in a file as the recipe says.
fn optimizer_at(
    recipe: &Recipe,
    slots: &[Slot],
    step: u64,
    world: &World,
) -> Result<Optimizer, TrainError> {
    if recipe.offload.state == OffloadState::None {
        return Ok(Optimizer::at_step(&recipe.optim, slots, step));
    }
    let folder = offload_folder(recipe, world);
    let mut asked = 0;
    let make = |lens: &[usize]| {
        asked = lens.iter().sum::<usize>() * size_of::<f32>();
        world.files().paged(&folder, lens)
    };
    Optimizer::in_file(&recipe.optim, slots, step, make)
        .map_err(|error| TrainError::NoRoom { bytes: Bytes(asked as u64), error })
}

/// Where files of state are: as asked, or on the disk of the run's folder, which may not be there
/// yet.
fn offload_folder(recipe: &Recipe, world: &World) -> PathBuf {
    if !recipe.offload.folder.is_empty() {
        return PathBuf::from(&recipe.offload.folder);
    }
    let is_folder = |path: &&Path| world.files().metadata(path) == Some(FileKind::Directory);
    let found = Path::new(&recipe.run.dir).ancestors().find(is_folder);
    found.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// The leaves of the gradient sum that a worker with this part of the batch computes.
pub(crate) fn leaves_of(recipe: &Recipe, part: usize) -> Vec<usize> {
    if recipe.sync.uneven.stragglers == Stragglers::Shares {
        // Any leaf may come to be its own.
        return (0..recipe.num_leaves()).collect();
    }
    let shares = Shares::at_stage(usize::from(recipe.parallel.zero), &recipe.leaf_shares());
    shares.leaves_of(part, recipe.num_leaves())
}

/// Where training starts.
pub struct Start {
    /// The first step to run.
    pub step: u64,
    /// The position in the data.
    pub cursor: Cursor,
    /// Losses of the steps before, with room for all steps.
    pub losses: Vec<f64>,
    /// How long those steps took.
    pub seconds: f64,
    /// The checkpoint it starts from.
    pub from: Option<PathBuf>,
    /// What a person should know about checkpoints that could not be used.
    pub warnings: Vec<String>,
}

impl Start {
    /// The beginning of a run.
    pub(crate) fn new(recipe: &Recipe) -> Self {
        let num_steps = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
        Self {
            step: 0,
            cursor: Cursor::start(),
            losses: Vec::with_capacity(num_steps),
            seconds: 0.0,
            from: None,
            warnings: Vec::new(),
        }
    }
}

/// The first lines in which two sorted lists of settings differ.
pub(crate) fn first_difference(before: &str, now: &str) -> (String, String) {
    let only = |text: &str, other: &str| {
        let line = text.lines().find(|line| !other.lines().any(|other| other == *line));
        line.map_or_else(|| "nothing".to_owned(), str::to_owned)
    };
    (only(before, now), only(now, before))
}

/// Saves weights, optimizer and position, in the folder of the first worker; the position last, so
/// that it speaks of whole files. Tensors pass by one at a time, so that nobody needs room for a
/// model of which it keeps only a part. Returns the hash of the weights.
pub fn save(
    folder: Option<&RunFolder>,
    recipe: &Recipe,
    world: &World,
    learner: &mut Learner,
    cursor: &Cursor,
    losses: &[f64],
) -> Result<String, TrainError> {
    let metadata = BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("recipe_hash".to_owned(), recipe.hash()),
    ]);
    let scaling = learner.scaling();
    let Learner { replica, optimizer, .. } = learner;
    replica.settle()?;
    let outlines: Vec<_> = crate::pretrained::outlines(replica.blueprint()).into_iter().collect();
    let mut hasher = WeightsHasher::default();
    let weights = folder.map(RunFolder::weights);
    save_each(world, weights.as_deref(), &outlines, &metadata, |take| {
        replica.visit_params(|_, data| {
            hasher.update(data);
            Ok::<_, TrainError>(take(data)?)
        })
    })?;
    let weights_hash = hasher.finish();
    if recipe.run.save_optimizer && !recipe.keeps_more() {
        let kinds = optimizer.kinds();
        let state_of = |(name, shape): &(String, Vec<usize>)| {
            let len: usize = shape.iter().product();
            kinds.iter().map(|kind| (format!("{name}.{kind}"), vec![len])).collect::<Vec<_>>()
        };
        let trained = outlines.iter().filter(|(name, _)| replica.is_trained(name));
        let outlines: Vec<_> = trained.flat_map(state_of).collect();
        let moments = folder.map(RunFolder::optimizer);
        save_each(world, moments.as_deref(), &outlines, &BTreeMap::new(), |take| {
            replica.visit_state(optimizer, |_, _, data| Ok::<_, TrainError>(take(data)?))
        })?;
        if let Some(folder) = folder {
            let state = TrainingState {
                step: cursor.next_step,
                corpus: cursor.corpus.clone().unwrap_or_default(),
                recipe_hash: recipe.hash(),
                kernel_class: kernel_class(recipe).to_owned(),
                weights_hash: weights_hash.clone(),
                scaling,
                losses: losses.to_vec(),
            };
            state.save(world, &folder.state())?;
        }
    }
    Ok(weights_hash)
}

/// Writes the tensors that `produce` hands over; without a path they only pass by.
fn save_each(
    world: &World,
    path: Option<&Path>,
    outlines: &[(String, Vec<usize>)],
    metadata: &BTreeMap<String, String>,
    produce: impl FnOnce(
        &mut dyn FnMut(&[f32]) -> Result<(), CheckpointError>,
    ) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    match path {
        Some(path) => weights::save_each(world, path, outlines, metadata, produce),
        None => produce(&mut |_| Ok(())),
    }
}

/// Keeps the tokenizer of a run beside its weights, so that they stay readable when the text is
/// gone. A byte needs none.
pub fn save_tokenizer(
    folder: Option<&RunFolder>,
    world: &World,
    json: Option<&[u8]>,
) -> Result<(), TrainError> {
    if let (Some(folder), Some(json)) = (folder, json) {
        world.files().write_atomic(&folder.tokenizer(), json)?;
    }
    Ok(())
}

/// The tokenizer of a model in a folder: its `tokenizer.json`, or bytes where it has none.
pub fn tokenizer_in(folder: &Path, world: &World) -> Result<Tokenizer, TrainError> {
    let path = folder.join(TOKENIZER);
    match world.files().metadata(&path) {
        Some(_) => Ok(Tokenizer::open(&path.to_string_lossy(), world.files())?),
        None => Ok(Tokenizer::bytes()),
    }
}

/// Keeps the figures that `train --json` prints.
pub fn save_summary(
    folder: &RunFolder,
    world: &World,
    summary: &Summary,
) -> Result<(), TrainError> {
    let json = serde_json::to_string_pretty(summary).expect("a summary is JSON") + "\n";
    Ok(world.files().write_atomic(&folder.summary(), json.as_bytes())?)
}

/// The recipe that a run was trained with.
pub fn recipe_of(folder: &RunFolder, world: &World) -> Result<Recipe, TrainError> {
    let path = folder.recipe();
    let name = path.display().to_string();
    let text = world.files().read_to_string(&path)?;
    let file = Some((name.clone(), text));
    lockstep_config::resolve(&Sources { file, ..Sources::default() })
        .map_err(|errors| TrainError::SavedRecipe { path: name, reason: errors.to_string() })
}
