//! A run whose number of workers changes while it goes.
//!
//! Workers come and go by whole copies of the model: a copy's stages and slices stay as they were
//! asked for, and only how many copies share the batch changes. Bits do not depend on that.

use super::Recipe;

/// How few and how many workers a run may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elastic {
    /// With fewer it fails.
    pub min: usize,
    /// It starts with so many, and grows no further.
    pub max: usize,
}

impl Recipe {
    /// How many workers a life of the run may have, ascending: one number where that is fixed, or
    /// else all that make whole copies of the model.
    pub fn worker_counts(&self) -> Vec<usize> {
        let Some(Elastic { min, max }) = self.run.elastic else { return vec![self.run.workers] };
        let each = self.parallel.workers_per_replica();
        (min..=max).filter(|size| size.is_multiple_of(each)).collect()
    }

    /// The recipe of a life of the run with so many workers: only the number of copies of the
    /// model differs.
    ///
    /// # Panics
    /// When that is no number of workers of the run.
    pub fn with_workers(&self, workers: usize) -> Self {
        assert!(self.worker_counts().contains(&workers), "{workers} workers");
        let mut sized = self.clone();
        if self.run.elastic.is_some() {
            sized.run.elastic = None;
            sized.run.workers = workers;
            sized.parallel.data = workers / self.parallel.workers_per_replica();
            sized.emulate.links.retain(|link| link.ranks.iter().all(|rank| *rank < workers));
            sized.emulate.slow.retain(|slow| slow.rank < workers);
        }
        sized
    }
}
