//! How a worker's text becomes part of the run: opened for its seat, and agreed on with the others
//! where each has a text of its own. Seats are those of the data group: workers that only differ in
//! their stage of the pipeline read the same text.

use crate::{TrainError, saved};
use lockstep_comm::{Comm, CommError};
use lockstep_config::Recipe;
use lockstep_data::placement::share_out;
use lockstep_data::{Batch, Feed, Seat, Validation};
use lockstep_model::problem::classes;
use lockstep_platform::World;

/// Opens the text of this worker. Where workers have texts of their own, what the run learns from
/// is all of them together.
pub fn open(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Feed, TrainError> {
    let (worker, num_workers) = (comm.group_rank(), comm.group_size());
    let leaves = saved::leaves_of(recipe, worker);
    let mut feed = Feed::open(recipe, world, &Seat { worker, num_workers, leaves })?;
    if recipe.has_parts() && recipe.model.family.is_problem() {
        feed.classify(classes(&recipe.model));
    }
    if feed.depends_on_workers() {
        let own = u64::from_str_radix(feed.fingerprint(), 16).unwrap_or_default();
        let mut all = vec![0; num_workers];
        comm.all_gather(&[own], &mut all)?;
        feed.all_fingerprints(all);
    }
    Ok(feed)
}

/// The micro-batches that the model is judged by: the same everywhere, or each worker's own.
pub fn validation(feed: &mut Feed, recipe: &Recipe, comm: &Comm) -> Result<Validation, TrainError> {
    let (worker, num_workers) = (comm.group_rank(), comm.group_size());
    let own = feed.validation(num_workers)?;
    if !feed.depends_on_workers() {
        return Ok(own);
    }
    let mut all = vec![0; 2 * num_workers];
    comm.all_gather(&[own.microbatches.len() as u64, own.num_targets], &mut all)?;
    let (all, _) = all.as_chunks::<2>();
    let most_microbatches =
        all.iter().map(|[microbatches, _]| *microbatches as usize).max().unwrap_or(0);
    let num_targets = all.iter().map(|[_, targets]| targets).sum();
    Ok(share_out(own, recipe, worker, most_microbatches, num_workers, num_targets))
}

/// The number of targets of a batch over all workers.
pub struct Targets<'a> {
    /// Where each worker knows only its own micro-batches: the group, and room for what they say.
    others: Option<(&'a Comm, Vec<u64>)>,
}

impl<'a> Targets<'a> {
    /// For the batches of a feed.
    pub fn new(feed: &Feed, comm: &'a Comm) -> Self {
        let room = || (comm, vec![0; comm.group_size()]);
        Self { others: feed.depends_on_workers().then(room) }
    }

    /// Counts those of a batch.
    pub fn of(&mut self, batch: &Batch) -> Result<u64, CommError> {
        let Some((comm, all)) = &mut self.others else { return Ok(batch.num_targets) };
        comm.all_gather(&[batch.num_targets], all)?;
        Ok(all.iter().sum())
    }
}
