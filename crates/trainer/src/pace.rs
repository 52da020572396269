//! How many steps a round has, where the recipe leaves that to the machine
//! (`sync.local_steps = "auto"`).
//!
//! Before anything else the workers measure what a step takes them to compute and what the exchange
//! at the end of a round takes, and all of them take as many steps as leave a tenth of the time for
//! the exchange. From there on the number is part of the recipe, in the run's folder and in its
//! checkpoints, so that a run that goes on has the rounds that it had.

use crate::saved::recipe_of;
use crate::train::microbatch_shape;
use crate::{Options, RunFolder, TrainError, restore};
use lockstep_comm::{Comm, Reduction};
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_parallel::measure::microbatch_cost;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::borrow::Cow;
use std::path::Path;

/// The share of the time that the exchange may take.
const SHARE: f64 = 0.1;

/// More steps of a round than anybody has found useful.
const MOST: f64 = 1000.0;

/// Exchanges that are timed, after one that warms up; the fastest counts.
const EXCHANGES: usize = 3;

/// The recipe with what was chosen when the run began that this one goes on from, if it does.
pub(crate) fn as_before<'a>(
    recipe: &'a Recipe,
    options: &Options,
    world: &World,
) -> Cow<'a, Recipe> {
    if !recipe.sync.local_steps_is_auto {
        return Cow::Borrowed(recipe);
    }
    let life = options.life.dir.as_deref().filter(|_| options.life.restarts > 0);
    let before = life.or(options.resume.as_deref()).and_then(|dir| saved_recipe(dir, world));
    match before {
        Some(before) => Cow::Owned(recipe.with_local_steps(before.sync.local_steps)),
        None => Cow::Borrowed(recipe),
    }
}

/// The recipe of a run's folder, or of a folder of checkpoints.
fn saved_recipe(dir: &Path, world: &World) -> Option<Recipe> {
    if let Ok(folder) = RunFolder::started(dir, world) {
        return recipe_of(&folder, world).ok();
    }
    let reader = restore::newest_in(dir, world).ok()??;
    restore::recipe_in(&reader.manifest().position.recipe, dir).ok()
}

/// The recipe with a number of steps, and words about how it came about. All workers ask together.
pub(crate) fn settled<'a>(
    recipe: &'a Recipe,
    options: &Options,
    world: &World,
    cpu: &Cpu,
    comm: &Comm,
) -> Result<(Cow<'a, Recipe>, Option<String>), TrainError> {
    if !recipe.sync.local_steps_is_auto {
        return Ok((Cow::Borrowed(recipe), None));
    }
    // One worker's word, since not all of them need see the folder.
    let mut before = [0];
    if comm.group_rank() == 0 {
        let known = as_before(recipe, options, world);
        before[0] = if known.sync.local_steps_is_auto { 0 } else { known.sync.local_steps };
    }
    comm.broadcast(&mut before, 0)?;
    if before[0] > 0 {
        return Ok((Cow::Owned(recipe.with_local_steps(before[0])), None));
    }
    let (step, exchange) = measured(recipe, world, cpu, comm)?;
    let chosen = steps_for(step, exchange).min(recipe.train.steps);
    let words = format!(
        "sync.local_steps = auto: a step takes {:.2} ms and an exchange {:.2} ms, so a round has \
         {chosen} steps",
        1e3 * step,
        1e3 * exchange
    );
    Ok((Cow::Owned(recipe.with_local_steps(chosen)), Some(words)))
}

/// As few steps as leave the exchange its share of the time.
fn steps_for(step: f64, exchange: f64) -> u64 {
    let steps = (1.0 - SHARE) / SHARE * exchange / step;
    if steps.is_finite() { steps.ceil().clamp(1.0, MOST) as u64 } else { 1 }
}

/// Seconds that the slowest worker takes to compute a step, and to exchange all weights.
fn measured(
    recipe: &Recipe,
    world: &World,
    cpu: &Cpu,
    comm: &Comm,
) -> Result<(f64, f64), TrainError> {
    let (blueprint, worker) = (describe(&recipe.model), comm.group_rank());
    let microbatch = microbatch_cost(&blueprint, microbatch_shape(recipe), cpu, world) as f64 / 1e9;
    let slowness = recipe.emulate.slowness(worker).map_or(1.0, |slow| slow.factor);
    let microbatches = recipe.leaf_shares()[worker] * recipe.microbatches_per_leaf();
    let step = microbatch.max(recipe.emulate.microbatch.0) * slowness * microbatches as f64;
    let mut weights = vec![0.0_f32; blueprint.num_params()];
    let mut exchange = f64::INFINITY;
    for time in 0..=EXCHANGES {
        comm.barrier()?;
        let began = world.clock().now();
        comm.all_reduce(&mut weights, Reduction::Sum)?;
        let took = world.clock().since(began).as_secs_f64();
        exchange = if time == 0 { exchange } else { exchange.min(took) };
    }
    let mut slowest = [step, exchange];
    comm.all_reduce(&mut slowest, Reduction::Max)?;
    Ok((slowest[0], slowest[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_takes_a_tenth_of_the_time() {
        assert_eq!(steps_for(0.01, 0.1), 90);
        assert_eq!(steps_for(0.01, 0.0001), 1);
        assert_eq!(steps_for(0.01, 1e9), 1000, "no more than that");
        assert_eq!(steps_for(0.0, 0.0), 1);
    }
}
