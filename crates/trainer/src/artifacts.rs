//! Final artifacts of a run: weights, adapters, optimizer state, tokenizer and summary.
//!
//! Resuming from them gives the same bits as a run without the interruption.

use crate::learner::Learner;
use crate::pretrained::base_model;
use crate::vocabulary::companions_of_run;
use crate::{RunFolder, Summary, TrainError};
use lockstep_checkpoint::peft::{self, AdapterExport};
use lockstep_checkpoint::{CheckpointError, ElementType, TrainingState, WeightsHasher, weights};
use lockstep_config::Recipe;
use lockstep_data::{Cursor, Tokenizer};
use lockstep_model::{Blueprint, Param, lora};
use lockstep_platform::World;
use std::collections::BTreeMap;
use std::path::Path;

/// Saves weights, optimizer state and position into rank 0's run folder. The position is written
/// last, so it never refers to partial files. Tensors are streamed one at a time: no rank needs
/// memory for the whole model. Returns the hash of the weights.
pub(crate) fn save(
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
    // No step follows, so the averages of the weights stay installed.
    replica.swap_averages(optimizer)?;
    let outlines: Vec<_> = crate::pretrained::outlines(replica.blueprint()).into_iter().collect();
    let mut hasher = WeightsHasher::default();
    let weights = folder.map(RunFolder::weights);
    let mut adapters = BTreeMap::new();
    save_each(world, weights.as_deref(), &outlines, &metadata, |take| {
        replica.visit_params(|param, data| {
            hasher.update(data);
            if folder.is_some() && lora::is_adapter(&param.name) {
                adapters.insert(param.name.clone(), (param.shape.clone(), data.to_vec()));
            }
            Ok::<_, TrainError>(take(data)?)
        })
    })?;
    if let Some(folder) = folder {
        save_adapters(folder, recipe, world, &adapters)?;
    }
    let weights_hash = hasher.finish();
    if recipe.run.save_optimizer && !recipe.has_extra_state() {
        let blueprint = replica.blueprint();
        let names_of = |(block, param): (usize, &Param)| {
            let (shape, matrix) =
                (Blueprint::rows_and_cols(param), blueprint.hidden_matrix(block, param));
            (param.name.clone(), optimizer.saved_state_of(shape, matrix))
        };
        let states: BTreeMap<_, _> = blueprint.tensors().into_iter().map(names_of).collect();
        let state_of = |(name, _): &(String, Vec<usize>)| {
            let of_tensor = states[name].iter();
            of_tensor.map(|(kind, len)| (format!("{name}.{kind}"), vec![*len])).collect::<Vec<_>>()
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
                data_positions: cursor.positions.clone(),
                recipe_hash: recipe.hash(),
                kernel_class: learner.kernel_class.clone(),
                product_algorithms: learner.product_algorithms()?,
                weights_hash: weights_hash.clone(),
                scaling,
                losses: losses.to_vec(),
            };
            state.save(world, &folder.state())?;
        }
    }
    Ok(weights_hash)
}

/// Saves the adapters once more, as a folder that `peft` reads; a run without adapters has none.
fn save_adapters(
    folder: &RunFolder,
    recipe: &Recipe,
    world: &World,
    adapters: &BTreeMap<String, (Vec<usize>, Vec<f32>)>,
) -> Result<(), TrainError> {
    if adapters.is_empty() {
        return Ok(());
    }
    let outlines = adapters.iter().map(|(name, (shape, _))| (name.clone(), shape.clone()));
    let base_model = base_model(recipe, world);
    let export = AdapterExport {
        lora: &recipe.model.lora,
        base_model: base_model.as_deref(),
        outlines: &outlines.collect(),
        format: ElementType::F32,
    };
    peft::write(world, &folder.adapter(), &export, |name, out| {
        out.copy_from_slice(&adapters[name].1);
        Ok::<_, TrainError>(())
    })?;
    Ok(())
}

/// Writes the tensors that `produce` emits. Without a path it only runs `produce`.
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

/// Saves the tokenizer beside the weights, and the files that belong to it. Byte tokens need none.
/// `json` is the content of the tokenizer.
pub(crate) fn save_vocabulary(
    folder: Option<&RunFolder>,
    recipe: &Recipe,
    world: &World,
    json: Option<&[u8]>,
    tokenizer: Option<&Tokenizer>,
) -> Result<(), TrainError> {
    let Some(folder) = folder.filter(|_| !recipe.model.family.is_problem()) else {
        return Ok(());
    };
    if let Some(json) = json {
        world.files().write_atomic(&folder.tokenizer(), json)?;
    }
    Ok(companions_of_run(recipe, json, tokenizer, world).save(world, folder.path())?)
}

/// Saves the figures that `train --json` prints.
pub(crate) fn save_summary(
    folder: &RunFolder,
    world: &World,
    summary: &Summary,
) -> Result<(), TrainError> {
    let json = serde_json::to_string_pretty(summary).expect("a summary is JSON") + "\n";
    Ok(world.files().write_atomic(&folder.summary(), json.as_bytes())?)
}
