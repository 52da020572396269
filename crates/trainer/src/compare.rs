//! Compares two runs bit for bit and reports the first difference.
//!
//! A step's loss is measured before its update. The first step with differing losses therefore
//! points at the previous update or at this step's forward pass; the first differing tensor, in
//! model order, says where to look. Runs of different lengths are compared up to the shorter one.
//! Weights are compared only if both were saved after the same step; those of a run that did not
//! come to its end are in its newest checkpoint.

mod run_record;
mod tensors;

use crate::TrainError;
use lockstep_checkpoint::CheckpointError;
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_platform::World;
use run_record::{RunRecord, TensorKind};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub use tensors::{ElementDifference, TensorDifference, Tensors, Unmatched};

/// Differences of two runs, A and B.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// Equal number of steps, and bit-identical losses, weights and optimizer state.
    pub equal: bool,
    /// Folder of A.
    pub run_a: String,
    /// Folder of B.
    pub run_b: String,
    /// Differing settings that may change bits: recipe keys, the corpus, the kernels.
    pub recipe: Vec<Setting>,
    /// Differing settings that must not change bits: workers, threads, folders.
    pub layout: Vec<Setting>,
    /// Number of steps of A.
    pub steps_a: u64,
    /// Number of steps of B.
    pub steps_b: u64,
    /// Number of steps whose losses both runs recorded.
    pub common_steps: usize,
    /// Number of those steps before the first difference.
    pub equal_steps: usize,
    /// First step whose losses differ.
    pub first_step: Option<StepDifference>,
    /// Weights, if both were saved after the same step.
    pub weights: Option<Tensors>,
    /// Optimizer state, if both runs saved it.
    pub optimizer: Option<Tensors>,
    /// Parts that were not compared, with the reason.
    pub notes: Vec<String>,
}

/// A setting that differs; null where it does not apply.
#[derive(Debug, PartialEq, Serialize)]
pub struct Setting {
    /// A key of the recipe, `corpus` or `kernel_class`.
    pub key: String,
    /// Its value in A.
    pub a: Value,
    /// Its value in B.
    pub b: Value,
}

/// A step whose losses differ.
#[derive(Debug, PartialEq, Serialize)]
pub struct StepDifference {
    /// Step number, counted from one.
    pub step: u64,
    /// Loss of A.
    pub a: f64,
    /// Loss of B.
    pub b: f64,
    /// Distance in units in the last place (64-bit floats).
    pub ulps: u64,
    /// Difference relative to the larger loss.
    pub relative: f64,
}

/// Compares the runs in two folders, finished or not.
pub fn compare(path_a: &Path, path_b: &Path, world: &World) -> Result<Comparison, TrainError> {
    let (a, b) = (RunRecord::read(path_a, world)?, RunRecord::read(path_b, world)?);
    let losses = a.losses.iter().filter_map(|(&step, &a)| Some((step, a, *b.losses.get(&step)?)));
    let losses: Vec<(u64, f64, f64)> = losses.collect();
    let parting = losses.iter().position(|(_, a, b)| a.to_bits() != b.to_bits());
    let weights = tensors(&a, &b, TensorKind::Weights, world)?;
    let optimizer = tensors(&a, &b, TensorKind::OptimizerState, world)?;
    let (steps_a, steps_b) = (a.last_step(), b.last_step());
    let (recipe, layout) = settings(&a, &b);
    Ok(Comparison {
        equal: steps_a == steps_b
            && a.weights_step == Some(steps_a)
            && parting.is_none()
            && weights.as_ref().is_some_and(Tensors::equal)
            && optimizer.as_ref().is_none_or(Tensors::equal),
        run_a: path_a.display().to_string(),
        run_b: path_b.display().to_string(),
        recipe,
        layout,
        steps_a,
        steps_b,
        common_steps: losses.len(),
        equal_steps: parting.unwrap_or(losses.len()),
        first_step: parting.map(|index| step_difference(losses[index])),
        notes: notes(&a, &b, weights.is_some(), optimizer.is_some()),
        weights,
        optimizer,
    })
}

fn step_difference((step, a, b): (u64, f64, f64)) -> StepDifference {
    let relative = (a - b).abs() / a.abs().max(b.abs());
    StepDifference { step, a, b, ulps: tensors::ulps_f64(a, b), relative }
}

