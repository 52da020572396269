//! Are two runs the same to the bit, and if not, where do they part?
//!
//! The loss of a step is measured before its update. So the first step whose losses differ says
//! that something went another way in the update before it or in its own forward pass, and the
//! first differing tensor, in the order in which the model computes, says where to look. Runs of
//! different lengths are compared as far as both go; weights only if saved after the same step,
//! because any step changes all of them.

mod past;
mod tensors;

use crate::{RunFolder, TrainError};
use lockstep_checkpoint::{CheckpointError, weights};
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_platform::World;
use past::Past;
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub use tensors::{ElementDifference, TensorDifference, Tensors, Unmatched};

/// What two runs, A and B, have in common and where they part.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// As many steps, and no loss, weight or piece of optimizer state has another bit.
    pub equal: bool,
    /// The folder of A.
    pub run_a: String,
    /// The folder of B.
    pub run_b: String,
    /// Differing settings that bits may depend on: keys of the recipe, the text, the kernels.
    pub recipe: Vec<Setting>,
    /// Differing settings that they must not depend on: keys that say where and by how many hands.
    pub layout: Vec<Setting>,
    /// Steps that A has done.
    pub steps_a: u64,
    /// Steps that B has done.
    pub steps_b: u64,
    /// Steps whose losses are known of both.
    pub common_steps: usize,
    /// How many of those come before the first that differs.
    pub equal_steps: usize,
    /// The first step whose losses differ.
    pub first_step: Option<StepDifference>,
    /// The weights, where both were saved after the same step.
    pub weights: Option<Tensors>,
    /// The optimizer's state, where both kept it too.
    pub optimizer: Option<Tensors>,
    /// What was not compared, and why.
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
    /// Counted from one.
    pub step: u64,
    /// The loss of A.
    pub a: f64,
    /// The loss of B.
    pub b: f64,
    /// Steps from one to the other through the floats of 64 bits.
    pub ulps: u64,
    /// Their difference as a fraction of the larger.
    pub relative: f64,
}

/// Compares the runs in two folders, finished or not.
pub fn compare(path_a: &Path, path_b: &Path, world: &World) -> Result<Comparison, TrainError> {
    let (a, b) = (Past::read(path_a, world)?, Past::read(path_b, world)?);
    let losses = a.losses.iter().filter_map(|(&step, &a)| Some((step, a, *b.losses.get(&step)?)));
    let losses: Vec<(u64, f64, f64)> = losses.collect();
    let parting = losses.iter().position(|(_, a, b)| a.to_bits() != b.to_bits());
    let weights = tensors(&a, &b, RunFolder::weights, world)?;
    let optimizer = tensors(&a, &b, RunFolder::optimizer, world)?;
    let (steps_a, steps_b) = (a.last_step(), b.last_step());
    let (recipe, layout) = settings(&a, &b);
    Ok(Comparison {
        equal: steps_a == steps_b
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
        notes: notes(&a, &b, optimizer.is_some()),
        weights,
        optimizer,
    })
}

fn step_difference((step, a, b): (u64, f64, f64)) -> StepDifference {
    let relative = (a - b).abs() / a.abs().max(b.abs());
    StepDifference { step, a, b, ulps: tensors::ulps_f64(a, b), relative }
}

/// Why the weights cannot be compared.
fn obstacle(a: &Past, b: &Past) -> Option<String> {
    match (a.weights_step, b.weights_step) {
        (Some(a), Some(b)) if a == b => None,
        (Some(a), Some(b)) => Some(format!("A saved them after {a} steps, B after {b}")),
        (None, None) => Some("neither run has any".to_owned()),
        (None, _) => Some("A has none".to_owned()),
        (_, None) => Some("B has none".to_owned()),
    }
}

fn notes(a: &Past, b: &Past, optimizer_compared: bool) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, past) in [("A", a), ("B", b)] {
        let first_step = past.losses.first_key_value().map_or(1, |(step, _)| *step);
        if first_step > 1 {
            notes.push(format!("the losses of {name} are only known from step {first_step} on"));
        }
    }
    match obstacle(a, b) {
        Some(why) => notes.push(format!("weights are not compared: {why}")),
        None if !optimizer_compared => {
            notes.push("optimizer state is not compared: not both runs kept it".to_owned());
        }
        None => {}
    }
    notes
}

/// Compares a file of tensors; nothing where one run lacks it or has it of another step.
fn tensors(
    a: &Past,
    b: &Past,
    file: fn(&RunFolder) -> PathBuf,
    world: &World,
) -> Result<Option<Tensors>, CheckpointError> {
    let (path_a, path_b) = (file(&a.folder), file(&b.folder));
    let missing = [&path_a, &path_b].iter().any(|path| world.files().metadata(path).is_none());
    if missing || obstacle(a, b).is_some() {
        return Ok(None);
    }
    let (blueprint_a, blueprint_b) = (describe(&a.recipe.model), describe(&b.recipe.model));
    let params = blueprint_a.owned_params().chain(blueprint_b.owned_params());
    let order: Vec<&str> = params.map(|(_, param)| param.name.as_str()).collect();
    let (a, b) = (weights::load(world, &path_a)?, weights::load(world, &path_b)?);
    Ok(Some(Tensors::compare(&a.tensors, &b.tensors, &order)))
}

/// The settings that differ: those that bits may depend on, and the others.
fn settings(a: &Past, b: &Past) -> (Vec<Setting>, Vec<Setting>) {
    let identity = [a, b].map(|past| past.recipe.identity_text()).concat();
    let counting: BTreeSet<&str> =
        identity.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    let (mut values_a, mut values_b) = (values(&a.recipe), values(&b.recipe));
    let keys: BTreeSet<String> = values_a.keys().chain(values_b.keys()).cloned().collect();
    // Two runs never share a folder, which says nothing.
    let differing = keys.into_iter().filter(|key| key != "run.dir").map(|key| Setting {
        a: values_a.remove(&key).unwrap_or_default(),
        b: values_b.remove(&key).unwrap_or_default(),
        key,
    });
    let (mut recipe, layout): (Vec<_>, Vec<_>) = differing
        .filter(|setting| setting.a != setting.b)
        .partition(|setting| counting.contains(setting.key.as_str()));
    // Equal recipes may name a text that changed between the runs, or meet other kernels.
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

/// Every key that applies, `table.key`, with its value.
fn values(recipe: &Recipe) -> BTreeMap<String, Value> {
    let tables = serde_json::to_value(recipe).expect("a recipe is JSON");
    let tables = tables.as_object().expect("a recipe is a map of tables");
    let keys = tables.iter().flat_map(|(table, keys)| {
        let keys = keys.as_object().expect("a table is a map of keys").iter();
        keys.map(move |(key, value)| (format!("{table}.{key}"), value.clone()))
    });
    keys.collect()
}
