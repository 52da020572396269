//! Autotuning: trial runs of algorithms with similar predicted times.
//!
//! The candidates race. In every round each of them runs once; the slowest rank determines its
//! time. The ranks exchange their times after every round, and a candidate that is behind by more
//! than the uncertainty of so few runs is eliminated, so the remaining time goes to close
//! competitors. All decisions use figures that every rank has, so no further coordination is
//! needed.
//!
//! Sizes too large for two trial runs are skipped; the corrections of the largest tried size apply.

use std::time::Duration;

use lockstep_config::units::Bytes;
use lockstep_schedule::collective::select::Candidate;
use lockstep_schedule::{Op, TRIAL_BYTES, Trial, TuningTable};

use super::Prober;
use super::measurements::SMALL_BYTES;
use crate::comm::Comm;
use crate::element::Reduction;
use crate::error::{CommError, Interruption};

/// Seconds after which the race at one size ends.
const TIME_EACH: f64 = 25e-3;

/// Longest first round at one size, in seconds.
const LONGEST_ROUND: f64 = 60e-3;

/// Rounds before the first elimination: the first run of a candidate is cold, and the second may be
/// disturbed.
const WARMUP_ROUNDS: usize = 3;

/// Most rounds.
const MAX_ROUNDS: usize = 24;

/// Seconds from which on a call does not depend on the state that the last one left.
const LONG_CALL: f64 = 0.3e-3;

/// Shortest sleep that the system keeps.
const SHORT_NAP: Duration = Duration::from_micros(50);

/// A candidate in the race.
struct Contender {
    candidate: Candidate,
    /// Seconds of a call in each of its runs.
    runs: Vec<f64>,
    is_out: bool,
}

impl Comm {
    /// Corrections of the predicted times of all-reduce. All ranks call it together. The
    /// corrections of one size apply to the predictions of the next.
    pub(super) fn autotune(&self) -> Result<TuningTable, CommError> {
        let mut start_line = CommonStart::new(self);
        let mut tuning = TuningTable::NONE;
        for bytes in TRIAL_BYTES {
            let contenders = self.lock().schedules.contenders(Op::AllReduce, bytes);
            let size = Bytes(bytes as u64);
            let mut trials = tuning.trials().to_vec();
            for contender in self.race(&mut start_line, bytes, affordable(contenders))? {
                let (op, algorithm) = (Op::AllReduce, contender.candidate.algorithm);
                let price = contender.candidate.seconds.0 / tuning.factor(op, algorithm, size);
                let factor = contender.typical() / price.max(1e-9);
                trials.push(Trial { op, algorithm, bytes: size, factor });
            }
            tuning = TuningTable::new(trials);
            self.lock().schedules.correct(&tuning);
        }
        // The calls of the run may be shorter than the trials.
        self.lock().engine.release_private();
        Ok(tuning)
    }

    /// Races candidates until one is left or the time is over; empty without a choice.
    fn race(
        &self,
        start_line: &mut CommonStart<'_>,
        bytes: usize,
        contenders: Vec<Candidate>,
    ) -> Result<Vec<Contender>, CommError> {
        let contender = |candidate| Contender { candidate, runs: Vec::new(), is_out: false };
        let mut racing: Vec<Contender> = contenders.into_iter().map(contender).collect();
        let mut data = vec![0.0_f32; bytes / size_of::<f32>()];
        let mut spent = 0.0;
        for num_rounds in 1..=MAX_ROUNDS {
            let mut running: Vec<&mut Contender> =
                racing.iter_mut().filter(|r| !r.is_out).collect();
            let is_over = num_rounds > WARMUP_ROUNDS && spent > TIME_EACH;
            if running.len() < 2 || is_over {
                break;
            }
            let mut own = Vec::with_capacity(running.len());
            for contender in &running {
                own.push(self.run_once(start_line, &contender.candidate, &mut data)?);
            }
            for (contender, seconds) in running.iter_mut().zip(self.slowest(&own)?) {
                contender.runs.push(seconds);
                spent += seconds * f64::from(calls(&contender.candidate).iter().sum::<u32>());
            }
            let best = running.iter().map(|each| each.typical()).fold(f64::INFINITY, f64::min);
            let tolerance = (1.0 + 1.0 / num_rounds as f64).max(1.1);
            for contender in running.into_iter().filter(|_| num_rounds >= WARMUP_ROUNDS) {
                contender.is_out = contender.typical() > tolerance * best;
            }
        }
        racing.retain(|contender| !contender.runs.is_empty());
        Ok(racing)
    }

