//! LargestEigenvalue Hessian eigenvalue of the loss at the initial weights, on one batch.
//!
//! Power iteration needs Hessian-vector products; central differences of the gradient give them
//! with two passes over the batch each. The cost is a few dozen training steps and one more copy of
//! the weights. The estimate uses the batch of the first step and is as noisy as its loss. It
//! exposes learning rates that cannot converge, above all with delayed gradients.

use crate::materialize::materialize;
use crate::microbatch::{microbatch_of, microbatch_shape};
use crate::{TrainError, device, feed, pretrained};
use lockstep_comm::Comm;
use lockstep_config::{Recipe, StragglerPolicy};
use lockstep_data::Cursor;
use lockstep_model::problem::curvature::{
    LargestEigenvalue, largest_within, product_by_differences,
};
use lockstep_parallel::from_recipe::mesh_of;
use lockstep_parallel::{Groups, Replica};
use lockstep_platform::World;
use lockstep_tensor::Cpu;

/// Length of the finite-difference step: large enough for single precision, small enough for a
/// quadratic model of the loss.
const DIFFERENCE_STEP: f64 = 0.02;

/// Relative tolerance of the eigenvalue; two digits suffice for a learning rate.
const TOLERANCE: f64 = 2e-3;

/// Estimates the largest curvature at the initial weights of a recipe. `progress` receives the
/// number of Hessian-vector products computed.
pub fn largest_curvature(
    recipe: &Recipe,
    world: &World,
    max_products: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<LargestEigenvalue, TrainError> {
    let mut recipe = recipe.clone();
    use_one_worker(&mut recipe);
    let comm = &Comm::threads(world, 1, &lockstep_comm::Options::default())?[0];
    let cpu = device::open(&recipe, world, comm)?;
    let groups = Groups::new(comm, mesh_of(&recipe))?;
    let mut feed = feed::open(&recipe, world, groups.data())?;
    let mut learner = materialize(&recipe, &cpu, &groups, world)?;
    pretrained::load(&recipe, world, &mut learner)?;
    let mut loader = feed.loader(world, Cursor::start())?;
    let batch = loader.next_batch()?;
    let num_targets = batch.num_targets;
    let microbatch = |index| microbatch_of(&recipe, batch, index, num_targets);
    assert_eq!(batch.num_microbatches() * microbatch_shape(&recipe).sequences, recipe.train.batch);
    let start = weights(&learner.replica);
    let mut num_products = 0;
    let mut failed = None;
    let found = largest_within(start.len(), TOLERANCE, max_products, |v| {
        num_products += 1;
        progress(num_products);
        let gradient = |x: &[f64]| {
            let found = gradient_at(&cpu, &recipe, &mut learner.replica, &microbatch, x);
            found.unwrap_or_else(|error| {
                failed = Some(error);
                vec![0.0; x.len()]
            })
        };
        product_by_differences(gradient, &start, v, DIFFERENCE_STEP)
    });
    failed.map_or(Ok(found), Err)
}

/// Reduces the recipe to one worker that computes the whole batch.
fn use_one_worker(recipe: &mut Recipe) {
    recipe.run.workers = 1;
    recipe.run.elastic = None;
    recipe.parallel.data = 1;
    recipe.parallel.pipeline = 1;
    recipe.parallel.tensor = 1;
    recipe.parallel.zero = 0;
    recipe.parallel.leaf_shares.clear();
    recipe.parallel.stage_layers.clear();
    recipe.sync.stragglers.policy = StragglerPolicy::Wait;
    recipe.sync.gradient_delay = 0;
}

/// All parameters, concatenated.
fn weights(replica: &Replica) -> Vec<f64> {
    let slots = replica.slots();
    let of = |slot| replica.owned_values(slot).iter().map(|value| f64::from(*value));
    slots.iter().flat_map(of).collect()
}

/// Gradient of the batch's mean loss at the parameters `x`.
fn gradient_at<'a>(
    cpu: &Cpu,
    recipe: &Recipe,
    replica: &mut Replica,
    microbatch: &dyn Fn(usize) -> lockstep_model::Microbatch<'a>,
    x: &[f64],
) -> Result<Vec<f64>, TrainError> {
    let mut next = x.iter();
    replica.fill_owned(|values| {
        for (value, x) in values.iter_mut().zip(&mut next) {
            *value = *x as f32;
        }
    })?;
    replica.run_microbatches(cpu, recipe.train.seed, 0, microbatch)?;
    replica.finish_reduce(cpu)?;
    let grads = replica.own_grads().flat_map(|(_, grad)| grad.iter());
    Ok(grads.map(|value| f64::from(*value)).collect())
}