/// Reason why the weights cannot be compared.
fn obstacle(a: &RunRecord, b: &RunRecord) -> Option<String> {
    match (a.weights_step, b.weights_step) {
        (Some(a), Some(b)) if a == b => None,
        (Some(a), Some(b)) => Some(format!("A saved them after step {a}, B after step {b}")),
        (None, None) => Some("neither run saved any".to_owned()),
        (None, _) => Some("A saved none".to_owned()),
        (_, None) => Some("B saved none".to_owned()),
    }
}

fn notes(
    a: &RunRecord,
    b: &RunRecord,
    weights_compared: bool,
    optimizer_compared: bool,
) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, past) in [("A", a), ("B", b)] {
        let first_step = past.losses.first_key_value().map_or(1, |(step, _)| *step);
        if first_step > 1 {
            notes.push(format!("losses of {name} are known from step {first_step} on only"));
        }
    }
    for (name, past) in [("A", a), ("B", b)] {
        if let Some(step) = past.weights_step.filter(|_| past.has_checkpoint_only()) {
            notes.push(format!("weights of {name} are those of its checkpoint after step {step}"));
        }
    }
    match obstacle(a, b) {
        Some(why) => notes.push(format!("weights are not compared: {why}")),
        None if !weights_compared => {
            notes.push("weights are not compared: a run saved none of its model".to_owned());
        }
        None if !optimizer_compared => {
            notes.push("optimizer state is not compared: a run did not save it".to_owned());
        }
        None => {}
    }
    notes
}

/// Compares saved tensors of both runs; none if a run lacks them or saved them after another step.
fn tensors(
    a: &RunRecord,
    b: &RunRecord,
    kind: TensorKind,
    world: &World,
) -> Result<Option<Tensors>, CheckpointError> {
    if obstacle(a, b).is_some() {
        return Ok(None);
    }
    let (Some(tensors_a), Some(tensors_b)) =
        (a.load_tensors(kind, world)?, b.load_tensors(kind, world)?)
    else {
        return Ok(None);
    };
    let (blueprint_a, blueprint_b) = (describe(&a.recipe.model), describe(&b.recipe.model));
    let params = blueprint_a.owned_params().chain(blueprint_b.owned_params());
    let order: Vec<&str> = params.map(|(_, param)| param.name.as_str()).collect();
    Ok(Some(Tensors::compare(&tensors_a, &tensors_b, &order)))
}

/// Differing settings: those that may change bits, and the others.
fn settings(a: &RunRecord, b: &RunRecord) -> (Vec<Setting>, Vec<Setting>) {
    let identity = [a, b].map(|past| past.recipe.identity_text()).concat();
    let mut counting: BTreeSet<&str> =
        identity.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    if a.recipe.num_tensor_shards() != b.recipe.num_tensor_shards() {
        counting.insert("parallel.tensor");
    }
    let (mut values_a, mut values_b) = (values(&a.recipe), values(&b.recipe));
    let keys: BTreeSet<String> = values_a.keys().chain(values_b.keys()).cloned().collect();
    // Two runs never share a folder.
    let differing = keys.into_iter().filter(|key| key != "run.dir").map(|key| Setting {
        a: values_a.remove(&key).unwrap_or_default(),
        b: values_b.remove(&key).unwrap_or_default(),
        key,
    });
    let (mut recipe, layout): (Vec<_>, Vec<_>) = differing
        .filter(|setting| setting.a != setting.b)
        .partition(|setting| counting.contains(setting.key.as_str()));
    // Equal recipes may name a corpus that changed between the runs, or run other kernels.
    for (key, a, b) in
        [("corpus", &a.corpus, &b.corpus), ("kernel_class", &a.kernel_class, &b.kernel_class)]
    {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            recipe.push(Setting { key: key.into(), a: a.as_str().into(), b: b.as_str().into() });
        }
    }
    (recipe, layout)
}

/// All applicable keys (`table.key`) with their values.
fn values(recipe: &Recipe) -> BTreeMap<String, Value> {
    let tables = serde_json::to_value(recipe).expect("a recipe is JSON");
    let tables = tables.as_object().expect("a recipe is a map of tables");
    let keys = tables.iter().flat_map(|(table, keys)| {
        let keys = keys.as_object().expect("a table is a map of keys").iter();
        keys.map(move |(key, value)| (format!("{table}.{key}"), value.clone()))
    });
    keys.collect()
}
