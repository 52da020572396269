//! Gradient buffer of a block's trained parameters.
//!
//! Gradients of trained parameters are contiguous, in the order of the flat buffer; frozen
//! parameters have none. Backward looks up the range of each parameter and skips the work for
//! frozen ones. Where a micro-batch is the first of its reduction leaf, the buffer of an
//! accelerator is undefined: products overwrite it, and other gradients are zeroed first.

use crate::scratch::Frame;
use lockstep_tensor::device::{Device, Result, ViewMut};
use lockstep_tensor::gemm::Write;
use std::ops::Range;

/// Gradients of a block's trained parameters.
#[derive(Debug)]
pub struct Grads<'a> {
    values: ViewMut<'a>,
    /// Trained ranges of the block's flat buffer: whole parameters, ascending, disjoint.
    runs: &'a [Range<usize>],
    /// Whether the values are undefined until a product sets them.
    write: Write,
}

impl<'a> Grads<'a> {
    /// Wraps `values`, to which gradients are added. It has one element for every element of
    /// `runs`, the trained ranges of the block's flat buffer, in order.
    pub fn new(values: ViewMut<'a>, runs: &'a [Range<usize>]) -> Self {
        let len: usize = runs.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(values.len(), len, "one gradient for each trained element");
        Self { values, runs, write: Write::Add }
    }

    /// Like [`Self::new`], or with undefined values that gradients overwrite, for a block that
    /// [sets gradients](crate::Block::sets_gradients); [`Self::zeroed`] prepares them for others.
    pub fn written(values: ViewMut<'a>, runs: &'a [Range<usize>], write: Write) -> Self {
        Self { write, ..Self::new(values, runs) }
    }

    /// Zeroes undefined values, so that gradients can be added.
    pub fn zeroed(mut self, device: &dyn Device) -> Result<Self> {
        if self.write == Write::Set && !self.values.is_empty() {
            device.fill(self.values.reborrow(), 0.0)?;
        }
        Ok(Self { write: Write::Add, ..self })
    }

    /// Zeroes undefined gradients of parameters, to which sums are added.
    pub(crate) fn zero(&mut self, device: &dyn Device, params: &Range<usize>) -> Result<()> {
        if self.write == Write::Add {
            return Ok(());
        }
        self.trained_ranges(params).try_for_each(|(_, values)| device.fill(values, 0.0))
    }

    /// How the product of a weight's gradient writes it.
    pub(crate) const fn write(&self) -> Write {
        self.write
    }

    /// No trained parameters.
    pub fn none() -> Self {
        Self { values: ViewMut::of::<f32>(&mut []), runs: &[], write: Write::Add }
    }

