//! Chunks of a tensor: boxes of its elements that ranks have stored in row-major order.

use std::ops::Range;

/// A box of elements of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// First index by dimension.
    pub(super) offsets: Vec<usize>,
    /// Length by dimension.
    pub(super) sizes: Vec<usize>,
}

/// Elements of a chunk that are consecutive in the tensor too: equally long runs.
pub(super) struct Runs<'a> {
    chunk: &'a Chunk,
    shape: &'a [usize],
    /// Number of leading dimensions that a run does not cross.
    num_outer: usize,
    /// Elements per run, and number of runs.
    pub(super) len: usize,
    pub(super) count: usize,
}

impl Chunk {
    /// Number of elements; none on overflow.
    pub(super) fn num_elements(&self) -> Option<usize> {
        self.sizes.iter().try_fold(1_usize, |n, size| n.checked_mul(*size))
    }

    /// Whether it lies in a tensor of this shape.
    fn is_in(&self, shape: &[usize]) -> bool {
        self.offsets.len() == shape.len()
            && self.sizes.len() == shape.len()
            && self
                .offsets
                .iter()
                .zip(&self.sizes)
                .zip(shape)
                .all(|((first, len), dim)| first.checked_add(*len).is_some_and(|end| end <= *dim))
    }

    fn overlaps(&self, other: &Self) -> bool {
        (0..self.sizes.len()).all(|dim| {
            self.offsets[dim] < other.offsets[dim] + other.sizes[dim]
                && other.offsets[dim] < self.offsets[dim] + self.sizes[dim]
        })
    }

    /// Consecutive elements of the chunk in a tensor of this shape.
    pub(super) fn runs<'a>(&'a self, shape: &'a [usize]) -> Runs<'a> {
        let whole =
            self.sizes.iter().zip(shape).rev().take_while(|(size, dim)| size == dim).count();
        // The dimension before the whole ones is consecutive too.
        let num_outer = shape.len().saturating_sub(whole + 1);
        let (outer, inner) = self.sizes.split_at(num_outer);
        Runs {
            chunk: self,
            shape,
            num_outer,
            len: inner.iter().product(),
            count: outer.iter().product(),
        }
    }
}

impl Runs<'_> {
    /// Index in the tensor of the first element of a run.
    pub(super) fn start(&self, run: usize) -> usize {
        let (mut index, mut stride, mut rest) = (0, 1, run);
        for dim in (0..self.shape.len()).rev() {
            let mut place = self.chunk.offsets[dim];
            if dim < self.num_outer {
                place += rest % self.chunk.sizes[dim];
                rest /= self.chunk.sizes[dim];
            }
            index += place * stride;
            stride *= self.shape[dim];
        }
        index
    }

    /// The runs that hold elements of a range of the tensor: later runs have later elements.
    pub(super) fn within(&self, requested: &Range<usize>) -> Range<usize> {
        let first = self.partition(|run| self.start(run) + self.len <= requested.start);
        first..self.partition(|run| self.start(run) < requested.end).max(first)
    }

    /// Number of leading runs that fulfil a condition, which no run does after one that does not.
    fn partition(&self, holds: impl Fn(usize) -> bool) -> usize {
        let (mut low, mut high) = (0, if self.len == 0 { 0 } else { self.count });
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }
}

/// Checks that chunks cover every element of a tensor once.
pub(super) fn prove_cover(shape: &[usize], chunks: &[&Chunk]) -> Result<(), String> {
    let total = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
    let total = total.ok_or("it has too many elements")?;
    let mut found = 0_usize;
    for chunk in chunks {
        if !chunk.is_in(shape) {
            return Err("a chunk is outside of its tensor".to_owned());
        }
        found = found.saturating_add(chunk.num_elements().unwrap_or(usize::MAX));
    }
    if found != total {
        return Err(format!("its chunks have {found} of {total} elements"));
    }
    // As many elements as the tensor has, so none twice means each once. Chunks that overlap do so
    // in the first dimension, in whose order few are neighbours.
    let mut sorted: Vec<_> = chunks.iter().filter(|chunk| chunk.num_elements() > Some(0)).collect();
    sorted.sort_by(|a, b| a.offsets.cmp(&b.offsets));
    for (index, chunk) in sorted.iter().enumerate() {
        let Some(end) = chunk.offsets.first().map(|first| first + chunk.sizes[0]) else { continue };
        let following = sorted[index + 1..].iter().take_while(|other| other.offsets[0] < end);
        if following.into_iter().any(|other| chunk.overlaps(other)) {
            return Err("two of its chunks overlap".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(offsets: &[usize], sizes: &[usize]) -> Chunk {
        Chunk { offsets: offsets.to_vec(), sizes: sizes.to_vec() }
    }

    /// Indices of the chunk's elements in the tensor, one by one.
    fn indices(chunk: &Chunk, shape: &[usize]) -> Vec<usize> {
        let all: usize = shape.iter().product();
        let is_inside = |index: &usize| {
            let mut rest = *index;
            (0..shape.len()).rev().all(|dim| {
                let place = rest % shape[dim];
                rest /= shape[dim];
                (chunk.offsets[dim]..chunk.offsets[dim] + chunk.sizes[dim]).contains(&place)
            })
        };
        (0..all).filter(is_inside).collect()
    }

    #[test]
    fn runs_visit_the_elements_of_every_box_in_order() {
        let shape = [3, 4, 2];
        let spans = |dim: usize| (0..dim).flat_map(move |a| (1..=dim - a).map(move |n| (a, n)));
        for (a, na) in spans(3) {
            for (b, nb) in spans(4) {
                for (c, nc) in spans(2) {
                    let chunk = chunk(&[a, b, c], &[na, nb, nc]);
                    let runs = chunk.runs(&shape);
                    let found: Vec<_> = (0..runs.count)
                        .flat_map(|run| (0..runs.len).map(move |at| (run, at)))
                        .map(|(run, at)| runs.start(run) + at)
                        .collect();
                    let all = indices(&chunk, &shape);
                    assert_eq!(found, all, "{chunk:?}");
                    for requested in [0..24, 5..6, 7..19, 23..24] {
                        let held = |run: usize| {
                            (runs.start(run)..runs.start(run) + runs.len)
                                .any(|index| requested.contains(&index))
                        };
                        let expected: Vec<_> = (0..runs.count).filter(|run| held(*run)).collect();
                        assert_eq!(
                            runs.within(&requested).collect::<Vec<_>>(),
                            expected,
                            "{chunk:?}"
                        );
                    }
                }
            }
        }
        assert_eq!((chunk(&[], &[]).runs(&[]).len, chunk(&[], &[]).runs(&[]).count), (1, 1));
    }

    #[test]
    fn chunks_must_cover_each_element_once() {
        let halves = [chunk(&[0, 0], &[1, 4]), chunk(&[1, 0], &[1, 4])];
        assert_eq!(prove_cover(&[2, 4], &[&halves[0], &halves[1]]), Ok(()));
        assert!(prove_cover(&[2, 4], &[&halves[0]]).unwrap_err().contains("4 of 8"));
        assert!(prove_cover(&[2, 4], &[&halves[0], &halves[0]]).unwrap_err().contains("overlap"));
        let outside = chunk(&[1, 2], &[1, 4]);
        assert!(prove_cover(&[2, 4], &[&halves[0], &outside]).unwrap_err().contains("outside"));
        let huge = chunk(&[0, 0], &[usize::MAX, usize::MAX]);
        assert!(prove_cover(&[usize::MAX, usize::MAX], &[&huge]).is_err());
    }
}
