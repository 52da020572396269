//! What a layer asks of whoever holds the other slices of the model.
//!
//! The model does not know who that is, or whether there is anybody: it adds up what its own slices
//! make, by the tree, and hands the sum over to be completed. Calls cannot fail here: whoever
//! carries them out remembers an error, and whoever runs the blocks asks for it between them.

/// Completes what was computed from some of the slices. All holders make the same calls in the same
/// order, with buffers of the same length.
pub trait TensorCollectives {
    /// Adds up the sums of all holders, by the tree over slices, for everybody.
    fn all_reduce(&mut self, values: &mut [f32]);

    /// The largest of all holders' numbers, element by element, for everybody.
    fn all_reduce_max(&mut self, values: &mut [f32]);

    /// Every holder has its own part of `values`, as long as any other's, in its place; then
    /// everybody has all parts.
    fn all_gather(&mut self, values: &mut [f32]);

    /// As [`Self::sum`], but every holder gets its own part only, in its place; the rest of
    /// `values` is of no meaning then.
    fn reduce_scatter(&mut self, values: &mut [f32]);

    /// Whether a call went wrong: what was computed since is of no use, and nothing need follow.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Which call of an [`TensorCollectives`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// [`TensorCollectives::sum`].
    AllReduce,
    /// [`TensorCollectives::max`].
    AllReduceMax,
    /// [`TensorCollectives::gather`].
    AllGather,
    /// [`TensorCollectives::sum_scatter`].
    ReduceScatter,
}

/// A call that a block makes, known before it runs: what plans are priced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveCall {
    /// Which.
    pub kind: CollectiveKind,
    /// On how many elements.
    pub len: usize,
}

impl CollectiveCall {
    pub(crate) const fn new(kind: CollectiveKind, len: usize) -> Self {
        Self { kind, len }
    }
}

/// All slices are here: what was computed is complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleRank;

impl TensorCollectives for SingleRank {
    fn all_reduce(&mut self, _values: &mut [f32]) {}

    fn all_reduce_max(&mut self, _values: &mut [f32]) {}

    fn all_gather(&mut self, _values: &mut [f32]) {}

    fn reduce_scatter(&mut self, _values: &mut [f32]) {}
}