    /// Reborrows the gradients for a part of the block.
    pub fn reborrow(&mut self) -> Grads<'_> {
        Grads { values: self.values.reborrow(), runs: self.runs, write: self.write }
    }

    /// Gradients of a parameter; empty if it is frozen.
    pub fn of(&mut self, param: &Range<usize>) -> ViewMut<'_> {
        let [place] = self.places([param]);
        self.values.reborrow().range(place)
    }

    /// Gradients of two parameters; empty where frozen.
    pub fn of_two(&mut self, params: [&Range<usize>; 2]) -> [ViewMut<'_>; 2] {
        let [one, other] = self.places(params);
        let middle = one.start.max(other.start);
        assert!(one.end.min(other.end) <= middle, "two parameters share no element");
        let (front, behind) = self.values.reborrow().split_at(middle);
        let moved = |range: Range<usize>| range.start - middle..range.end - middle;
        if one.start < middle {
            return [front.range(one), behind.range(moved(other))];
        }
        if other.start < middle {
            return [behind.range(moved(one)), front.range(other)];
        }
        // Both start here, so at least one of them is empty.
        let (at, rest) = behind.split_at(one.len());
        [at, rest.range(0..other.len())]
    }

    /// Gradients of several contiguous parameters: for every trained range of them, the range in
    /// the block's flat buffer, and its gradients.
    pub fn trained_ranges(
        &mut self,
        params: &Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, ViewMut<'_>)> {
        let mut rest = Frame::over(self.values.reborrow());
        self.runs.iter().filter_map(move |run| {
            let of_run = rest.take(run.len());
            let (start, end) = (run.start.max(params.start), run.end.min(params.end));
            (start < end).then(|| (start..end, of_run.range(start - run.start..end - run.start)))
        })
    }

    /// Ranges of the gradients of parameters.
    fn places<const N: usize>(&self, params: [&Range<usize>; N]) -> [Range<usize>; N] {
        params.map(|param| {
            let mut before = 0;
            // Neighbours may be separate runs, and a parameter may span several.
            let (mut start, mut covered) = (0, param.start);
            for run in self.runs {
                if run.contains(&covered) {
                    if covered == param.start {
                        start = before + param.start - run.start;
                    }
                    covered = run.end.min(param.end);
                }
                if covered == param.end {
                    return start..start + param.len();
                }
                before += run.len();
            }
            0..0
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values_of(view: ViewMut<'_>) -> &mut [f32] {
        view.into_slice().unwrap()
    }

    #[test]
    fn only_trained_parameters_have_gradients() {
        let mut values: Vec<f32> = (0..7).map(|i| i as f32).collect();
        let runs = [2..5, 8..12];
        let mut grads = Grads::new(ViewMut::of(&mut values), &runs);
        assert_eq!(values_of(grads.of(&(2..5))), [0.0, 1.0, 2.0]);
        assert_eq!(values_of(grads.of(&(3..5))), [1.0, 2.0]);
        assert_eq!(values_of(grads.of(&(10..12))), [5.0, 6.0]);
        assert!(grads.of(&(0..2)).is_empty() && grads.of(&(5..8)).is_empty());
        let [one, other] = grads.of_two([&(8..9), &(2..3)]).map(values_of);
        assert_eq!((&*one, &*other), (&[3.0][..], &[0.0][..]));
        let [one, other] = grads.of_two([&(0..2), &(2..3)]).map(values_of);
        assert_eq!((&*one, &*other), (&[][..], &[0.0][..]));
        let [one, other] = grads.of_two([&(2..3), &(0..2)]).map(values_of);
        assert_eq!((&*one, &*other), (&[0.0][..], &[][..]));
    }

    #[test]
    fn a_parameter_may_span_several_runs() {
        let mut values: Vec<f32> = (0..7).map(|i| i as f32).collect();
        let runs = [2..5, 5..7, 8..10];
        let mut grads = Grads::new(ViewMut::of(&mut values), &runs);
        assert_eq!(values_of(grads.of(&(2..7))), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(values_of(grads.of(&(4..6))), [2.0, 3.0]);
        assert!(grads.of(&(5..10)).is_empty(), "there is a gap");
    }

    #[test]
    fn trained_ranges_cover_the_trained_parameters() {
        let mut values: Vec<f32> = (0..7).map(|i| i as f32).collect();
        let runs = [2..5, 8..12];
        let mut grads = Grads::new(ViewMut::of(&mut values), &runs);
        let found: Vec<_> =
            grads.trained_ranges(&(4..10)).map(|(at, g)| (at, values_of(g).to_vec())).collect();
        assert_eq!(found, [(4..5, vec![2.0]), (8..10, vec![3.0, 4.0])]);
        assert_eq!(grads.trained_ranges(&(5..8)).count(), 0);
        assert_eq!(Grads::none().trained_ranges(&(0..9)).count(), 0);
    }

    #[test]
    #[should_panic(expected = "one gradient for each trained element")]
    fn a_buffer_of_another_length_is_refused() {
        let _ = Grads::new(ViewMut::of(&mut [0.0_f32; 3]), &[0..1, 2..3]);
    }
}
