//! Samples of small problems: tokens are sample numbers, one per sequence.
//!
//! As for text, the samples of a step are a function of (seed, epoch, index): each epoch visits
//! every sample once, in its own keyed order. The model generates samples from their numbers, so
//! the corpus fingerprint covers only the problem's description.

use lockstep_config::Recipe;

use crate::batch::Batch;
use crate::clients::{clients_at, draw_of};
use crate::error::DataError;
use crate::partition::Partition;
use crate::permutation::{Permutation, mix};

/// Purpose key of the random numbers, different from those of text.
const ORDER: u64 = 3;

/// Target of a sample, which has no next token.
pub(crate) const COUNTED: u32 = 0;

/// Fills the batch of a step. `classes` holds the class of every sample, for partitions by class.
pub(crate) fn fill(
    recipe: &Recipe,
    classes: Vec<u8>,
) -> impl FnMut(u64, &mut Batch) -> Result<(), DataError> + use<> {
    let (seed, num_samples) = (recipe.train.seed, recipe.model.problem.samples as u64);
    let plan = recipe.batch_plan();
    let divided = recipe.is_partitioned().then(|| {
        let classes = if classes.is_empty() { vec![0; num_samples as usize] } else { classes };
        (Partition::new(recipe, classes), recipe.clone())
    });
    move |step, batch: &mut Batch| {
        let samples = batch.begin(step, &plan);
        batch.targets.fill(COUNTED);
        if let Some((partition, recipe)) = &divided {
            let clients = clients_at(recipe, step);
            for (sequence, input) in batch.inputs.iter_mut().enumerate() {
                let (part, turn) = draw_of(recipe, &clients, step, sequence);
                *input = partition.draw(part, turn);
            }
            return Ok(());
        }
        for (number, input) in samples.zip(&mut batch.inputs) {
            let order = Permutation::new(num_samples, mix(mix(seed, ORDER), number / num_samples));
            *input = order.apply(number % num_samples) as u32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BatchShape;
    use lockstep_config::{Sources, resolve};
    use std::collections::BTreeSet;

    fn recipe(sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("ridge".to_owned());
        resolve(&Sources { preset, sets, ..Sources::default() }).unwrap()
    }

    fn batch(recipe: &Recipe, step: u64) -> Batch {
        let mut batch = Batch::allocate(BatchShape::of(recipe));
        fill(recipe, Vec::new())(step, &mut batch).unwrap();
        batch
    }

    #[test]
    fn an_epoch_visits_every_sample_once_and_the_next_one_in_another_order() {
        let recipe = recipe(&["problem.samples=48", "train.batch=16", "train.microbatch=2"]);
        let epoch = |first: u64| -> Vec<u32> {
            (first..first + 3).flat_map(|step| batch(&recipe, step).inputs).collect()
        };
        let (one, other) = (epoch(0), epoch(3));
        let all: BTreeSet<u32> = (0..48).collect();
        assert_eq!(one.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_eq!(other.iter().copied().collect::<BTreeSet<_>>(), all);
        assert_ne!(one, other);
        assert_eq!(batch(&recipe, 4), batch(&recipe, 4), "a function of the step");
        assert_eq!((batch(&recipe, 4).first_sample, batch(&recipe, 4).num_targets), (64, 16));
    }
}
