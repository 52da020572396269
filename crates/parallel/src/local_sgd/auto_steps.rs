//! Choice of `sync.local_steps = "auto"`: the fewest steps of a round for which the exchange that
//! ends it takes at most a tenth of the time.
//!
//! Before training, the workers measure the compute time of a step and the time of the exchange.
//! The number becomes part of the recipe in the run folder and the checkpoints, so a resumed run
//! keeps its rounds.

use crate::block_profile::microbatch_cost;
use crate::from_recipe::microbatch_shape;
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_platform::World;
use lockstep_tensor::device::Compute;
use std::borrow::Cow;

/// Number of timed exchanges after one for warm-up; the fastest counts.
const NUM_EXCHANGES: usize = 3;

/// Maximum fraction of the time that the exchange may take.
const MAX_EXCHANGE_FRACTION: f64 = 0.1;

/// Most steps of a round that a run chooses.
pub const MAX_LOCAL_STEPS: u64 = 1000;

/// Fewest steps that keep the exchange within its fraction of the time, from the seconds of a step
/// and of an exchange.
pub fn steps_for(step: f64, exchange: f64) -> u64 {
    let steps = (1.0 - MAX_EXCHANGE_FRACTION) / MAX_EXCHANGE_FRACTION * exchange / step;
    if steps.is_finite() { steps.ceil().clamp(1.0, MAX_LOCAL_STEPS as f64) as u64 } else { 1 }
}

/// Recipe with the number of steps of an earlier attempt; `earlier` returns its recipe.
pub(crate) fn with_recorded_steps(
    recipe: &Recipe,
    earlier: impl FnOnce() -> Option<Recipe>,
) -> Cow<'_, Recipe> {
    let before = if recipe.sync.local_steps_is_auto { earlier() } else { None };
    match before {
        Some(before) => Cow::Owned(recipe.with_local_steps(before.sync.local_steps)),
        None => Cow::Borrowed(recipe),
    }
}

/// Recipe with the chosen number of steps, and a notice about the choice. Collective.
pub(crate) fn choose_steps<'a>(
    recipe: &'a Recipe,
    earlier: impl FnOnce() -> Option<Recipe>,
    world: &World,
    compute: &Compute,
    comm: &Comm,
) -> Result<(Cow<'a, Recipe>, Option<String>), CommError> {
    if !recipe.sync.local_steps_is_auto {
        return Ok((Cow::Borrowed(recipe), None));
    }
    // Rank 0 decides, since the other ranks may not see the folder.
    let mut before = [0];
    if comm.group_rank() == 0 {
        let known = with_recorded_steps(recipe, earlier);
        before[0] = if known.sync.local_steps_is_auto { 0 } else { known.sync.local_steps };
    }
    comm.broadcast(&mut before, 0)?;
    if before[0] > 0 {
        return Ok((Cow::Owned(recipe.with_local_steps(before[0])), None));
    }
    let (step, exchange) = measure(recipe, world, compute, comm)?;
    let chosen = steps_for(step, exchange).min(recipe.train.steps);
    let notice = format!(
        "sync.local_steps = auto: a step takes {:.2} ms and an exchange {:.2} ms, so a round has \
         {chosen} steps",
        1e3 * step,
        1e3 * exchange
    );
    Ok((Cow::Owned(recipe.with_local_steps(chosen)), Some(notice)))
}

/// Seconds for computing a step and for exchanging all weights, of the slowest worker.
fn measure(
    recipe: &Recipe,
    world: &World,
    compute: &Compute,
    comm: &Comm,
) -> Result<(f64, f64), CommError> {
    let (blueprint, worker) = (describe(&recipe.model), comm.group_rank());
    let shape = microbatch_shape(recipe);
    let microbatch = microbatch_cost(&blueprint, shape, compute, world)? as f64 / 1e9;
    let slowness = recipe.emulate.slowness(worker).map_or(1.0, |slow| slow.factor);
    let microbatches = recipe.leaf_shares()[worker] * recipe.microbatches_per_leaf();
    let step = microbatch.max(recipe.emulate.microbatch.0) * slowness * microbatches as f64;
    let mut weights = vec![0.0_f32; blueprint.num_params()];
    let mut exchange = f64::INFINITY;
    for time in 0..=NUM_EXCHANGES {
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
