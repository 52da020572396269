//! Final artifacts of a run: weights, optimizer state, tokenizer and summary.
//!
//! Resuming from them gives the same bits as a run without the interruption.

use crate::learner::Learner;
use crate::{RunFolder, Summary, TrainError};
use lockstep_checkpoint::{CheckpointError, TrainingState, WeightsHasher, weights};
use lockstep_config::Recipe;
use lockstep_data::Cursor;
use lockstep_model::Param;
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
    save_each(world, weights.as_deref(), &outlines, &metadata, |take| {
        replica.visit_params(|_, data| {
            hasher.update(data);
            Ok::<_, TrainError>(take(data)?)
        })
    })?;
    let weights_hash = hasher.finish();
    if recipe.run.save_optimizer && !recipe.has_extra_state() {
        let blueprint = replica.blueprint();
        let names_of = |(block, param): (usize, &Param)| {
            let names = optimizer.state_names_of(blueprint.hidden_matrix(block, param));
            (param.name.clone(), names)
        };
        let state_names: BTreeMap<_, _> = blueprint.tensors().into_iter().map(names_of).collect();
        let state_of = |(name, shape): &(String, Vec<usize>)| {
            let len: usize = shape.iter().product();
            let names = state_names[name].iter();
            names.map(|kind| (format!("{name}.{kind}"), vec![len])).collect::<Vec<_>>()
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

/// Saves the tokenizer beside the weights. Byte tokens need none.
pub(crate) fn save_tokenizer(
    folder: Option<&RunFolder>,
    world: &World,
    json: Option<&[u8]>,
) -> Result<(), TrainError> {
    if let (Some(folder), Some(json)) = (folder, json) {
        world.files().write_atomic(&folder.tokenizer(), json)?;
    }
    Ok(())
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
