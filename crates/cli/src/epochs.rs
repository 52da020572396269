//! Steps of `train.epochs`.
//!
//! The command that was typed counts the data once and passes the number of steps to its workers in
//! the environment. Ranks of another launcher count by themselves.

use crate::workers::WorkerEnv;
use lockstep_cluster::role::has_launcher;
use lockstep_config::{EpochSteps, Recipe};
use lockstep_platform::World;

/// Environment variable with the number of steps that the launcher counted.
const EPOCH_STEPS: &str = "LOCKSTEP_EPOCH_STEPS";

/// Environment that passes the number of steps to workers.
pub(crate) fn to_env(recipe: &Recipe) -> WorkerEnv {
    let steps = recipe.train.epochs.map(|_| (EPOCH_STEPS, recipe.train.steps.to_string()));
    steps.into_iter().collect()
}

/// Number of steps that the launcher of this process counted.
pub(crate) fn from_launcher(world: &World) -> EpochSteps {
    let passed = world.host().env(EPOCH_STEPS).filter(|_| has_launcher(world));
    let steps = passed.and_then(|steps| steps.parse().ok());
    steps.map_or(EpochSteps::NotCounted, EpochSteps::Counted)
}

/// One line with the number of steps of a run of epochs.
pub(crate) fn render_line(recipe: &Recipe) -> Option<String> {
    let epochs = recipe.train.epochs?;
    let plural = |is_one: bool| if is_one { "" } else { "s" };
    let (steps, many) = (recipe.train.steps, plural(epochs.to_bits() == 1.0_f64.to_bits()));
    Some(format!("{epochs} epoch{many} of the data = {steps} step{}\n", plural(steps == 1)))
}
