//! Tries out the algorithms whose prices are close, so that the choice between them is measured.
//!
//! Each is run a few times in a row, in turn with the others; what counts is its better turn, and
//! the mean over the ranks. How often follows from the prices, which all ranks know alike, so that
//! nobody has to say when it is enough: sizes at which even two calls of each would take too long
//! are left out, and are judged by the largest that was tried.

use std::time::Duration;

use lockstep_config::units::Bytes;
use lockstep_schedule::collective::select::Candidate;
use lockstep_schedule::{Op, Rehearsal, Trial};

use crate::comm::Comm;
use crate::element::Reduction;
use crate::error::CommError;

/// What is tried: the sizes in bytes.
const SIZES: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// The time for one size, by the prices of its calls.
const TIME_EACH: f64 = 15e-3;

/// How far beyond that the fewest calls may go.
const PATIENCE: f64 = 3.0;

/// Turns of each algorithm.
const NUM_TURNS: usize = 2;

/// Calls in a turn at most, besides the one that brings the ranks together.
const MAX_CALLS: f64 = 16.0;

impl Comm {
    /// How far the prices of all-reduce are from the truth. All members call it together.
    pub(super) fn rehearse(&self) -> Result<Rehearsal, CommError> {
        let (mut tried, mut seconds) = (Vec::new(), Vec::new());
        for bytes in SIZES {
            let contenders = self.lock().planner.contenders(Op::AllReduce, bytes);
            if let Some(num_calls) = num_calls(&contenders) {
                seconds.extend(self.time_in_turn(&contenders, bytes, num_calls)?);
                tried.extend(contenders.into_iter().map(|contender| (bytes, contender)));
            }
        }
        // The same number of ranks has the same prices, and so the same trials.
        let num_ranks = self.num_members();
        let mut of_all = vec![0.0; seconds.len() * num_ranks];
        self.all_gather(&seconds, &mut of_all)?;
        let trials = tried.into_iter().enumerate().map(|(index, (bytes, contender))| {
            let of_ranks = of_all.iter().skip(index).step_by(seconds.len());
            let took = of_ranks.sum::<f64>() / num_ranks as f64;
            let factor = took / contender.seconds.0.max(1e-9);
            let (op, algorithm) = (Op::AllReduce, contender.algorithm);
            Trial { op, algorithm, bytes: Bytes(bytes as u64), factor }
        });
        Ok(Rehearsal::new(trials.collect()))
    }

    /// What a call takes by each of some algorithms, in seconds.
    fn time_in_turn(
        &self,
        contenders: &[Candidate],
        bytes: usize,
        num_calls: u32,
    ) -> Result<Vec<f64>, CommError> {
        let clock = self.core.node.world().clock();
        let mut data = vec![0.0_f32; bytes / size_of::<f32>()];
        let mut best = vec![Duration::MAX; contenders.len()];
        for _ in 0..NUM_TURNS {
            for (contender, best) in contenders.iter().zip(&mut best) {
                let comm = self.using(contender.algorithm);
                comm.all_reduce(&mut data, Reduction::Sum)?;
                let start = clock.now();
                for _ in 0..num_calls {
                    comm.all_reduce(&mut data, Reduction::Sum)?;
                }
                *best = (*best).min(clock.since(start) / num_calls);
            }
        }
        Ok(best.into_iter().map(|time| time.as_secs_f64()).collect())
    }
}

/// How many calls make a turn; none where there is nothing to choose, or no time for it.
fn num_calls(contenders: &[Candidate]) -> Option<u32> {
    let once: f64 = contenders.iter().map(|each| each.seconds.0).sum::<f64>() * NUM_TURNS as f64;
    let is_worth_it = contenders.len() > 1 && 2.0 * once <= PATIENCE * TIME_EACH;
    is_worth_it.then(|| (TIME_EACH / once - 1.0).clamp(1.0, MAX_CALLS) as u32)
}
