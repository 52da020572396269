//! What a worker learns with, and how it survives the process.
//!
//! A finished run leaves its weights, its optimizer's state and its position. Going on from them
//! gives the bits that the run would have had without the interruption.

use crate::device::KERNEL_CLASS;
use crate::train::lane_shape;
use crate::{RunFolder, Summary, TrainError};
use lockstep_checkpoint::weights::{self, NamedTensor};
use lockstep_checkpoint::{TrainingState, Weights, weights_hash};
use lockstep_config::{Recipe, Sources};
use lockstep_data::Cursor;
use lockstep_model::{Blueprint, Recompute, describe};
use lockstep_optim::{GlobalNorm, LearningRate, Optimizer};
use lockstep_parallel::{Footprint, Leaves, Replica, ReplicaPlan};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::path::Path;

/// The model and everything that changes it.
pub struct Learner {
    /// Weights, gradients and activations.
    pub replica: Replica,
    /// Moments.
    pub optimizer: Optimizer,
    /// Measures gradients.
    pub norm: GlobalNorm,
    /// Learning rate by step.
    pub lr: LearningRate,
}

impl Learner {
    /// Allocates everything that training needs and fills in the initial weights.
    pub fn materialize(recipe: &Recipe, cpu: &Cpu) -> Self {
        let blueprint = describe(&recipe.model);
        let replica = Replica::materialize(blueprint, recipe.train.seed, cpu, plan_of(recipe));
        let slots = replica.slots();
        Self {
            optimizer: Optimizer::new(&recipe.optim, &slots),
            norm: GlobalNorm::new(&slots),
            lr: LearningRate::new(&recipe.optim, recipe.train.steps),
            replica,
        }
    }

    /// The weights by name, tied ones once.
    pub fn named_weights(&self) -> Vec<NamedTensor<'_>> {
        let named = self.replica.named_params();
        named.map(|(p, data)| NamedTensor { name: &p.name, shape: &p.shape, data }).collect()
    }
}

/// The sizes that a recipe asks for.
fn plan_of(recipe: &Recipe) -> ReplicaPlan {
    let (num_leaves, lanes_per_leaf) = (recipe.num_leaves(), recipe.lanes_per_leaf());
    ReplicaPlan {
        lane: lane_shape(recipe),
        leaves: Leaves { num_leaves, lanes_per_leaf },
        recompute: Recompute::None,
    }
}

/// The memory that training will take, before any of it is allocated.
pub fn footprint(recipe: &Recipe, blueprint: &Blueprint) -> Footprint {
    Footprint::plan(blueprint, &plan_of(recipe), recipe.optim.name)
}

/// Where training starts.
pub struct Start {
    /// The first step to run.
    pub step: u64,
    /// The position in the data.
    pub cursor: Cursor,
    /// Losses of the steps before, with room for all steps.
    pub losses: Vec<f64>,
}

/// Takes up a saved run, or starts a new one.
pub fn restore(
    resume: Option<&Path>,
    recipe: &Recipe,
    world: &World,
    learner: &mut Learner,
) -> Result<Start, TrainError> {
    let num_steps = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
    let mut losses = Vec::with_capacity(num_steps);
    let Some(dir) = resume else {
        return Ok(Start { step: 0, cursor: Cursor::start(), losses });
    };
    let (folder, state) = open(dir, recipe, world)?;
    let weights = weights::load(world, &folder.weights())?;
    let params: Vec<_> =
        learner.replica.named_params().map(|(p, _)| (p.name.clone(), p.shape.clone())).collect();
    for (name, shape) in &params {
        let saved = weights.tensor(name, shape)?;
        learner.replica.param_mut(name).expect("named just now").copy_from_slice(saved);
    }
    learner.replica.refresh_mirrors();
    let moments = weights::load(world, &folder.optimizer())?;
    let names: Vec<_> = learner.optimizer.state().map(|(name, data)| (name, data.len())).collect();
    for (name, len) in &names {
        let saved = moments.tensor(name, &[*len])?;
        learner.optimizer.state_mut(name).expect("named just now").copy_from_slice(saved);
    }
    losses.extend(&state.losses);
    let cursor = Cursor { next_step: state.step, corpus: Some(state.corpus) };
    Ok(Start { step: state.step, cursor, losses })
}

/// The run in this folder and where it stopped, if it is one of this recipe.
pub(crate) fn open(
    dir: &Path,
    recipe: &Recipe,
    world: &World,
) -> Result<(RunFolder, TrainingState), TrainError> {
    let folder = RunFolder::finished(dir, world)?;
    let state = TrainingState::load(world, &folder.state())?;
    if state.recipe_hash != recipe.hash() {
        return Err(TrainError::OtherRecipe {
            dir: dir.display().to_string(),
            saved: state.recipe_hash,
            asked: recipe.hash(),
        });
    }
    Ok((folder, state))
}

/// Saves weights, optimizer and position; the position last, so that it speaks of whole files.
pub fn save(
    folder: &RunFolder,
    recipe: &Recipe,
    world: &World,
    learner: &Learner,
    cursor: &Cursor,
    losses: &[f64],
) -> Result<(), TrainError> {
    let named = learner.named_weights();
    let metadata = BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("recipe_hash".to_owned(), recipe.hash()),
    ]);
    weights::save(world, &folder.weights(), &named, &metadata)?;
    if recipe.run.save_optimizer {
        let state: Vec<_> = learner.optimizer.state().collect();
        let shapes: Vec<_> = state.iter().map(|(_, data)| [data.len()]).collect();
        let named: Vec<_> = state
            .iter()
            .zip(&shapes)
            .map(|((name, data), shape)| NamedTensor { name, shape, data })
            .collect();
        weights::save(world, &folder.optimizer(), &named, &BTreeMap::new())?;
        let state = TrainingState {
            step: cursor.next_step,
            corpus: cursor.corpus.clone().unwrap_or_default(),
            recipe_hash: recipe.hash(),
            kernel_class: KERNEL_CLASS.to_owned(),
            weights_hash: weights_hash(&learner.named_weights()),
            losses: losses.to_vec(),
        };
        state.save(world, &folder.state())?;
    }
    Ok(())
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

/// The flat parameter buffer of each block, mirrors included, from saved weights.
pub fn load_params(blueprint: &Blueprint, saved: &Weights) -> Result<Vec<Vec<f32>>, TrainError> {
    let mut params: Vec<_> = blueprint.blocks.iter().map(|b| vec![0.0; b.num_params()]).collect();
    for (block, param) in blueprint.params() {
        let name = param.mirror_of.as_ref().unwrap_or(&param.name);
        params[block][param.range()].copy_from_slice(saved.tensor(name, &param.shape)?);
    }
    let known = |name: &String| blueprint.owned_params().any(|(_, param)| param.name == *name);
    if let Some(extra) = saved.tensors.keys().find(|name| !known(name)) {
        return Err(TrainError::OtherModel {
            path: saved.path.display().to_string(),
            what: format!("it has a tensor {extra} that the recipe's model lacks"),
        });
    }
    Ok(params)
}
