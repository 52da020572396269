//! Elastic runs, whose number of workers changes between attempts.
//!
//! Workers join and leave in whole replicas: pipeline and tensor degrees are constant and only the
//! data-parallel degree changes, on which the bits of the result do not depend.

use super::Recipe;

/// Range of the number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elastic {
    /// Minimum; with fewer the run fails.
    pub min: usize,
    /// Maximum, with which the run starts.
    pub max: usize,
}

impl Recipe {
    /// Numbers of workers that an attempt of the run may have, ascending: one if it is fixed, else
    /// all in the range that make whole replicas.
    pub fn worker_counts(&self) -> Vec<usize> {
        let Some(Elastic { min, max }) = self.run.elastic else { return vec![self.run.workers] };
        let each = self.parallel.workers_per_replica();
        (min..=max).filter(|size| size.is_multiple_of(each)).collect()
    }

    /// The recipe of an attempt with this number of workers: only the data-parallel degree differs.
    ///
    /// # Panics
    /// If [`Self::worker_counts`] does not contain the number.
    pub fn with_workers(&self, workers: usize) -> Self {
        assert!(self.worker_counts().contains(&workers), "{workers} workers");
        let mut recipe = self.clone();
        if self.run.elastic.is_some() {
            recipe.run.elastic = None;
            recipe.run.workers = workers;
            recipe.parallel.data = workers / self.parallel.workers_per_replica();
            recipe.emulate.links.retain(|link| link.ranks.iter().all(|rank| *rank < workers));
            recipe.emulate.slow.retain(|slow| slow.rank < workers);
        }
        recipe
    }
}
