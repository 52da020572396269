//! Tensor-parallel collectives that a layer calls, as an interface.
//!
//! The model is independent of ranks: it adds the terms of its local shards by the tree and passes
//! the partial sum to a collective. Calls return no error: the implementation records a failure,
//! and the runtime checks for it between blocks.

use lockstep_tensor::device::ViewMut;

/// Collectives over the tensor-parallel ranks. All ranks make the same calls in the same order,
/// with buffers of equal length.
pub trait TensorCollectives {
    /// Sums over all ranks, by the tree over shards.
    fn all_reduce(&mut self, values: ViewMut<'_>);

    /// Maximum over all ranks, element by element.
    fn all_reduce_max(&mut self, values: ViewMut<'_>);

    /// All-gather in place: every rank contributes its own part of `values`, all of equal length.
    fn all_gather(&mut self, values: ViewMut<'_>);

    /// Reduce-scatter in place: every rank gets its own part of the sum; the rest of `values` is
    /// undefined.
    fn reduce_scatter(&mut self, values: ViewMut<'_>);

    /// Whether a call failed: results since then are invalid, and the pass may stop.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Collective of [`TensorCollectives`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`TensorCollectives::all_reduce`].
    AllReduce,
    /// [`TensorCollectives::all_reduce_max`].
    AllReduceMax,
    /// [`TensorCollectives::all_gather`].
    AllGather,
    /// [`TensorCollectives::reduce_scatter`].
    ReduceScatter,
}

/// A collective call of a block, known before it runs; the planner prices these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveCall {
    /// Collective.
    pub kind: CollectiveKind,
    /// Number of elements.
    pub len: usize,
}

impl CollectiveCall {
    pub(crate) const fn new(kind: CollectiveKind, len: usize) -> Self {
        Self { kind, len }
    }
}

/// Collectives of one rank with all shards: no communication.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleRank;

impl TensorCollectives for SingleRank {
    fn all_reduce(&mut self, _values: ViewMut<'_>) {}

    fn all_reduce_max(&mut self, _values: ViewMut<'_>) {}

    fn all_gather(&mut self, _values: ViewMut<'_>) {}

    fn reduce_scatter(&mut self, _values: ViewMut<'_>) {}
}
