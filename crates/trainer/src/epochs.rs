//! Number of steps of `train.epochs`: opens the training data and counts its sequences.
//!
//! The number is a function of the recipe and the data, whatever the layout: sequences are cut and
//! drawn before they are divided among workers.

use crate::TrainError;
use lockstep_config::Recipe;
use lockstep_data::{DataRank, Feed};
use lockstep_platform::World;

/// Number of steps of the passes over the data that the recipe asks for, if it does.
pub(crate) fn count_steps(recipe: &Recipe, world: &World) -> Result<Option<u64>, TrainError> {
    let Some(epochs) = recipe.train.epochs else { return Ok(None) };
    // Parts of the data have lengths of their own, which every worker knows.
    let feed = Feed::open(recipe, world, &DataRank::probe(recipe, 0))?;
    let steps = feed.steps_of_epochs(epochs).expect("the rules refuse data of unknown length");
    Ok(Some(steps))
}