    /// Seconds of a call in one run.
    fn run_once(
        &self,
        start_line: &mut CommonStart<'_>,
        candidate: &Candidate,
        data: &mut [f32],
    ) -> Result<f64, CommError> {
        let clock = self.core.endpoint.world().clock();
        let comm = self.using(candidate.algorithm);
        let [before, counted] = calls(candidate);
        for _ in 0..before {
            comm.all_reduce(data, Reduction::Sum)?;
        }
        if before == 0 {
            data.fill(0.0);
            start_line
                .wait_for_all()
                .map_err(|why| self.probe_failed(start_line.prober.number, why))?;
        }
        let start = clock.now();
        for _ in 0..counted {
            comm.all_reduce(data, Reduction::Sum)?;
        }
        Ok(clock.since(start).as_secs_f64() / f64::from(counted))
    }

    /// Largest value over all ranks, for each figure.
    fn slowest(&self, own: &[f64]) -> Result<Vec<f64>, CommError> {
        let mut of_all = vec![0.0; own.len() * self.group_size()];
        self.all_gather(own, &mut of_all)?;
        let of_one = |index| of_all.iter().skip(index).step_by(own.len());
        Ok((0..own.len()).map(|index| of_one(index).copied().fold(0.0, f64::max)).collect())
    }
}

/// Starts all ranks at once.
struct CommonStart<'a> {
    prober: Prober<'a>,
    others: Vec<usize>,
    /// Longest latency.
    latency: Duration,
}

impl<'a> CommonStart<'a> {
    fn new(comm: &'a Comm) -> Self {
        let mut prober =
            Prober::new(&comm.core.endpoint, &comm.core.membership, comm.channel, comm.timeout);
        // Lower numbers belong to the measurement of links.
        prober.number = 1 << 49;
        let others = prober.others();
        let longest = comm.lock().schedules.costs().links.longest_latency();
        Self { prober, others, latency: Duration::from_secs_f64(longest.0) }
    }

    /// Returns at about the same time on all ranks: the last rank to arrive receives all messages
    /// at once, and its peers receive its message a latency later, so each waits for that long.
    fn wait_for_all(&mut self) -> Result<(), Interruption> {
        let took = self.prober.exchange(&self.others, SMALL_BYTES, 0)?;
        let early = self.latency.saturating_sub(took);
        if early > SHORT_NAP {
            self.prober.endpoint.world().clock().sleep(early);
        }
        Ok(())
    }
}

impl Contender {
    /// Time of an undisturbed run: the lower quartile, because disturbances only add time.
    fn typical(&self) -> f64 {
        let mut runs = self.runs.clone();
        runs.sort_by(f64::total_cmp);
        runs[runs.len() / 4]
    }
}

/// Warm-up calls and timed calls of a run. Short calls run back to back, because a common start
/// would wake ranks that do not sleep in training; a long call gets a common start.
fn calls(candidate: &Candidate) -> [u32; 2] {
    if candidate.seconds.0 < LONG_CALL { [1, 4] } else { [0, 1] }
}

/// The fastest predicted candidates that fit into one round; empty without a choice.
fn affordable(mut contenders: Vec<Candidate>) -> Vec<Candidate> {
    let run_once = |each: &Candidate| each.seconds.0 * f64::from(calls(each).iter().sum::<u32>());
    while contenders.iter().map(run_once).sum::<f64>() > LONGEST_ROUND {
        contenders.pop();
    }
    if contenders.len() < 2 { Vec::new() } else { contenders }
}
