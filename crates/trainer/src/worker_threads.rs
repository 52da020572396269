//! Trains with every rank as a thread of this process: for libraries and tests, which need no
//! launcher.

use crate::{Options, Summary, TrainError, train};
use lockstep_comm::{Comm, Options as CommOptions};
use lockstep_config::Recipe;
use lockstep_parallel::from_recipe::arena_bytes;
use lockstep_platform::World;

/// Trains with the recipe's ranks as threads, whatever `run.isolation` is. `options` makes the
/// options of a rank; a custom model must be equal on all of them.
pub fn train_on_threads(
    recipe: &Recipe,
    world: &World,
    options: impl FnMut(usize) -> Options,
) -> Result<Summary, TrainError> {
    let settings = CommOptions { arena_bytes: arena_bytes(recipe), ..CommOptions::default() };
    let ends = Comm::threads(world, recipe.num_ranks(), &settings)?;
    train_on_comms(&ends, recipe, world, options)
}

/// Trains with one thread for each of these communicators.
pub fn train_on_comms(
    ends: &[Comm],
    recipe: &Recipe,
    world: &World,
    mut options: impl FnMut(usize) -> Options,
) -> Result<Summary, TrainError> {
    let results: Vec<_> = std::thread::scope(|scope| {
        let mut workers = Vec::with_capacity(ends.len());
        for end in ends {
            let options = options(end.group_rank());
            workers.push(scope.spawn(move || train(recipe, world, end, options)));
        }
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    });
    // Peers of a failed rank report communication errors only; the cause takes precedence.
    let is_cause = |error: &TrainError| !matches!(error, TrainError::Comm(_));
    let mut summary = None;
    let mut failed: Option<TrainError> = None;
    for result in results {
        match result {
            Ok(found) => summary = summary.or(found),
            Err(error) if failed.is_none() || is_cause(&error) => failed = Some(error),
            Err(_) => {}
        }
    }
    failed.map_or_else(|| Ok(summary.expect("the first worker returns the summary")), Err)
}
