//! Where a block adds the gradients of its parameters: only those that are trained.
//!
//! A block's parameters lie one behind the other, and so do the gradients of those that are
//! trained: what is frozen has no place among them. Backward asks for the place of each parameter,
//! and leaves out the work for those that have none.

use std::ops::Range;

/// The gradients of a block's parameters that are trained.
#[derive(Debug)]
pub struct Grads<'a> {
    values: &'a mut [f32],
    /// What is trained of the block's flat buffer: whole parameters, ascending, apart.
    runs: &'a [Range<usize>],
}

impl<'a> Grads<'a> {
    /// `values` has an element for every element of `runs`, the stretches of the block's flat
    /// buffer that are trained, in their order.
    pub fn new(values: &'a mut [f32], runs: &'a [Range<usize>]) -> Self {
        let len: usize = runs.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(values.len(), len, "a gradient for everything that is trained");
        Self { values, runs }
    }

    /// Nothing is trained.
    pub const fn none() -> Self {
        Self { values: &mut [], runs: &[] }
    }

    /// The same gradients, for a part of the block.
    pub(crate) fn reborrow(&mut self) -> Grads<'_> {
        Grads { values: self.values, runs: self.runs }
    }

    /// The gradients of a parameter, or nothing where it is frozen.
    pub(crate) fn of(&mut self, param: &Range<usize>) -> &mut [f32] {
        let [place] = self.places([param]);
        &mut self.values[place]
    }

    /// See [`Self::of`], for two parameters.
    pub(crate) fn of_two(&mut self, params: [&Range<usize>; 2]) -> [&mut [f32]; 2] {
        let places = self.places(params);
        self.values.get_disjoint_mut(places).expect("two parameters share no element")
    }

    /// The gradients of several parameters in a row: for every stretch of them that is trained,
    /// where it lies in the block's flat buffer, and its gradients.
    pub(crate) fn stretches(
        &mut self,
        params: &Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, &mut [f32])> {
        let mut rest = &mut *self.values;
        self.runs.iter().filter_map(move |run| {
            let (of_run, behind) = std::mem::take(&mut rest).split_at_mut(run.len());
            rest = behind;
            let (start, end) = (run.start.max(params.start), run.end.min(params.end));
            (start < end).then(|| (start..end, &mut of_run[start - run.start..end - run.start]))
        })
    }

    /// Where the gradients of parameters lie.
    fn places<const N: usize>(&self, params: [&Range<usize>; N]) -> [Range<usize>; N] {
        params.map(|param| {
            let mut before = 0;
            // Neighbours may be runs of their own, and a parameter reach over several.
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

    #[test]
    fn every_trained_parameter_has_a_place_and_no_other() {
        let mut values: Vec<f32> = (0..7).map(|i| i as f32).collect();
        let runs = [2..5, 8..12];
        let mut grads = Grads::new(&mut values, &runs);
        assert_eq!(grads.of(&(2..5)), [0.0, 1.0, 2.0]);
        assert_eq!(grads.of(&(3..5)), [1.0, 2.0]);
        assert_eq!(grads.of(&(10..12)), [5.0, 6.0]);
        assert!(grads.of(&(0..2)).is_empty() && grads.of(&(5..8)).is_empty());
        let [one, other] = grads.of_two([&(8..9), &(2..3)]);
        assert_eq!((&*one, &*other), (&[3.0][..], &[0.0][..]));
        let [one, other] = grads.of_two([&(0..2), &(2..3)]);
        assert_eq!((&*one, &*other), (&[][..], &[0.0][..]));
    }

    #[test]
    fn a_parameter_may_reach_over_several_neighbours() {
        let mut values: Vec<f32> = (0..7).map(|i| i as f32).collect();
        let runs = [2..5, 5..7, 8..10];
        let mut grads = Grads::new(&mut values, &runs);
        assert_eq!(grads.of(&(2..7)), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(grads.of(&(4..6)), [2.0, 3.0]);
        assert!(grads.of(&(5..10)).is_empty(), "there is a gap");
    }

    #[test]
    fn stretches_are_what_is_trained_of_several_parameters() {
        let mut values: Vec<f32> = (0..7).map(|i| i as f32).collect();
        let runs = [2..5, 8..12];
        let mut grads = Grads::new(&mut values, &runs);
        let found: Vec<_> = grads.stretches(&(4..10)).map(|(at, g)| (at, g.to_vec())).collect();
        assert_eq!(found, [(4..5, vec![2.0]), (8..10, vec![3.0, 4.0])]);
        assert_eq!(grads.stretches(&(5..8)).count(), 0);
        assert_eq!(Grads::none().stretches(&(0..9)).count(), 0);
    }

    #[test]
    #[should_panic(expected = "a gradient for everything that is trained")]
    fn a_buffer_of_another_length_is_a_bug() {
        let _ = Grads::new(&mut [0.0; 3], &[0..1, 2..3]);
    }
}
