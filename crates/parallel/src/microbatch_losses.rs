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

/// Loss of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicrobatchLoss {
    /// Sum of the token losses, or of the losses of pairs.
    pub sum: f64,
    /// Of pairs: how many have a positive margin, and the sum of the margins.
    pub pairs: [f64; 2],
}

impl MicrobatchLoss {
    /// A loss of tokens.
    pub const fn of(sum: f64) -> Self {
        Self { sum, pairs: [0.0; 2] }
    }
}

/// Number of values of a micro-batch of pairs: the loss, then the sums over its pairs.
const PAIR_VALUES: usize = 3;

/// Number of values of a micro-batch that ranks exchange.
pub const fn values_per_microbatch(has_pairs: bool) -> usize {
    if has_pairs { PAIR_VALUES } else { 1 }
}

/// Loss of every micro-batch.
#[derive(Debug)]
pub struct MicrobatchLosses {
    /// Number of values that each rank reports.
    lens: Vec<usize>,
    /// Place in `by_microbatch` of each entry of `gathered`; none for busy times.
    places: Vec<Option<usize>>,
    /// Busy time and values by rank, in the order in which the ranks run their micro-batches.
    gathered: Vec<f64>,
    /// Values by micro-batch.
    by_microbatch: Vec<f64>,
    /// Values of this rank's micro-batches.
    own_values: Vec<f64>,
    /// Number of values of a micro-batch.
    num_values: usize,
    /// Sums of the values of the last exchange.
    sums: [f64; PAIR_VALUES],
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
    /// `num_values` is [`values_per_microbatch`].
    pub fn new(
        shares: &LeafAssignment,
        leaves: Leaves,
        loss_ranks: &[Option<usize>],
        (rank, part): (usize, usize),
        num_values: usize,
    ) -> Self {
        let values = |microbatch: usize| (0..num_values).map(move |v| microbatch * num_values + v);
        let reported = |part: &Option<usize>| {
            let own = part.map_or(Vec::new(), |p| shares.microbatches_of(p, leaves));
            [None].into_iter().chain(own.into_iter().flat_map(values).map(Some)).collect::<Vec<_>>()
        };
        let by_worker: Vec<_> = loss_ranks.iter().map(reported).collect();
        let lens: Vec<_> = by_worker.iter().map(Vec::len).collect();
        let places = by_worker.concat();
        let start = lens[..rank].iter().sum();
        let own = shares.microbatches_of(part, leaves);
        Self {
            gathered: vec![0.0; places.len()],
            by_microbatch: vec![0.0; places.len() - lens.len()],
            own_values: vec![0.0; own.len() * num_values],
            num_values,
            sums: [0.0; PAIR_VALUES],
            lens,
            places,
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

    /// Sets the loss of one of this rank's micro-batches, by its place in their order.
    pub fn set_own(&mut self, index: usize, loss: MicrobatchLoss) {
        let MicrobatchLoss { sum, pairs: [num_preferred, margin] } = loss;
        let own = &mut self.own_values[index * self.num_values..(index + 1) * self.num_values];
        own.copy_from_slice(&[sum, num_preferred, margin][..own.len()]);
    }

    /// Sets the losses of this rank's micro-batches to zero.
    pub fn clear_own(&mut self) {
        self.own_values.fill(0.0);
    }

    /// Sums over the pairs of the last [`Self::gather`]: how many have a positive margin, and the
    /// margins. None where micro-batches have none.
    pub fn pairs(&self) -> Option<[f64; 2]> {
        let [_, num_preferred, margin] = self.sums;
        (self.num_values == PAIR_VALUES).then_some([num_preferred, margin])
    }

    /// Sum over the micro-batches of all ranks, or of this one, in micro-batch order; and how much
    /// longer the busiest rank was busy than this one, which was so for `busy`.
    pub fn gather(
        &mut self,
        overlap: &mut Overlap,
        busy: Duration,
    ) -> Result<(f64, Duration), CommError> {
        if self.is_alone {
            self.sums = sums_of(&self.own_values, self.num_values);
            return Ok((self.sums[0], Duration::ZERO));
        }
        let own = &mut self.gathered[self.start..self.start + self.lens[self.rank]];
        let (own_busy, values) = own.split_first_mut().expect("every rank reports its busy time");
        *own_busy = busy.as_secs_f64();
        values.copy_from_slice(&self.own_values[..values.len()]);
        overlap.call(|comm| comm.all_gather_parts(&mut self.gathered, &self.lens))?;
        let mut longest = 0.0_f64;
        for (place, &value) in self.places.iter().zip(&self.gathered) {
            match place {
                Some(place) => self.by_microbatch[*place] = value,
                None => longest = longest.max(value),
            }
        }
        self.sums = sums_of(&self.by_microbatch, self.num_values);
        Ok((self.sums[0], Duration::from_secs_f64(longest).saturating_sub(busy)))
    }
}

/// Sum of each of the values of micro-batches, in their order.
fn sums_of(values: &[f64], num_values: usize) -> [f64; PAIR_VALUES] {
    let mut sums = [0.0; PAIR_VALUES];
    for of_microbatch in values.chunks_exact(num_values) {
        for (sum, value) in sums.iter_mut().zip(of_microbatch) {
            *sum += value;
        }
    }
    sums
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
                    let has_pairs = num_workers % 2 == 1;
                    let num_values = values_per_microbatch(has_pairs);
                    let mut losses =
                        MicrobatchLosses::new(&shares, leaves, &loss_ranks, at, num_values);
                    // The second pass must not see values of the first.
                    let sums = [f64::NAN, 1.0].map(|factor| {
                        for index in 0..losses.num_own() {
                            let number = losses.own[index];
                            let pairs = [number as f64, -loss(number)];
                            let sum = factor * loss(number);
                            losses.set_own(index, MicrobatchLoss { sum, pairs });
                        }
                        let busy = Duration::from_millis(10 * worker as u64);
                        let (sum, wait) = losses.gather(&mut overlap, busy).unwrap();
                        let longest = Duration::from_millis(10 * (num_workers as u64 - 1));
                        assert_eq!(wait + busy, longest, "the last rank is the busiest");
                        let pairs = [276.0, -expected].map(f64::to_bits);
                        let found = losses.pairs().map(|found| found.map(f64::to_bits));
                        assert_eq!(found, has_pairs.then_some(pairs));
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
