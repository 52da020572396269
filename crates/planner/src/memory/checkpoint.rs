//! Copy of a rank's checkpoint shard.
//!
//! A rank that saves copies its shard of the weights and of the optimizer state between two steps
//! and trains on while the copy is written. The memory of the copy stays for the next checkpoint.
//! Residuals of compression and state on parameter servers are not counted.

use lockstep_config::units::{Bytes, Seconds};
use lockstep_config::{Interval, Recipe, interval};
use lockstep_mesh::Rank;
use lockstep_model::Blueprint;
use lockstep_parallel::ReplicaPlan;
use lockstep_parallel::checkpoint_pieces::planned_len;

/// Bytes of the copy of one rank.
pub(super) fn copy_bytes(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    worker: usize,
) -> Bytes {
    let optimizer = (recipe.optim.name, recipe.has_local_state());
    Bytes(4 * planned_len(blueprint, plan, optimizer, Rank(worker)) as u64)
}

/// Whether a run saves a checkpoint, if it takes this long. A run of unknown duration saves if its
/// recipe allows it. Ctrl-C saves in any run with checkpoints.
pub fn is_expected(recipe: &Recipe, duration: Option<Seconds>) -> bool {
    let checkpoint = &recipe.checkpoint;
    let is_longer = |seconds: f64| duration.is_none_or(|duration| duration.0 > seconds);
    let by_time = match checkpoint.interval {
        Interval::Never => false,
        Interval::Every(seconds) => is_longer(seconds.0),
        Interval::Bounded => is_longer(interval::MIN_BOUNDED),
        Interval::Auto => true,
    };
    // The last step ends in the run's artifacts, and in a checkpoint only of state that they lack.
    let by_steps = (1..recipe.train.steps).contains(&checkpoint.every);
    let at_end = recipe.has_extra_state() && recipe.num_servers() == 0 && recipe.run.save_optimizer;
    by_time || by_steps || at_end
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    #[test]
    fn runs_save_by_steps_or_once_they_are_long_enough() {
        let saves = |set: &str, duration: Option<f64>| {
            let sets = vec!["train.steps=10".to_owned(), set.to_owned()];
            let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("sound");
            is_expected(&recipe, duration.map(Seconds))
        };
        let bounded = "checkpoint.interval=bounded";
        assert_eq!([Some(59.0), Some(61.0), None].map(|t| saves(bounded, t)), [false, true, true]);
        let fixed = "checkpoint.interval=5";
        assert_eq!([Some(4.0), Some(6.0), None].map(|t| saves(fixed, t)), [false, true, true]);
        assert!(!saves("checkpoint.interval=0", None));
        assert!(saves("checkpoint.every=9", Some(1.0)));
        assert!(!saves("checkpoint.every=10", Some(1.0)), "not after the last step");
    }
}
