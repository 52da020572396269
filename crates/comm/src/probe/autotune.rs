//! Tries out the algorithms whose prices are close, so that the choice between them is measured.
//!
//! It is a race. All of them take turns; what a turn takes is what the slowest rank needs. After
//! every round all ranks tell each other what it took, and who is behind by more than so few turns
//! can be wrong by, is out: the time that is left goes to those between whom it is hard to choose.
//! Everything that is decided is decided by figures that all ranks have, so that nobody has to say
//! when it is enough.
//!
//! Sizes at which there is no time for two algorithms are left out, and are judged by the largest
//! that was tried.

use std::time::Duration;

use lockstep_config::units::Bytes;
use lockstep_schedule::collective::select::Candidate;
use lockstep_schedule::{Op, TuningTable, Trial};

use super::Prober;
use super::measurements::SMALL_BYTES;
use crate::comm::Comm;
use crate::element::Reduction;
use crate::error::{CommError, Interruption};

/// What is tried: the sizes in bytes.
const SIZES: [usize; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// The seconds after which the race at one size ends.
const TIME_EACH: f64 = 25e-3;

/// The seconds that the first round at one size may take.
const LONGEST_ROUND: f64 = 60e-3;

/// Nobody is out before so many rounds: the first call of its kind finds nothing prepared, and the
/// second may be disturbed.
const FAIR_ROUNDS: usize = 3;

/// Rounds at most.
const MAX_ROUNDS: usize = 24;

/// A call of so many seconds does not care what the one before it left behind.
const LONG_CALL: f64 = 0.3e-3;

/// A sleep that would be shorter takes longer than that.
const SHORT_NAP: Duration = Duration::from_micros(50);

/// One of those that are tried.
struct Contender {
    candidate: Candidate,
    /// The seconds of a call in each of its turns.
    turns: Vec<f64>,
    is_out: bool,
}

impl Comm {
    /// How far the prices of all-reduce are from the truth. All members call it together. What was
    /// found at one size corrects the prices by which the next is tried.
    pub(super) fn autotune(&self) -> Result<TuningTable, CommError> {
        let mut starter = Starter::new(self);
        let mut tuning = TuningTable::NONE;
        for bytes in SIZES {
            let contenders = self.lock().schedules.contenders(Op::AllReduce, bytes);
            let size = Bytes(bytes as u64);
            let mut trials = tuning.trials().to_vec();
            for contender in self.race(&mut starter, bytes, affordable(contenders))? {
                let (op, algorithm) = (Op::AllReduce, contender.candidate.algorithm);
                let price = contender.candidate.seconds.0 / tuning.factor(op, algorithm, size);
                let factor = contender.typical() / price.max(1e-9);
                trials.push(Trial { op, algorithm, bytes: size, factor });
            }
            tuning = TuningTable::new(trials);
            self.lock().schedules.correct(&tuning);
        }
        Ok(tuning)
    }

    /// Lets them run until one is left or the time is over; nothing where there is nothing to
    /// choose.
    fn race(
        &self,
        starter: &mut Starter<'_>,
        bytes: usize,
        contenders: Vec<Candidate>,
    ) -> Result<Vec<Contender>, CommError> {
        let contender = |candidate| Contender { candidate, turns: Vec::new(), is_out: false };
        let mut racing: Vec<Contender> = contenders.into_iter().map(contender).collect();
        let mut data = vec![0.0_f32; bytes / size_of::<f32>()];
        let mut spent = 0.0;
        for num_rounds in 1..=MAX_ROUNDS {
            let mut running: Vec<&mut Contender> = racing.iter_mut().filter(|r| !r.is_out).collect();
            let is_over = num_rounds > FAIR_ROUNDS && spent > TIME_EACH;
            if running.len() < 2 || is_over {
                break;
            }
            let mut own = Vec::with_capacity(running.len());
            for contender in &running {
                own.push(self.turn(starter, &contender.candidate, &mut data)?);
            }
            for (contender, seconds) in running.iter_mut().zip(self.slowest(&own)?) {
                contender.turns.push(seconds);
                spent += seconds * f64::from(calls(&contender.candidate).iter().sum::<u32>());
            }
            let best = running.iter().map(|each| each.typical()).fold(f64::INFINITY, f64::min);
            let tolerance = (1.0 + 1.0 / num_rounds as f64).max(1.1);
            for contender in running.into_iter().filter(|_| num_rounds >= FAIR_ROUNDS) {
                contender.is_out = contender.typical() > tolerance * best;
            }
        }
        racing.retain(|contender| !contender.turns.is_empty());
        Ok(racing)
    }

    /// The seconds of a call.
    fn turn(
        &self,
        starter: &mut Starter<'_>,
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
            starter.wait_for_all().map_err(|why| self.probe_failed(starter.prober.number, why))?;
        }
        let start = clock.now();
        for _ in 0..counted {
            comm.all_reduce(data, Reduction::Sum)?;
        }
        Ok(clock.since(start).as_secs_f64() / f64::from(counted))
    }

    /// The largest of what the ranks have found, for each figure.
    fn slowest(&self, own: &[f64]) -> Result<Vec<f64>, CommError> {
        let mut of_all = vec![0.0; own.len() * self.group_size()];
        self.all_gather(own, &mut of_all)?;
        let of_one = |index| of_all.iter().skip(index).step_by(own.len());
        Ok((0..own.len()).map(|index| of_one(index).copied().fold(0.0, f64::max)).collect())
    }
}

/// Lets ranks begin together.
struct Starter<'a> {
    prober: Prober<'a>,
    others: Vec<usize>,
    /// How long a message is under way that takes longest.
    latency: Duration,
}

impl<'a> Starter<'a> {
    fn new(comm: &'a Comm) -> Self {
        let mut prober = Prober::new(&comm.core.endpoint, &comm.core.membership, comm.channel, comm.timeout);
        // Those before it belong to the measurement of links.
        prober.number = 1 << 49;
        let others = prober.others();
        let longest = comm.lock().schedules.costs().links.longest_latency();
        Self { prober, others, latency: Duration::from_secs_f64(longest.0) }
    }

    /// Returns at the same time on all ranks. Whoever comes last hears at once that all are there,
    /// and they hear of it only a latency later: so nobody goes on before that.
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
    /// The time of a good turn: whatever disturbs one makes it longer.
    fn typical(&self) -> f64 {
        let mut turns = self.turns.clone();
        turns.sort_by(f64::total_cmp);
        turns[turns.len() / 4]
    }
}

/// The calls of a turn: those before the clock starts, and those that count. Short ones follow each
/// other, because waiting for a common start would wake ranks that do not sleep in training; a long
/// one has its own start.
fn calls(candidate: &Candidate) -> [u32; 2] {
    if candidate.seconds.0 < LONG_CALL { [1, 4] } else { [0, 1] }
}

/// As many of them, the cheapest first, as there is time for in one round; none where that leaves
/// nothing to choose.
fn affordable(mut contenders: Vec<Candidate>) -> Vec<Candidate> {
    let turn = |each: &Candidate| each.seconds.0 * f64::from(calls(each).iter().sum::<u32>());
    while contenders.iter().map(turn).sum::<f64>() > LONGEST_ROUND {
        contenders.pop();
    }
    if contenders.len() < 2 { Vec::new() } else { contenders }
}
