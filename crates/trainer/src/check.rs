//! What a run can be refused for, found before any worker starts.
//!
//! Workers check again, since each opens its own device and text; but a mistake that is found here
//! costs one line and not a cluster. Nothing is written.

use crate::{Options, RunFolder, TrainError, device};
use crate::{pretrained, saved};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_data::Corpus;
use lockstep_platform::World;

/// Refuses a run that could not begin here: instructions, text, the run to go on from or
/// the weights to start from, the folder.
pub fn check(recipe: &Recipe, world: &World, options: &Options) -> Result<(), TrainError> {
    check_inputs(recipe, world)?;
    let done = if let Some(dir) = &options.resume {
        saved::open(dir, recipe, world)?.1.step
    } else {
        pretrained::check(recipe, world)?;
        0
    };
    let asked = options.stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
    if done >= asked {
        return Err(TrainError::NothingToDo { done, asked });
    }
    RunFolder::planned(recipe, world)?;
    Ok(())
}

/// The part of it that does not depend on a run's folders: instructions and text.
pub fn check_inputs(recipe: &Recipe, world: &World) -> Result<(), TrainError> {
    device::isa(recipe)?;
    Corpus::load(recipe, world)?;
    Ok(())
}

/// Refuses to train with workers that were given another recipe, or another layout of it. What a
/// worker alone is concerned with (its threads, its folder) may differ.
pub(crate) fn agree_on_recipe(recipe: &Recipe, comm: &Comm) -> Result<(), TrainError> {
    let text = format!("{}{:?}{:?}", recipe.identity_text(), recipe.parallel, recipe.emulate);
    let hash = blake3::hash(text.as_bytes());
    let (words, _) = hash.as_bytes().as_chunks::<8>();
    let mut all = vec![0; comm.num_members()];
    comm.all_gather(&[u64::from_le_bytes(words[0])], &mut all)?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(worker) => Err(TrainError::WorkersDisagree { worker }),
    }
}
