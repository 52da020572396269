//! Losses of a step's micro-batches, added in micro-batch order whichever rank computed them.
//!
//! Ranks also exchange how long they were busy since the last exchange. They all leave it together,
//! so a rank waits for the busiest one as long as that was busy and the rank itself was not,
//! wherever in the step the wait is.

use crate::leaf_assignment::LeafAssignment;
use crate::leaves::Leaves;
use crate::overlap::Overlap;
use lockstep_comm::CommError;
use std::time::Duration;

/// Loss of every micro-batch.
#[derive(Debug)]
pub struct MicrobatchLosses {
    /// Number of values that each rank reports.
    lens: Vec<usize>,
    /// Micro-batch of each entry of `gathered`; none for busy times.
    microbatches: Vec<Option<usize>>,
    /// Busy time and losses by rank, in the order in which the ranks run their micro-batches.
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
        let reported = |part: &Option<usize>| {
            let losses = part.map_or(Vec::new(), |p| shares.microbatches_of(p, leaves));
            [None].into_iter().chain(losses.into_iter().map(Some)).collect::<Vec<_>>()
        };
        let by_worker: Vec<_> = loss_ranks.iter().map(reported).collect();
        let lens: Vec<_> = by_worker.iter().map(Vec::len).collect();
        let microbatches = by_worker.concat();
        let start = lens[..rank].iter().sum();
        let own = shares.microbatches_of(part, leaves);
        Self {
            gathered: vec![0.0; microbatches.len()],
            by_microbatch: vec![0.0; microbatches.len() - lens.len()],
            own_losses: vec![0.0; own.len()],
            lens,
            microbatches,
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

    /// Losses of this rank's micro-batches, to fill in.
    pub fn own_mut(&mut self) -> &mut [f64] {
        &mut self.own_losses
    }

    /// Sum over the micro-batches of all ranks, or of this one, in micro-batch order; and how much
    /// longer the busiest rank was busy than this one, which was so for `busy`.
    pub fn gather(
        &mut self,
        overlap: &mut Overlap,
        busy: Duration,
    ) -> Result<(f64, Duration), CommError> {
        if self.is_alone {
            let sum = self.own_losses.iter().fold(0.0, |sum, loss| sum + loss);
            return Ok((sum, Duration::ZERO));
        }
        let own = &mut self.gathered[self.start..self.start + self.lens[self.rank]];
        let (own_busy, losses) = own.split_first_mut().expect("every rank reports its busy time");
        *own_busy = busy.as_secs_f64();
        losses.copy_from_slice(&self.own_losses[..losses.len()]);
        overlap.call(|comm| comm.all_gather_parts(&mut self.gathered, &self.lens))?;
        let mut longest = 0.0_f64;
        for (microbatch, &value) in self.microbatches.iter().zip(&self.gathered) {
            match microbatch {
                Some(microbatch) => self.by_microbatch[*microbatch] = value,
                None => longest = longest.max(value),
            }
        }
        let sum = self.by_microbatch.iter().fold(0.0, |sum, loss| sum + loss);
        Ok((sum, Duration::from_secs_f64(longest).saturating_sub(busy)))
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
                        let busy = Duration::from_millis(10 * worker as u64);
                        let (sum, wait) = losses.gather(&mut overlap, busy).unwrap();
                        let longest = Duration::from_millis(10 * (num_workers as u64 - 1));
                        assert_eq!(wait + busy, longest, "the last rank is the busiest");
                        sum
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
