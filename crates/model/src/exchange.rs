//! What a layer asks of whoever holds the other slices of the model.
//!
//! The model does not know who that is, or whether there is anybody: it adds up what its own slices
//! make, by the tree, and hands the sum over to be completed. Calls cannot fail here: whoever
//! carries them out remembers an error, and whoever runs the blocks asks for it between them.

/// Completes what was computed from some of the slices. All holders make the same calls in the same
/// order, with buffers of the same length.
pub trait Exchange {
    /// Adds up the sums of all holders, by the tree over slices, for everybody.
    fn sum(&mut self, values: &mut [f32]);

    /// The largest of all holders' numbers, element by element, for everybody.
    fn max(&mut self, values: &mut [f32]);

    /// Every holder has its own part of `values`, as long as any other's, in its place; then
    /// everybody has all parts.
    fn gather(&mut self, values: &mut [f32]);

    /// As [`Self::sum`], but every holder gets its own part only, in its place; the rest of
    /// `values` is of no meaning then.
    fn sum_scatter(&mut self, values: &mut [f32]);

    /// Whether a call went wrong: what was computed since is of no use, and nothing need follow.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Which call of an [`Exchange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// [`Exchange::sum`].
    Sum,
    /// [`Exchange::max`].
    Max,
    /// [`Exchange::gather`].
    Gather,
    /// [`Exchange::sum_scatter`].
    SumScatter,
}

/// A call that a block makes, known before it runs: what plans are priced by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeCall {
    /// Which.
    pub kind: ExchangeKind,
    /// On how many elements.
    pub len: usize,
}

impl ExchangeCall {
    pub(crate) const fn new(kind: ExchangeKind, len: usize) -> Self {
        Self { kind, len }
    }
}

/// All slices are here: what was computed is complete.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllHere;

impl Exchange for AllHere {
    fn sum(&mut self, _values: &mut [f32]) {}

    fn max(&mut self, _values: &mut [f32]) {}

    fn gather(&mut self, _values: &mut [f32]) {}

    fn sum_scatter(&mut self, _values: &mut [f32]) {}
}
