//! One-step delayed gradients: the reduction of a step overlaps with the whole next step.
//!
//! Step t computes its gradients and starts to reduce them; it steps by the gradients of step t −
//! 1, which were reduced meanwhile. A rank waits only if the reduction takes longer than the
//! computation of a step. The cost is staleness: along a direction of curvature λ, descent is
//! x(t+1) = x(t) − αλ x(t−1), which is stable only for αλ < 1 instead of 2.
//!
//! Two sets of sums alternate: one is filled while the other is reduced. The delay depends on
//! neither time nor the number of ranks, so results stay deterministic. The first step has no
//! gradients and changes nothing.

use crate::data_parallel::WholeGradients;
use crate::leaf_assignment::LeafAssignment;
use crate::leaves::Leaves;
use crate::param_store::{DelayedGradients, Gradients, ParamStore};
use crate::replica::Replica;
use crate::sparse_embedding::SparseEmbedding;
use crate::trainable_params::TrainableParams;
use lockstep_comm::CommError;

impl ParamStore {
    /// A second set of sums, zeroed.
    fn new_delayed(
        &self,
        trained: &TrainableParams,
        leaves: Leaves,
        shares: &LeafAssignment,
        sparse: Option<SparseEmbedding>,
    ) -> Result<DelayedGradients, CommError> {
        let LeafAssignment::Contiguous(runs) = shares else { unreachable!("gradients are whole") };
        let (mine, overlap) = (&runs[self.overlap.comm().group_rank()], &self.overlap);
        let mut sums = WholeGradients::new(&trained.grads, leaves, mine, false, sparse, overlap)?;
        sums.abandon();
        sums.mark_pending();
        Ok(DelayedGradients { sums, is_of_a_step: false, was_of_a_step: false })
    }

    /// Discards gradients in flight for another layout; the next step then has none.
    pub(crate) fn reset_delayed(
        &mut self,
        trained: &TrainableParams,
        leaves: Leaves,
        shares: &LeafAssignment,
        sparse: Option<SparseEmbedding>,
    ) -> Result<(), CommError> {
        if let Some(mut before) = self.delayed.take() {
            before.sums.settle(&mut self.overlap)?;
            self.delayed = Some(self.new_delayed(trained, leaves, shares, sparse)?);
        }
        Ok(())
    }

    /// Swaps the sums: the step takes those that were in flight, and the new ones go in flight.
    pub(crate) fn swap_in_delayed(&mut self) {
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
    /// Enables one-step gradient delay. Collective, before the first step.
    pub fn delay_gradients(&mut self) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "gradients are whole");
        let Self { plan, shares, store, blueprint, .. } = self;
        let sparse = plan.sparse(blueprint, store.trained());
        let delayed = store.new_delayed(store.trained(), plan.leaves, shares, sparse)?;
        store.delayed = Some(delayed);
        Ok(())
    }

    /// Whether the current step has gradients.
    pub fn has_gradients(&self) -> bool {
        self.store.delayed.as_ref().is_none_or(|delayed| delayed.was_of_a_step)
    }

    /// Waits for gradients in flight and discards them; the run is over.
    pub fn settle_delayed(&mut self) -> Result<(), CommError> {
        let ParamStore { delayed, overlap, .. } = &mut self.store;
        delayed.as_mut().map_or(Ok(()), |delayed| delayed.sums.settle(overlap))
    }

    /// Waits for gradients in flight and visits them by name, to save or to restore them; equal on
    /// all ranks.
    pub fn visit_delayed<E: From<CommError>>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (slots, grads) = (self.slots(), self.store.trained().grads.clone());
        let ParamStore { delayed: Some(delayed), overlap, .. } = &mut self.store else {
            return Ok(());
        };
        let DelayedGradients { sums, is_of_a_step, .. } = delayed;
        sums.wait_all(overlap)?;
        for slot in slots {
            let values = &mut sums.total_mut(slot.block)[slot.grads.clone()];
            visit(&format!("{}.delayed", slot.name), values)?;
        }
        for (index, pair) in grads.mirrors.iter().enumerate() {
            let (bucket, range) = &pair.mirror;
            visit(&format!("mirror.{index}.delayed"), &mut sums.total_mut(*bucket)[range.clone()])?;
        }
        sums.mark_pending();
        *is_of_a_step = true;
        Ok(())
    }
}
