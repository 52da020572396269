//! The losses of a step's lanes, added in the order of lanes wherever they were computed.

use crate::leaves::Leaves;
use crate::overlap::Overlap;
use crate::shares::Shares;
use lockstep_comm::CommError;

/// Room for the loss of every lane.
#[derive(Debug)]
pub struct LaneLosses {
    /// How many lanes each worker runs.
    lens: Vec<usize>,
    /// The lane of each entry of `gathered`.
    lanes: Vec<usize>,
    /// Losses by worker, in the order in which the workers run their lanes.
    gathered: Vec<f64>,
    /// Losses by lane.
    by_lane: Vec<f64>,
    /// Where this worker's begin in `gathered`.
    start: usize,
    worker: usize,
}

impl LaneLosses {
    /// For lanes divided as `shares` say, on worker number `worker`.
    pub fn new(shares: &Shares, leaves: Leaves, worker: usize) -> Self {
        let by_worker: Vec<_> =
            (0..shares.num_workers()).map(|worker| shares.lanes_of(worker, leaves)).collect();
        let lens: Vec<_> = by_worker.iter().map(Vec::len).collect();
        let lanes = by_worker.concat();
        let zeros = vec![0.0; lanes.len()];
        let start = lens[..worker].iter().sum();
        Self { lens, gathered: zeros.clone(), by_lane: zeros, lanes, start, worker }
    }

    /// How many lanes this worker runs.
    pub fn num_own(&self) -> usize {
        self.lens[self.worker]
    }

    /// The number of the lane that this worker runs as its `index`-th.
    pub fn own_lane(&self, index: usize) -> usize {
        self.lanes[self.start + index]
    }

    /// Notes the loss of this worker's `index`-th lane.
    pub fn set_own(&mut self, index: usize, loss: f64) {
        self.gathered[self.start + index] = loss;
    }

    /// The sum over all lanes of all workers, in the order of lanes.
    pub fn gather(&mut self, overlap: &mut Overlap) -> Result<f64, CommError> {
        overlap.call(|comm| comm.all_gather_parts(&mut self.gathered, &self.lens))?;
        for (&lane, &loss) in self.lanes.iter().zip(&self.gathered) {
            self.by_lane[lane] = loss;
        }
        Ok(self.by_lane.iter().fold(0.0, |sum, loss| sum + loss))
    }
}
