//! Gradients that are a step old: their exchange hides behind a whole step.
//!
//! Step t computes its gradients and starts to add them up; it goes by those of step t − 1, which
//! were added up meanwhile. So a worker waits for nobody unless the exchange takes longer than a
//! step computes. The price is staleness: along a direction of curvature λ, descent is
//! x(t+1) = x(t) − αλ x(t−1), which is stable only for αλ < 1 instead of 2.
//!
//! There are two sets of sums that take turns: one is filled while the other travels. Nothing of it
//! depends on time or on workers, so neither do the bits. The first step has nothing to go by and
//! changes nothing.

use crate::data::WholeGradients;
use crate::leaves::Leaves;
use crate::replica::Replica;
use crate::shares::Shares;
use crate::sparse::SparseTable;
use crate::store::{Gradients, WorkerStore};
use crate::trained::Trained;
use lockstep_comm::CommError;

/// Gradients on their way for a step.
pub struct Delayed {
    sums: WholeGradients,
    /// Whether they are of any step.
    is_of_a_step: bool,
    /// Whether those that the last step went by were.
    was_of_a_step: bool,
}

impl WorkerStore {
    /// A second set of sums, all zeros.
    fn delayed_anew(
        &self,
        trained: &Trained,
        leaves: Leaves,
        shares: &Shares,
        sparse: Option<SparseTable>,
    ) -> Result<Delayed, CommError> {
        let Shares::Contiguous(runs) = shares else { unreachable!("gradients are whole") };
        let (mine, overlap) = (&runs[self.overlap.comm().group_rank()], &self.overlap);
        let mut sums = WholeGradients::new(&trained.grads, leaves, mine, false, sparse, overlap)?;
        sums.abandon();
        sums.put_back();
        Ok(Delayed { sums, is_of_a_step: false, was_of_a_step: false })
    }

    /// What was on its way for another layout is forgotten: the next step has nothing to go by.
    pub(crate) fn renew_delayed(
        &mut self,
        trained: &Trained,
        leaves: Leaves,
        shares: &Shares,
        sparse: Option<SparseTable>,
    ) -> Result<(), CommError> {
        if let Some(mut before) = self.delayed.take() {
            before.sums.settle(&mut self.overlap)?;
            self.delayed = Some(self.delayed_anew(trained, leaves, shares, sparse)?);
        }
        Ok(())
    }

    /// Those that were on their way are the ones to go by, and what was just computed is on its
    /// way.
    pub(crate) fn take_older(&mut self) {
        if let (Some(delayed), Gradients::Whole(whole)) = (&mut self.delayed, &mut self.grads) {
            std::mem::swap(&mut delayed.sums, whole);
            delayed.was_of_a_step = std::mem::replace(&mut delayed.is_of_a_step, true);
        }
    }

    /// Elements of the second set.
    pub(crate) fn delayed_len(&self) -> usize {
        self.delayed.as_ref().map_or(0, |delayed| delayed.sums.num_elements())
    }
}

impl Replica {
    /// Goes by gradients that are a step old from now on; all workers say so together, before the
    /// first step.
    pub fn delay_gradients(&mut self) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "gradients are whole");
        let Self { plan, shares, store, blueprint, .. } = self;
        let sparse = plan.sparse(blueprint, store.trained());
        let delayed = store.delayed_anew(store.trained(), plan.leaves, shares, sparse)?;
        store.delayed = Some(delayed);
        Ok(())
    }

    /// Whether there is anything that the step at work can go by.
    pub fn has_gradients(&self) -> bool {
        self.store.delayed.as_ref().is_none_or(|delayed| delayed.was_of_a_step)
    }

    /// Waits for gradients that are on their way, where there are any, and lets nothing become of
    /// them: the run is over.
    pub fn settle_delayed(&mut self) -> Result<(), CommError> {
        let WorkerStore { delayed, overlap, .. } = &mut self.store;
        delayed.as_mut().map_or(Ok(()), |delayed| delayed.sums.settle(overlap))
    }

    /// Waits for them and gives them to save, or to fill in, by name; the same on all workers.
    pub fn visit_delayed<E: From<CommError>>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (slots, grads) = (self.slots(), self.store.trained().grads.clone());
        let WorkerStore { delayed: Some(delayed), overlap, .. } = &mut self.store else {
            return Ok(());
        };
        let Delayed { sums, is_of_a_step, .. } = delayed;
        sums.take_back(overlap)?;
        for slot in slots {
            let values = &mut sums.total_mut(slot.block)[slot.grads.clone()];
            visit(&format!("{}.delayed", slot.name), values)?;
        }
        for (index, pair) in grads.mirrors.iter().enumerate() {
            let (bucket, range) = &pair.mirror;
            visit(&format!("mirror.{index}.delayed"), &mut sums.total_mut(*bucket)[range.clone()])?;
        }
        sums.put_back();
        *is_of_a_step = true;
        Ok(())
    }
}
