//! Squared norms of the gradients of single reduction leaves and of their total, from which the
//! gradient-noise scale follows (McCandlish et al. 2018, appendix A.1).
//!
//! A leaf's gradient exists between the backward pass of its last micro-batch and its addition to
//! the tree, bucket by bucket; there its squares are summed, and those of the total as soon as it
//! is reduced. Sums stay chunks of [`SQUARES_CHUNK`] elements on the device until the step needs
//! them, so nothing waits for them. A tied tensor counts as two, with its gradients as embedding
//! and as output head: their sum exists for the whole batch only.

use lockstep_tensor::device::{Buffer, Device, Dtype, Result as DeviceResult, View, ViewMut};
use lockstep_tensor::reduce::SQUARES_CHUNK;
use std::ops::Range;

/// Squared norms of this rank's part of the gradients of a step.
#[derive(Debug)]
pub struct LeafNorms {
    of_leaf: ChunkLayout,
    of_total: ChunkLayout,
    /// Chunk sums of every leaf of this rank, then of the total.
    chunks: Vec<f64>,
    /// Those that an accelerator computes.
    on_device: Option<Buffer>,
    /// Leaves of this rank that have been measured, by bucket.
    num_finished: Vec<usize>,
    /// Squared norm of every leaf of this rank.
    by_leaf: Vec<f64>,
    is_on: bool,
    has_total: bool,
}

/// Squared norms of a rank's part of the gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SquaredNorms<'a> {
    /// Each of the rank's leaves, in the order in which it runs them.
    pub by_leaf: &'a [f64],
    /// The part of the total that this rank measures; those of all ranks add up to the whole.
    pub total: f64,
}

/// Elements of every bucket whose squares are summed, and the places of their sums.
#[derive(Debug)]
struct ChunkLayout {
    /// Ranges of each bucket.
    runs: Vec<Vec<Range<usize>>>,
    /// First sum of each bucket, and the end of the last.
    starts: Vec<usize>,
}

impl ChunkLayout {
    fn new(runs: Vec<Vec<Range<usize>>>) -> Self {
        let mut starts = vec![0];
        for runs in &runs {
            let num: usize = runs.iter().map(|run| run.len().div_ceil(SQUARES_CHUNK)).sum();
            starts.push(starts[starts.len() - 1] + num);
        }
        Self { runs, starts }
    }

    fn len(&self) -> usize {
        self.starts[self.runs.len()]
    }

    /// Sums the squares of a bucket into its place of `sums`.
    fn sum_squares(
        &self,
        device: &dyn Device,
        bucket: usize,
        values: View<'_>,
        sums: ViewMut<'_>,
    ) -> DeviceResult<()> {
        let mut rest = sums.range(self.starts[bucket]..self.starts[bucket + 1]);
        for run in &self.runs[bucket] {
            let (own, behind) = rest.split_at(run.len().div_ceil(SQUARES_CHUNK));
            device.sum_squares(&[values.range(run.clone())], own)?;
            rest = behind;
        }
        Ok(())
    }
}

impl LeafNorms {
    /// For `num_leaves` leaves of this rank: `of_leaf` are the ranges of every gradient bucket that
    /// it measures, `of_total` those of its part of the total.
    pub fn new(
        num_leaves: usize,
        of_leaf: Vec<Vec<Range<usize>>>,
        of_total: Vec<Vec<Range<usize>>>,
        accelerator: Option<&dyn Device>,
    ) -> DeviceResult<Self> {
        let [of_leaf, of_total] = [of_leaf, of_total].map(ChunkLayout::new);
        let len = num_leaves * of_leaf.len() + of_total.len();
        let on_device = accelerator.map(|device| device.allocate(Dtype::F64, len)).transpose()?;
        Ok(Self {
            num_finished: vec![0; of_leaf.runs.len()],
            of_leaf,
            of_total,
            chunks: vec![0.0; len],
            on_device,
            by_leaf: vec![0.0; num_leaves],
            is_on: false,
            has_total: false,
        })
    }

