//! The losses of a step's micro-batches, added in the order of micro-batches wherever they were computed.

use crate::leaves::Leaves;
use crate::overlap::Overlap;
use crate::shares::Shares;
use lockstep_comm::CommError;

/// Room for the loss of every micro-batch.
#[derive(Debug)]
pub struct MicrobatchLosses {
    /// How many losses each worker tells.
    lens: Vec<usize>,
    /// The micro-batch of each entry of `gathered`.
    microbatches: Vec<usize>,
    /// Losses by worker, in the order in which the workers run their micro-batches.
    gathered: Vec<f64>,
    /// Losses by micro-batch.
    by_microbatch: Vec<f64>,
    /// The losses of this worker's micro-batches.
    told: Vec<f64>,
    /// Where they begin in `gathered`.
    start: usize,
    rank: usize,
    /// The micro-batches that this worker runs.
    own: Vec<usize>,
    /// Whether nobody tells anybody anything.
    is_alone: bool,
}

impl MicrobatchLosses {
    /// For micro-batches divided as `shares` say, on the worker `rank` that has the part `part` of them.
    /// `tellers` are the workers that know the losses, by part.
    pub fn new(
        shares: &Shares,
        leaves: Leaves,
        tellers: &[Option<usize>],
        (rank, part): (usize, usize),
    ) -> Self {
        let told =
            |part: &Option<usize>| part.map_or(Vec::new(), |p| shares.microbatches_of(p, leaves));
        let by_worker: Vec<_> = tellers.iter().map(told).collect();
        let lens: Vec<_> = by_worker.iter().map(Vec::len).collect();
        let microbatches = by_worker.concat();
        let zeros = vec![0.0; microbatches.len()];
        let start = lens[..rank].iter().sum();
        let own = shares.microbatches_of(part, leaves);
        let (told, by_microbatch) = (vec![0.0; own.len()], zeros.clone());
        Self {
            lens,
            gathered: zeros,
            by_microbatch,
            microbatches,
            told,
            start,
            rank,
            own,
            is_alone: false,
        }
    }

    /// Says whether sums are of this worker's micro-batches alone.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// How many micro-batches this worker runs.
    pub fn num_own(&self) -> usize {
        self.own.len()
    }

    /// The numbers of the micro-batches that this worker runs, in its order.
    pub fn own_microbatches(&self) -> &[usize] {
        &self.own
    }

    /// The same, and where their losses are noted.
    pub fn own_mut(&mut self) -> (&[usize], &mut [f64]) {
        (&self.own, &mut self.told)
    }

    /// The sum over all micro-batches of all workers, or of this one's, in the order of micro-batches.
    pub fn gather(&mut self, overlap: &mut Overlap) -> Result<f64, CommError> {
        if self.is_alone {
            return Ok(self.told.iter().fold(0.0, |sum, loss| sum + loss));
        }
        let own = &mut self.gathered[self.start..self.start + self.lens[self.rank]];
        own.copy_from_slice(&self.told[..own.len()]);
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
            for shares in [Shares::even(8, num_workers), Shares::Cyclic { num_workers }] {
                let sums = on_workers(num_workers, false, |mut overlap| {
                    let worker = overlap.comm().group_rank();
                    let tellers: Vec<_> = (0..num_workers).map(Some).collect();
                    let at = (worker, worker);
                    let mut losses = MicrobatchLosses::new(&shares, leaves, &tellers, at);
                    // The second time something is left from the first.
                    let sums = [f64::NAN, 1.0].map(|factor| {
                        for index in 0..losses.num_own() {
                            losses.told[index] = factor * loss(losses.own[index]);
                        }
                        losses.gather(&mut overlap).unwrap()
                    });
                    assert!(sums[0].is_nan(), "a bad loss is seen by all");
                    sums[1]
                });
                let is_right = |sum: &f64| sum.to_bits() == expected.to_bits();
                assert!(sums.iter().all(is_right), "{shares:?}");
            }
        }
    }
}
