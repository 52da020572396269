//! Tries out the algorithms whose prices are close, so that the choice between them is measured.
//!
//! All of them take turns, a few calls in a row each, on a vector that was written just now, as in
//! training. What counts is the time from one call to the next, which is the same for all ranks
//! even where they begin at different times and wait for each other: the lower quartile of the
//! turns, and the mean over the ranks. How often follows from the prices, which all ranks know
//! alike, so that nobody has to say when it is enough: sizes at which there is no time for two
//! algorithms are left out, and are judged by the largest that was tried.

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
const TIME_EACH: f64 = 20e-3;

/// How far beyond that the fewest calls may go.
const PATIENCE: f64 = 5.0;

/// Calls in a turn that count; the one before them finds what another algorithm has left behind.
const NUM_IN_A_TURN: u32 = 2;

/// Turns of each algorithm at most.
const MAX_TURNS: f64 = 24.0;

/// What is tried of one size.
struct Act {
    bytes: usize,
    contenders: Vec<Candidate>,
    num_turns: usize,
}

impl Comm {
    /// How far the prices of all-reduce are from the truth. All members call it together.
    pub(super) fn rehearse(&self) -> Result<Rehearsal, CommError> {
        let act = |bytes| Act::new(bytes, self.lock().planner.contenders(Op::AllReduce, bytes));
        let acts: Vec<Act> = SIZES.into_iter().filter_map(act).collect();
        let mut own = Vec::new();
        for act in &acts {
            self.play(act, &mut own)?;
        }
        // All ranks know the same prices, and have the same turns behind them.
        let num_ranks = self.num_members();
        let mut of_all = vec![0.0; own.len() * num_ranks];
        self.all_gather(&own, &mut of_all)?;
        let mean = |index: usize| {
            of_all.iter().skip(index).step_by(own.len()).sum::<f64>() / num_ranks as f64
        };
        let mut seconds = (0..own.len()).map(mean);
        let mut trials = Vec::new();
        for act in &acts {
            for contender in &act.contenders {
                let took = usual(seconds.by_ref().take(act.num_turns).collect());
                let factor = took / contender.seconds.0.max(1e-9);
                let (op, bytes) = (Op::AllReduce, Bytes(act.bytes as u64));
                trials.push(Trial { op, algorithm: contender.algorithm, bytes, factor });
            }
        }
        Ok(Rehearsal::new(trials))
    }

    /// Times the turns, in seconds for a call, one algorithm behind the other.
    fn play(&self, act: &Act, seconds: &mut Vec<f64>) -> Result<(), CommError> {
        let clock = self.core.node.world().clock();
        let mut data = vec![0.0_f32; act.bytes / size_of::<f32>()];
        let mut times = vec![Vec::new(); act.contenders.len()];
        for _ in 0..act.num_turns {
            for (contender, times) in act.contenders.iter().zip(&mut times) {
                let comm = self.using(contender.algorithm);
                comm.all_reduce(&mut data, Reduction::Sum)?;
                let (start, mut writing) = (clock.now(), Duration::ZERO);
                for _ in 0..NUM_IN_A_TURN {
                    let start = clock.now();
                    data.fill(0.0);
                    writing += clock.since(start);
                    comm.all_reduce(&mut data, Reduction::Sum)?;
                }
                let calling = clock.since(start).saturating_sub(writing);
                times.push((calling / NUM_IN_A_TURN).as_secs_f64());
            }
        }
        seconds.extend(times.into_iter().flatten());
        Ok(())
    }
}

impl Act {
    /// As many of them, the cheapest first, as there is time for; nothing where that leaves nothing
    /// to choose.
    fn new(bytes: usize, mut contenders: Vec<Candidate>) -> Option<Self> {
        let turn = |some: &[Candidate]| {
            let once: f64 = some.iter().map(|each| each.seconds.0).sum();
            once * f64::from(NUM_IN_A_TURN + 1)
        };
        while turn(&contenders) > PATIENCE * TIME_EACH {
            contenders.pop();
        }
        let num_turns = (TIME_EACH / turn(&contenders)).clamp(1.0, MAX_TURNS) as usize;
        (contenders.len() > 1).then_some(Self { bytes, contenders, num_turns })
    }
}

/// The time of a good turn: whatever disturbs one makes it longer.
fn usual(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}
