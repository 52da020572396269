//! Micro-batches of a batch, in the form the model takes.

use lockstep_config::{Recipe, Reduction};
use lockstep_data::Batch;
use lockstep_model::Microbatch;
use lockstep_parallel::Replica;
pub(crate) use lockstep_parallel::from_recipe::microbatch_shape;
use lockstep_tensor::device::{Preferences, View};

/// Micro-batch `index` of a batch. Gradients are divided by the number of targets in the batch over
/// all workers, unless `train.reduction` is a sum.
pub(crate) fn microbatch_of<'a>(
    recipe: &Recipe,
    batch: &'a Batch,
    index: usize,
    num_targets: u64,
) -> Microbatch<'a> {
    let shape = microbatch_shape(recipe);
    let (inputs, targets) = batch.microbatch(index);
    let (inputs, targets) = (View::of(inputs), View::of(targets));
    let first_sample = (index * shape.sequences) as u64;
    let num_targets = match recipe.train.reduction {
        Reduction::Mean => num_targets,
        Reduction::Sum => 1,
    };
    let beta = recipe.finetune.beta;
    let preferences = batch.references(index).map(|references| preferences(references, beta));
    let documents = batch.documents(index).map(View::of);
    Microbatch { shape, inputs, targets, first_sample, num_targets, documents, preferences }
}

/// Reference of a micro-batch's pairs.
pub(crate) fn preferences(references: &[f64], beta: f64) -> Preferences<'_> {
    Preferences { references: View::of(references), beta }
}

/// Number of targets in a worker's own micro-batches.
pub(crate) fn own_targets(batch: &Batch, replica: &Replica) -> u64 {
    batch.targets_in(replica.own_microbatches().iter().copied()).max(1)
}
