//! Data of one worker: opens its part of the corpus and agrees on totals with the other workers.
//! Parts belong to ranks of the data-parallel group, so the pipeline stages of a replica read the
//! same samples.

use crate::TrainError;
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::{Recipe, StragglerPolicy};
use lockstep_data::mixture::{self, SourceProgress};
use lockstep_data::placement::interleave_validation;
use lockstep_data::{Batch, Cursor, DataRank, Feed, Loader, Validation};
use lockstep_model::problem::classes;
use lockstep_parallel::LeafAssignment;
use lockstep_platform::World;
use lockstep_telemetry::SourceTokens;
use std::time::Duration;

/// Opens the corpus of this worker. If workers have different corpora, the run's fingerprint covers
/// all of them.
pub fn open(recipe: &Recipe, world: &World, comm: &Comm) -> Result<Feed, TrainError> {
    let (worker, num_workers) = (comm.group_rank(), comm.group_size());
    let leaves = leaves_of(recipe, worker);
    let mut feed = Feed::open(recipe, world, &DataRank { worker, num_workers, leaves })?;
    if recipe.is_partitioned() && recipe.model.family.is_problem() {
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

/// Loader of batches from `cursor` on, as slow as the recipe emulates.
pub(crate) fn loader(
    feed: &mut Feed,
    recipe: &Recipe,
    world: &World,
    cursor: Cursor,
) -> Result<Loader, TrainError> {
    let loader = feed.loader(world, cursor)?;
    loader.emulate_batch_time(Duration::from_secs_f64(recipe.emulate.data.0));
    Ok(loader)
}

/// Validation micro-batches: identical on all workers, or each worker's own.
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
    Ok(interleave_validation(own, recipe, worker, most_microbatches, num_workers, num_targets))
}

/// Position in the data of all workers. Of a mixture, each worker knows the positions of its own
/// leaves.
pub fn cursor(loader: &Loader, comm: &Comm) -> Result<Cursor, CommError> {
    let mut cursor = loader.cursor();
    if !cursor.positions.is_empty() {
        comm.all_reduce(&mut cursor.positions, Reduction::Max)?;
    }
    Ok(cursor)
}

/// Tokens that the run has read from each source of a mixture.
pub fn tokens_by_source(recipe: &Recipe, cursor: &Cursor) -> Vec<SourceTokens> {
    let progress = mixture::progress(recipe, &cursor.positions).into_iter();
    progress
        .map(|SourceProgress { source, tokens, epochs }| SourceTokens { source, tokens, epochs })
        .collect()
}

/// Counts the targets of a batch over all workers.
pub struct Targets {
    /// Group and receive buffer, if each worker knows only its own micro-batches.
    others: Option<(Comm, Vec<u64>)>,
}

impl Targets {
    /// Counter for the batches of a feed.
    pub fn new(feed: &Feed, comm: &Comm) -> Self {
        let room = || (comm.clone(), vec![0; comm.group_size()]);
        Self { others: feed.depends_on_workers().then(room) }
    }

    /// Number of targets of a batch over all workers.
    pub fn of(&mut self, batch: &Batch) -> Result<u64, CommError> {
        let Some((comm, all)) = &mut self.others else { return Ok(batch.num_targets) };
        comm.all_gather(&[batch.num_targets], all)?;
        Ok(all.iter().sum())
    }
}

/// Reduction leaves that a data-parallel rank computes.
fn leaves_of(recipe: &Recipe, part: usize) -> Vec<usize> {
    if recipe.sync.stragglers.policy == StragglerPolicy::Shares {
        // Dynamic shares may assign any leaf to any rank.
        return (0..recipe.num_leaves()).collect();
    }
    let shares =
        LeafAssignment::for_zero_stage(usize::from(recipe.parallel.zero), &recipe.leaf_shares());
    shares.leaves_of(part, recipe.num_leaves())
}
