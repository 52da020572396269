//! Reference of direct preference optimization: the losses of all documents under the model before
//! training, computed once.
//!
//! The reference is a function of the recipe: the initial weights, without adapters. A resumed run
//! therefore computes the bits of the first one from the same initial weights, and nothing is
//! saved. Adapters add nothing while their matrix B is zero.

use crate::learner::Learner;
use crate::microbatch::microbatch_shape;
use crate::{TrainError, pretrained};
use lockstep_config::Recipe;
use lockstep_data::Feed;
use lockstep_model::{Microbatch, lora};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::View;

/// Micro-batches in memory at a time.
const NUM_MICROBATCHES: usize = 64;

/// Computes the reference of a run on preferences; leaves the reference's weights behind. All ranks
/// call it together.
pub(crate) fn compute_references(
    recipe: &Recipe,
    world: &World,
    cpu: &Cpu,
    learner: &mut Learner,
    feed: &mut Feed,
) -> Result<(), TrainError> {
    let Some(nums) = feed.num_references() else { return Ok(()) };
    pretrained::load(recipe, world, learner)?;
    let replica = &mut learner.replica;
    replica.fill(|param, _, values| {
        if lora::is_output(&param.name) {
            values.fill(0.0);
        }
        Ok::<_, TrainError>(())
    })?;
    let shape = microbatch_shape(recipe);
    let num_documents: usize = nums.iter().sum();
    let num_microbatches = num_documents.div_ceil(shape.sequences);
    let mut losses = Vec::with_capacity(num_documents);
    for first in (0..num_microbatches).step_by(NUM_MICROBATCHES) {
        let numbers = first..num_microbatches.min(first + NUM_MICROBATCHES);
        let documents = feed.reference_microbatches(numbers)?;
        let microbatch = |index: usize| Microbatch {
            shape,
            inputs: View::of(&documents[index].inputs),
            targets: View::of(&documents[index].targets),
            first_sample: 0,
            num_targets: 1,
            documents: None,
            preferences: None,
        };
        losses.extend(replica.sequence_losses(cpu, documents.len(), &microbatch)?);
    }
    losses.truncate(num_documents);
    feed.set_references(&losses);
    Ok(())
}
