//! Selection of the largest micro-batch size that fits.
//!
//! Larger micro-batches have longer matmuls, which run closer to the processor's peak, and more
//! activations. Results depend on the micro-batch size, so it is chosen once, before anything runs,
//! and from then on the recipe has a number.

use super::engine::Memory;
use super::fit::{MemoryBudget, needed};
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_parallel::from_recipe::blueprint_of_rank;

/// Largest micro-batch size that is tried.
const MAX_SEQUENCES: usize = 4096;

/// Resolves `train.microbatch = "auto"`: the largest size with which every batch of the run makes
/// whole micro-batches, equally many per leaf, and which fits, also with the fewest workers that
/// the run may have. Size 1 where none fits; the run is then rejected.
pub fn with_microbatch(recipe: Recipe, room: MemoryBudget) -> Recipe {
    if !recipe.train.microbatch_is_auto {
        return recipe;
    }
    let of = |microbatch: usize| {
        let mut chosen = recipe.clone();
        chosen.train.microbatch_size = microbatch;
        chosen.train.microbatch_is_auto = false;
        chosen
    };
    let batches = recipe.batch_plan().stages;
    let leaves = recipe.num_leaves();
    let is_whole = |microbatch: &usize| {
        batches.iter().all(|stage| stage.batch.is_multiple_of(microbatch * leaves))
    };
    let fits = |recipe: &Recipe| {
        let memory = || Memory::of(recipe, &blueprint_of_rank(recipe, 0));
        room.memory == Bytes(0) || needed(&memory(), room) <= room.memory
    };
    let largest = (recipe.train.batch / leaves).min(MAX_SEQUENCES);
    let mut candidates = (2..=largest).rev().filter(is_whole).map(of);
    let fits_all =
        |chosen: &Recipe| fits(chosen) && fits(&chosen.with_workers(chosen.worker_counts()[0]));
    candidates.find(fits_all).unwrap_or_else(|| of(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Process;
    use lockstep_config::{Sources, resolve};

    fn recipe(microbatch: &str) -> Recipe {
        let sets = [
            "train.batch=48".to_owned(),
            "numerics.invariant_up_to=4".to_owned(),
            "run.workers=1".to_owned(),
            format!("train.microbatch={microbatch}"),
        ];
        let preset = Some("bible-small".to_owned());
        let sources = Sources { sets: sets.into(), preset, ..Sources::default() };
        resolve(&sources).expect("a sound recipe")
    }

    fn room(memory: Bytes) -> MemoryBudget {
        MemoryBudget {
            memory,
            process: Process { start: Bytes(0), text: Bytes(0) },
            is_accelerator: false,
        }
    }

    fn needs(microbatch: usize) -> Bytes {
        let recipe = recipe(&microbatch.to_string());
        needed(&Memory::of(&recipe, &blueprint_of_rank(&recipe, 0)), room(Bytes(0)))
    }

    #[test]
    fn auto_resolves_to_the_largest_size_that_divides_and_fits() {
        // Leaves of twelve sequences: their divisors are micro-batch sizes.
        for microbatch in [1, 2, 3, 4, 6, 12] {
            let chosen = with_microbatch(recipe("auto"), room(needs(microbatch)));
            assert_eq!(chosen, recipe(&microbatch.to_string()));
            assert_eq!(chosen.hash(), recipe(&microbatch.to_string()).hash());
        }
        let just_less = Bytes(needs(6).0 - 1);
        assert_eq!(with_microbatch(recipe("auto"), room(just_less)).train.microbatch_size, 4);
        assert_eq!(with_microbatch(recipe("auto"), room(Bytes(1))).train.microbatch_size, 1);
        assert_eq!(with_microbatch(recipe("auto"), room(Bytes(0))).train.microbatch_size, 12);
    }

    #[test]
    fn an_explicit_size_is_kept() {
        assert_eq!(with_microbatch(recipe("3"), room(Bytes(0))), recipe("3"));
    }
}
