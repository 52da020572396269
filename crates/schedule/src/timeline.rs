//! Start times of all rounds, for known step times.
//!
//! A rank starts a round when its previous one is over. A message completes some time after both
//! ends are posted; a wait completes some time after both it and its signal are posted. Local steps
//! of a round run in sequence: first those that need no message, then those that need a message of
//! the round.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::instruction::Step;
use crate::schedule::{RoundId, Schedule, StepId};
use crate::walk::{Interrupted, Observer, walk};

/// Times of steps, in any unit.
pub(crate) trait StepTimes {
    /// Time from the moment that both ends are posted to the end of the transfer.
    fn message(&self, send: StepId, recv: StepId) -> f64;
    /// Time from a signal to the end of the wait for it.
    fn flag(&self) -> f64;
    /// Time of a local step.
    fn work(&self, rank: usize, step: &Step) -> f64;
}

/// Times of all rounds and messages.
pub(crate) struct Timeline {
    /// Start of every round of every rank.
    pub(crate) starts: Vec<Vec<f64>>,
    /// Completion of every message and wait.
    pub(crate) through: BTreeMap<StepId, f64>,
    /// End of the last rank.
    pub(crate) end: f64,
}

/// One per message and signal, zero for local steps: counts communication rounds.
pub(crate) struct Hops;

impl StepTimes for Hops {
    fn message(&self, _: StepId, _: StepId) -> f64 {
        1.0
    }

    fn flag(&self) -> f64 {
        1.0
    }

    fn work(&self, _: usize, _: &Step) -> f64 {
        0.0
    }
}

/// Simulates a schedule; `None` if it deadlocks.
pub(crate) fn simulate(schedule: &Schedule, times: &impl StepTimes) -> Option<Timeline> {
    let num_ranks = schedule.num_ranks();
    let mut player = Player {
        schedule,
        times,
        starts: vec![Vec::new(); num_ranks],
        through: BTreeMap::new(),
        free: vec![0.0; num_ranks],
    };
    match walk(schedule, &mut player) {
        Ok(()) => {
            let end = player.free.iter().copied().fold(0.0, f64::max);
            Some(Timeline { starts: player.starts, through: player.through, end })
        }
        Err(Interrupted::Stuck(_)) => None,
    }
}

struct Player<'a, P> {
    schedule: &'a Schedule,
    times: &'a P,
    starts: Vec<Vec<f64>>,
    through: BTreeMap<StepId, f64>,
    /// Latest known end in each rank's current round.
    free: Vec<f64>,
}

impl<P> Player<'_, P> {
    fn start(&self, rank: usize, round: usize) -> f64 {
        self.starts[rank][round]
    }

    fn done(&mut self, step: StepId, time: f64) {
        self.through.insert(step, time);
        self.free[step.rank] = self.free[step.rank].max(time);
    }
}

impl<P: StepTimes> Observer for Player<'_, P> {
    type Error = Infallible;

    fn begin(&mut self, round: RoundId) -> Result<(), Infallible> {
        let RoundId { rank, .. } = round;
        self.starts[rank].push(self.free[rank]);
        self.free[rank] += self.work(round, false);
        Ok(())
    }

    fn deliver(&mut self, send: StepId, recv: StepId) -> Result<(), Infallible> {
        let posted = self.start(send.rank, send.round).max(self.start(recv.rank, recv.round));
        let through = posted + self.times.message(send, recv);
        self.done(send, through);
        self.done(recv, through);
        Ok(())
    }

    fn wake(&mut self, wait: StepId, signal: RoundId) -> Result<(), Infallible> {
        let posted = self.start(wait.rank, wait.round).max(self.start(signal.rank, signal.round));
        self.done(wait, posted + self.times.flag());
        Ok(())
    }

    fn end(&mut self, round: RoundId) -> Result<(), Infallible> {
        self.free[round.rank] += self.work(round, true);
        Ok(())
    }
}

impl<P: StepTimes> Player<'_, P> {
    /// Local work of a rank in a round, before or after the messages of that round.
    fn work(&self, round: RoundId, is_after: bool) -> f64 {
        let steps = self.schedule.round(round).iter();
        let now = steps.filter(|step| matches!(step, Step::RecvReduce { .. }) == is_after);
        now.map(|step| self.times.work(round.rank, step)).sum()
    }
}
