//! Automatic choice of `sync.local_steps = "auto"`: steps per round of local SGD.
//!
//! Before training, the workers measure the compute time of a step and the time of the exchange
//! that ends a round. They choose the fewest steps for which the exchange takes at most a tenth of
//! the time. The number becomes part of the recipe in the run folder and the checkpoints, so a
//! resumed run keeps its rounds.

use crate::checkpoint_dir::{newest_in, recipe_in};
use crate::microbatch::microbatch_shape;
use crate::run_folder::load_recipe;
use crate::{Options, RunFolder, TrainError};
use lockstep_comm::{Comm, Reduction};
use lockstep_config::Recipe;
use lockstep_model::describe;
use lockstep_parallel::block_profile::microbatch_cost;
use lockstep_parallel::local_sgd::auto_steps::steps_for;
use lockstep_platform::World;
use lockstep_tensor::device::Compute;
use std::borrow::Cow;
use std::path::Path;

/// Number of timed exchanges after one for warm-up; the fastest counts.
const NUM_EXCHANGES: usize = 3;

/// Recipe with the number of local steps of the run that this one resumes, if it resumes one.
pub(crate) fn with_recorded_local_steps<'a>(
    recipe: &'a Recipe,
    options: &Options,
    world: &World,
) -> Cow<'a, Recipe> {
    if !recipe.sync.local_steps_is_auto {
        return Cow::Borrowed(recipe);
    }
    let attempt = options.attempt.dir.as_deref().filter(|_| options.attempt.restarts > 0);
    let before = attempt.or(options.resume.as_deref()).and_then(|dir| saved_recipe(dir, world));
    match before {
        Some(before) => Cow::Owned(recipe.with_local_steps(before.sync.local_steps)),
        None => Cow::Borrowed(recipe),
    }
}

/// Recipe of a run folder or of a folder of checkpoints.
fn saved_recipe(dir: &Path, world: &World) -> Option<Recipe> {
    if let Ok(folder) = RunFolder::started(dir, world) {
        return load_recipe(&folder, world).ok();
    }
    let reader = newest_in(dir, world).ok()??;
    recipe_in(&reader.manifest().position.recipe, dir).ok()
}

/// Recipe with the chosen number of local steps, and a notice about the choice. All workers call it
/// together.
pub(crate) fn choose_local_steps<'a>(
    recipe: &'a Recipe,
    options: &Options,
    world: &World,
    compute: &Compute,
    comm: &Comm,
) -> Result<(Cow<'a, Recipe>, Option<String>), TrainError> {
    if !recipe.sync.local_steps_is_auto {
        return Ok((Cow::Borrowed(recipe), None));
    }
    // Rank 0 decides, since the other ranks may not see the folder.
    let mut before = [0];
    if comm.group_rank() == 0 {
        let known = with_recorded_local_steps(recipe, options, world);
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
) -> Result<(f64, f64), TrainError> {
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
