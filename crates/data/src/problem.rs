//! Small problems have no text: their tokens are the numbers of samples, one a sequence.
//!
//! Which samples a step learns from is a function of (seed, epoch, index), as it is for text: each
//! epoch visits every sample once, in its own keyed order. The samples themselves are made by the
//! model from their numbers, so all that a run must not mistake for another's is their description.

use lockstep_config::Recipe;

use crate::batch::{Batch, BatchShape, IGNORE};
use crate::clients::{clients_at, turn_of};
use crate::corpus::Corpus;
use crate::error::DataError;
use crate::partition::Partition;
use crate::permutation::{Permutation, mix};
use crate::validation::{Validation, ValidationMicrobatch};

/// What the random numbers are drawn for; the sampler of text uses others.
const ORDER: u64 = 3;

/// Counts as a target, in the place of the token that would follow.
const COUNTED: u32 = 0;

/// A stand-in whose fingerprint is that of the samples.
pub(crate) fn corpus(recipe: &Recipe) -> Result<Corpus, DataError> {
    let text = format!("{} {:?}", recipe.model.family, recipe.model.problem);
    // Samples from before there was a choice keep their name.
    let text = text.replace(" density: 1.0,", "");
    Corpus::from_text("the samples", &text, 0.5)
}

/// Fills the batch of a step; `classes` are those of all samples, where it matters.
pub(crate) fn fill(
    recipe: &Recipe,
    classes: Vec<u8>,
) -> impl FnMut(u64, &mut Batch) -> Result<(), DataError> + use<> {
    let (seed, num_samples) = (recipe.train.seed, recipe.model.problem.samples as u64);
    let plan = recipe.batch_plan();
    let divided = recipe.has_parts().then(|| {
        let classes = if classes.is_empty() { vec![0; num_samples as usize] } else { classes };
        (Partition::new(recipe, classes), recipe.clone())
    });
    move |step, batch: &mut Batch| {
        let samples = batch.begin(step, &plan);
        batch.targets.fill(COUNTED);
        if let Some((partition, recipe)) = &divided {
            let clients = clients_at(recipe, step);
            for (sequence, input) in batch.inputs.iter_mut().enumerate() {
                let (part, turn) = turn_of(recipe, &clients, step, sequence);
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

/// The held-out samples, or as many of them as `train.eval_batches` asks for, in micro-batches.
pub(crate) fn validation(recipe: &Recipe) -> Validation {
    let BatchShape { batch, microbatch_size, .. } = BatchShape::of(recipe);
    let problem = &recipe.model.problem;
    let num_samples = problem.held_out.min(recipe.train.eval_batches * batch);
    let microbatch = |microbatch: usize| {
        let numbers = microbatch * microbatch_size..(microbatch + 1) * microbatch_size;
        let is_there = |number: &usize| *number < num_samples;
        let input = |number| if is_there(&number) { problem.samples + number } else { 0 };
        let target = |number| if is_there(&number) { COUNTED } else { IGNORE };
        ValidationMicrobatch {
            first_sample: numbers.start as u64,
            inputs: numbers.clone().map(|number| input(number) as u32).collect(),
            targets: numbers.map(target).collect(),
        }
    };
    let microbatches = (0..num_samples.div_ceil(microbatch_size)).map(microbatch).collect();
    Validation { microbatches, num_targets: num_samples as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};
    use std::collections::BTreeSet;

    fn recipe(sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("ridge".to_owned());
        resolve(&Sources { preset, sets, ..Sources::default() }).unwrap()
    }

    fn batch(recipe: &Recipe, step: u64) -> Batch {
        let mut batch = Batch::with_room(BatchShape::of(recipe));
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

    #[test]
    fn held_out_samples_come_in_microbatches_and_what_fills_the_last_one_does_not_count() {
        let recipe = recipe(&[
            "problem.samples=100",
            "problem.held_out=5",
            "train.batch=16",
            "train.microbatch=2",
        ]);
        let Validation { microbatches, num_targets } = validation(&recipe);
        let inputs: Vec<_> =
            microbatches.iter().flat_map(|microbatch| microbatch.inputs.clone()).collect();
        let targets: Vec<_> =
            microbatches.iter().flat_map(|microbatch| microbatch.targets.clone()).collect();
        assert_eq!(num_targets, 5);
        assert_eq!(inputs, [100, 101, 102, 103, 104, 0]);
        assert_eq!(targets, [0, 0, 0, 0, 0, IGNORE]);
    }

    #[test]
    fn other_samples_have_another_fingerprint() {
        let of = |set| corpus(&recipe(&[set])).unwrap().fingerprint();
        assert_eq!(of("problem.seed=1"), of("problem.seed=1"));
        assert_ne!(of("problem.seed=1"), of("problem.seed=2"));
        assert_eq!(of("train.seed=1"), of("train.seed=2"), "their order is another matter");
    }
}
