//! The largest curvature of a model's loss at its weights, on one batch.
//!
//! Power iteration needs products of the second derivatives with a vector, and those are what the
//! gradient changes by along it: two passes over the batch, a little ahead and a little behind. So
//! it takes a few dozen steps' worth of computation and one more copy of the weights. The batch is
//! that of the first step, which makes the number noisy as the loss itself is; its use is to tell
//! a learning rate that cannot work, above all where gradients come late.

use crate::train::{microbatch_of, microbatch_shape};
use crate::{TrainError, device, feed, pretrained, saved::Learner};
use lockstep_comm::Comm;
use lockstep_config::{Recipe, Stragglers};
use lockstep_data::Cursor;
use lockstep_model::problem::curvature::{Largest, largest_within, product_by_differences};
use lockstep_parallel::asked::mesh_of;
use lockstep_parallel::{Groups, Replica};
use lockstep_platform::World;
use lockstep_tensor::Cpu;

/// The length of the way from the weights to where gradients are compared: sums of single
/// precision tell them apart, and the loss is still a parabola.
const REACH: f64 = 0.02;

/// The relative change of the value at which it is good enough; a learning rate has two digits.
const STILL: f64 = 2e-3;

/// Finds it, for the weights that a run of this recipe starts from. `told` hears how many products
/// were made.
pub fn largest_curvature(
    recipe: &Recipe,
    world: &World,
    max_products: usize,
    told: &mut dyn FnMut(usize),
) -> Result<Largest, TrainError> {
    let mut recipe = recipe.clone();
    alone(&mut recipe);
    let comm = &Comm::threads(world, 1, &lockstep_comm::Options::default())?[0];
    let cpu = device::open(&recipe, world)?;
    let groups = Groups::new(comm, mesh_of(&recipe))?;
    let mut feed = feed::open(&recipe, world, groups.data())?;
    let mut learner = Learner::materialize(&recipe, &cpu, &groups, world)?;
    pretrained::load(&recipe, world, &mut learner)?;
    let mut loader = feed.loader(world, Cursor::start())?;
    let batch = loader.next_batch()?;
    let num_targets = batch.num_targets;
    let microbatch = |index| microbatch_of(&recipe, batch, index, num_targets);
    assert_eq!(batch.num_microbatches() * microbatch_shape(&recipe).sequences, recipe.train.batch);
    let start = weights(&learner.replica);
    let mut num_products = 0;
    let mut failed = None;
    let found = largest_within(start.len(), STILL, max_products, |v| {
        num_products += 1;
        told(num_products);
        let gradient = |x: &[f64]| {
            let found = gradient_at(&cpu, &recipe, &mut learner.replica, &microbatch, x);
            found.unwrap_or_else(|error| {
                failed = Some(error);
                vec![0.0; x.len()]
            })
        };
        product_by_differences(gradient, &start, v, REACH)
    });
    failed.map_or(Ok(found), Err)
}

/// One worker that computes what all would.
fn alone(recipe: &mut Recipe) {
    recipe.run.workers = 1;
    recipe.run.elastic = None;
    recipe.parallel.data = 1;
    recipe.parallel.pipeline = 1;
    recipe.parallel.tensor = 1;
    recipe.parallel.zero = 0;
    recipe.parallel.shares.clear();
    recipe.parallel.stages.clear();
    recipe.sync.uneven.stragglers = Stragglers::Wait;
    recipe.sync.uneven.delay = 0;
}

/// All parameters, one behind the other.
fn weights(replica: &Replica) -> Vec<f64> {
    let slots = replica.slots();
    let of = |slot| replica.own_values(slot).iter().map(|value| f64::from(*value));
    slots.iter().flat_map(of).collect()
}

/// The gradient of the batch's mean loss where the parameters are `x`.
fn gradient_at<'a>(
    cpu: &Cpu,
    recipe: &Recipe,
    replica: &mut Replica,
    microbatch: &dyn Fn(usize) -> lockstep_model::Microbatch<'a>,
    x: &[f64],
) -> Result<Vec<f64>, TrainError> {
    let mut next = x.iter();
    replica.fill_own(|values| {
        for (value, x) in values.iter_mut().zip(&mut next) {
            *value = *x as f32;
        }
    })?;
    replica.run_microbatches(cpu, recipe.train.seed, 0, microbatch)?;
    replica.finish_reduce(cpu)?;
    let grads = replica.own_grads().flat_map(|(_, grad)| grad.iter());
    Ok(grads.map(|value| f64::from(*value)).collect())
}
