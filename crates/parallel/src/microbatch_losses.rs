//! Losses of a step's micro-batches, added in micro-batch order whichever rank computed them.

use crate::leaf_assignment::LeafAssignment;
use crate::leaves::Leaves;
use crate::overlap::Overlap;
use lockstep_comm::CommError;

/// Loss of every micro-batch.
#[derive(Debug)]
pub struct MicrobatchLosses {
    /// Number of losses that each rank reports.
    lens: Vec<usize>,
    /// Micro-batch of each entry of `gathered`.
    microbatches: Vec<usize>,
    /// Losses by rank, in the order in which the ranks run their micro-batches.
    gathered: Vec<f64>,
    /// Losses by micro-batch.
    by_microbatch: Vec<f64>,
    /// Losses of this rank's micro-batches.
    own_losses: Vec<f64>,
    /// Offset of this rank in `gathered`.
    start: usize,
    rank: usize,
    /// Micro-batches that this rank runs.
    own: Vec<usize>,
    /// Whether losses stay on this rank.
    is_alone: bool,
}

impl MicrobatchLosses {
    /// For micro-batches assigned by `shares`, on global rank `rank` with data-parallel rank
    /// `part`. `loss_ranks` gives, for each rank, the data-parallel rank whose losses it reports.
    pub fn new(
        shares: &LeafAssignment,
        leaves: Leaves,
        loss_ranks: &[Option<usize>],
        (rank, part): (usize, usize),
    ) -> Self {
        let own_losses =
            |part: &Option<usize>| part.map_or(Vec::new(), |p| shares.microbatches_of(p, leaves));
        let by_worker: Vec<_> = loss_ranks.iter().map(own_losses).collect();
        let lens: Vec<_> = by_worker.iter().map(Vec::len).collect();
        let microbatches = by_worker.concat();
        let zeros = vec![0.0; microbatches.len()];
        let start = lens[..rank].iter().sum();
        let own = shares.microbatches_of(part, leaves);
        let (own_losses, by_microbatch) = (vec![0.0; own.len()], zeros.clone());
        Self {
            lens,
            gathered: zeros,
            by_microbatch,
            microbatches,
            own_losses,
            start,
            rank,
            own,
            is_alone: false,
        }
    }

    /// Sets whether sums cover this rank's micro-batches only.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// Number of micro-batches that this rank runs.
    pub fn num_own(&self) -> usize {
        self.own.len()
    }

    /// Numbers of this rank's micro-batches, in its order.
    pub fn own_microbatches(&self) -> &[usize] {
        &self.own
    }

    /// Numbers of this rank's micro-batches, and their losses to fill in.
    pub fn own_mut(&mut self) -> (&[usize], &mut [f64]) {
        (&self.own, &mut self.own_losses)
    }

    /// Sum over the micro-batches of all ranks, or of this one, in micro-batch order.
    pub fn gather(&mut self, overlap: &mut Overlap) -> Result<f64, CommError> {
        if self.is_alone {
            return Ok(self.own_losses.iter().fold(0.0, |sum, loss| sum + loss));
        }
        let own = &mut self.gathered[self.start..self.start + self.lens[self.rank]];
        own.copy_from_slice(&self.own_losses[..own.len()]);
        overlap.call(|comm| comm.all_gather_parts(&mut self.gathered, &self.lens))?;
        for (&microbatch, &loss) in self.microbatches.iter().zip(&self.gathered) {
            self.by_microbatch[microbatch] = loss;
        }
        Ok(self.by_microbatch.iter().fold(0.0, |sum, loss| sum + loss))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::on_workers;

    /// Losses whose sum depends on the order.
    fn loss(microbatch: usize) -> f64 {
        1.0 / (microbatch as f64 + 0.3) * [1.0, 1e1, 1e2, 1e3, 1e4][microbatch % 5]
    }

    #[test]
    fn losses_are_added_in_the_order_of_microbatches_wherever_they_were_computed() {
        let leaves = Leaves { num_leaves: 8, microbatches_per_leaf: 3 };
        let expected = (0..24).map(loss).fold(0.0, |sum, loss| sum + loss);
        let backwards = (0..24).rev().map(loss).fold(0.0, |sum, loss| sum + loss);
        assert!(expected.to_bits() != backwards.to_bits(), "the order matters");
        for num_workers in 1..=8 {
            for shares in
                [LeafAssignment::even(8, num_workers), LeafAssignment::Cyclic { num_workers }]
            {
                let sums = on_workers(num_workers, false, |mut overlap| {
                    let worker = overlap.comm().group_rank();
                    let loss_ranks: Vec<_> = (0..num_workers).map(Some).collect();
                    let at = (worker, worker);
                    let mut losses = MicrobatchLosses::new(&shares, leaves, &loss_ranks, at);
                    // The second pass must not see values of the first.
                    let sums = [f64::NAN, 1.0].map(|factor| {
                        for index in 0..losses.num_own() {
                            losses.own_losses[index] = factor * loss(losses.own[index]);
                        }
                        losses.gather(&mut overlap).unwrap()
                    });
                    assert!(sums[0].is_nan(), "a non-finite loss reaches all ranks");
                    sums[1]
                });
                let is_right = |sum: &f64| sum.to_bits() == expected.to_bits();
                assert!(sums.iter().all(is_right), "{shares:?}");
            }
        }
    }
}