    /// Sets whether the next step is measured.
    pub fn set_on(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Whether the step is measured.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Discards the sums of the last step.
    pub fn restart(&mut self) {
        self.num_finished.fill(0);
        self.has_total = false;
    }

    /// Measures a bucket of the next leaf.
    pub fn measure_leaf(
        &mut self,
        device: &dyn Device,
        bucket: usize,
        leaf: View<'_>,
    ) -> DeviceResult<()> {
        let number = self.num_finished[bucket];
        assert!(number < self.by_leaf.len(), "the leaves of this rank");
        self.num_finished[bucket] += 1;
        let len = self.of_leaf.len();
        let sums = sums_mut(&mut self.on_device, &mut self.chunks);
        let sums = sums.range(number * len..(number + 1) * len);
        self.of_leaf.sum_squares(device, bucket, leaf, sums)
    }

    /// Measures this rank's part of the total; `totals` returns the reduced gradients of a bucket.
    pub fn measure_total<'a>(
        &mut self,
        device: &dyn Device,
        totals: impl Fn(usize) -> DeviceResult<View<'a>>,
    ) -> DeviceResult<()> {
        let behind_leaves = self.by_leaf.len() * self.of_leaf.len()..self.chunks.len();
        let mut sums = sums_mut(&mut self.on_device, &mut self.chunks).range(behind_leaves);
        for bucket in 0..self.of_total.runs.len() {
            if !self.of_total.runs[bucket].is_empty() {
                self.of_total.sum_squares(device, bucket, totals(bucket)?, sums.reborrow())?;
            }
        }
        self.has_total = true;
        Ok(())
    }

    /// Norms of the step times `factor`, once all leaves and the total were measured; waits for the
    /// device.
    pub fn read(
        &mut self,
        device: &dyn Device,
        factor: f64,
    ) -> DeviceResult<Option<SquaredNorms<'_>>> {
        let has_leaves = |(bucket, num): (usize, &usize)| {
            *num == self.by_leaf.len() || self.of_leaf.runs[bucket].is_empty()
        };
        if !self.has_total || !self.num_finished.iter().enumerate().all(has_leaves) {
            return Ok(None);
        }
        if let Some(sums) = &self.on_device {
            device.copy(sums.view(), ViewMut::of(&mut self.chunks))?;
        }
        let len = self.of_leaf.len();
        let (leaves, total) = self.chunks.split_at(self.by_leaf.len() * len);
        let sum = |chunks: &[f64]| factor * chunks.iter().fold(0.0, |sum, chunk| sum + chunk);
        for (number, norm) in self.by_leaf.iter_mut().enumerate() {
            *norm = sum(&leaves[number * len..(number + 1) * len]);
        }
        Ok(Some(SquaredNorms { by_leaf: &self.by_leaf, total: sum(total) }))
    }
}

/// Memory of the sums, where they are computed.
fn sums_mut<'a>(on_device: &'a mut Option<Buffer>, chunks: &'a mut [f64]) -> ViewMut<'a> {
    on_device.as_mut().map_or_else(|| ViewMut::of(chunks), Buffer::view_mut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_tensor::{Cpu, Isa};

    /// Two buckets, of which one has a gap that another rank measures, and one is longer than a
    /// chunk.
    fn norms(num_leaves: usize) -> LeafNorms {
        let of_leaf = vec![vec![0..2, 3..4], vec![0..SQUARES_CHUNK + 1], Vec::new()];
        let of_total = vec![vec![0..1], vec![1..3], Vec::new()];
        LeafNorms::new(num_leaves, of_leaf, of_total, None).unwrap()
    }

    #[test]
    fn a_leaf_is_measured_bucket_by_bucket_and_gaps_do_not_count() {
        let cpu = Cpu::single(Isa::detect());
        let (small, large) = ([1.0_f32, 2.0, 100.0, 3.0], vec![0.5_f32; SQUARES_CHUNK + 1]);
        let mut norms = norms(2);
        for factor in [1.0_f32, 3.0] {
            norms.restart();
            assert_eq!(norms.read(&cpu, 1.0).unwrap(), None, "nothing was measured");
            let first = small.map(|value| factor * value);
            norms.measure_leaf(&cpu, 1, View::of(&large)).unwrap();
            norms.measure_leaf(&cpu, 0, View::of(&first)).unwrap();
            norms.measure_leaf(&cpu, 0, View::of(&small)).unwrap();
            norms.measure_total(&cpu, |_| Ok(View::of(&small))).unwrap();
            assert_eq!(
                norms.read(&cpu, 1.0).unwrap(),
                None,
                "a bucket of the second leaf is missing"
            );
            norms.measure_leaf(&cpu, 1, View::of(&vec![0.0_f32; SQUARES_CHUNK + 1])).unwrap();
            let found = norms.read(&cpu, 2.0).unwrap().expect("both leaves and the total");
            let of_large = 0.25 * (SQUARES_CHUNK + 1) as f64;
            let of_small = 14.0 * f64::from(factor * factor);
            assert_eq!(found.by_leaf, [2.0 * (of_small + of_large), 28.0]);
            // 1 of the first bucket; 2 and 100 of the second.
            assert!((found.total - 20_010.0).abs() < 1e-9, "{}", found.total);
        }
    }
}
