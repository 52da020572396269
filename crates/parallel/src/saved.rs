//! What a worker saves of a model, so that together all workers save it once.
//!
//! Every piece of a parameter lies on somebody: on the workers of its stage of the pipeline, and of
//! those, on each its part of the bucket, whether or not it holds the rest too. Nothing travels. A
//! slice that has some columns of each row of a tensor is saved in as many runs.

use crate::replica::Replica;
use lockstep_comm::CommError;
use lockstep_mesh::Axis;
use lockstep_model::Param;
use lockstep_optim::Optimizer;
use std::ops::Range;

/// Elements of a parameter, or of one kind of an optimizer's state of it.
pub struct OwnPiece<'a> {
    /// The parameter.
    pub param: &'a Param,
    /// The kind of state; nothing for the parameter itself.
    pub kind: Option<&'static str>,
    /// The first element, as a number in the whole parameter.
    pub first: usize,
    /// The elements.
    pub values: &'a [f32],
}

impl Replica {
    /// Gives what this worker is to save of all parameters and of the optimizer's state. Every
    /// element is given by exactly one worker. All of them visit between two steps.
    pub fn visit_own<E: From<CommError>>(
        &mut self,
        optimizer: &Optimizer,
        mut visit: impl FnMut(OwnPiece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Weights that are on their way lie with the call that brings them.
        self.settle()?;
        let part = self.groups.data().group_rank();
        assert_eq!(self.plan.mesh.degree(Axis::Data), self.plan.shares.len(), "a part for each");
        let store = &self.store;
        let is_first_holder = self.groups.tensor().group_rank() == 0;
        for (block, param) in self.blueprint.owned_params() {
            // What all holders of slices have, the first of them saves.
            if param.piece.num == 1 && !is_first_holder {
                continue;
            }
            let (index, range) = store.buckets.place(block, param);
            let bucket = &store.buckets.list[index];
            let (own, mine) = (store.own(bucket), bucket.part(part));
            let Some(piece) = common(&range, &mine) else { continue };
            let values = &store.own_params(index)[piece.start - own.start..piece.end - own.start];
            let first = piece.start - range.start;
            for (run, place) in param.runs(first..first + values.len()) {
                let values = &values[run.start - first..run.end - first];
                visit(OwnPiece { param, kind: None, first: place, values })?;
            }
            let Some(held) = common(&range, &own) else { continue };
            for (kind, name) in optimizer.kinds().iter().enumerate() {
                // Nothing is kept of what is frozen.
                let Some(state) = optimizer.state(&param.name, param.piece.index, kind) else {
                    continue;
                };
                let values = &state[piece.start - held.start..piece.end - held.start];
                for (run, place) in param.runs(first..first + values.len()) {
                    let values = &values[run.start - first..run.end - first];
                    visit(OwnPiece { param, kind: Some(name), first: place, values })?;
                }
            }
        }
        Ok(())
    }
}

fn common(one: &Range<usize>, other: &Range<usize>) -> Option<Range<usize>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (!both.is_empty()).then_some(both)
}
