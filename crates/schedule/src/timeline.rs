//! When every round starts, if every step takes a known time.
//!
//! A rank starts a round when its last one is over. A message is through some time after both its
//! ends were posted; a wait is over some time after both it and its signal were posted; the work
//! that a rank does by itself in a round is done one piece after the other, first what needs no
//! message, and at the end of the round what needs one that came.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::schedule::{RoundId, Schedule, StepId};
use crate::step::Step;
use crate::walk::{Interrupted, Observer, walk};

/// How long things take, in whatever unit.
pub(crate) trait Pace {
    /// From the moment that both ends are posted to the end of the transfer.
    fn message(&self, send: StepId, recv: StepId) -> f64;
    /// From a signal to the end of the wait for it.
    fn flag(&self) -> f64;
    /// What a rank does by itself.
    fn work(&self, rank: usize, step: &Step) -> f64;
}

/// When everything happens.
pub(crate) struct Timeline {
    /// The start of every round of every rank.
    pub(crate) starts: Vec<Vec<f64>>,
    /// When every message is through and every wait is over.
    pub(crate) through: BTreeMap<StepId, f64>,
    /// When the last rank is done.
    pub(crate) end: f64,
}

/// One for every message and every signal, nothing for anything else: counts rounds of latency.
pub(crate) struct Hops;

impl Pace for Hops {
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

/// Plays a schedule at a pace; nothing if it never ends.
pub(crate) fn play(schedule: &Schedule, pace: &impl Pace) -> Option<Timeline> {
    let num_ranks = schedule.num_ranks();
    let mut player = Player {
        schedule,
        pace,
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
    pace: &'a P,
    starts: Vec<Vec<f64>>,
    through: BTreeMap<StepId, f64>,
    /// The end of what is known of each rank's current round.
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

impl<P: Pace> Observer for Player<'_, P> {
    type Error = Infallible;

    fn begin(&mut self, round: RoundId) -> Result<(), Infallible> {
        let RoundId { rank, .. } = round;
        self.starts[rank].push(self.free[rank]);
        self.free[rank] += self.work(round, false);
        Ok(())
    }

    fn deliver(&mut self, send: StepId, recv: StepId) -> Result<(), Infallible> {
        let posted = self.start(send.rank, send.round).max(self.start(recv.rank, recv.round));
        let through = posted + self.pace.message(send, recv);
        self.done(send, through);
        self.done(recv, through);
        Ok(())
    }

    fn wake(&mut self, wait: StepId, signal: RoundId) -> Result<(), Infallible> {
        let posted = self.start(wait.rank, wait.round).max(self.start(signal.rank, signal.round));
        self.done(wait, posted + self.pace.flag());
        Ok(())
    }

    fn end(&mut self, round: RoundId) -> Result<(), Infallible> {
        self.free[round.rank] += self.work(round, true);
        Ok(())
    }
}

impl<P: Pace> Player<'_, P> {
    /// What a rank does by itself in a round, with what came in it or before that.
    fn work(&self, round: RoundId, is_after: bool) -> f64 {
        let steps = self.schedule.round(round).iter();
        let now = steps.filter(|step| matches!(step, Step::RecvReduce { .. }) == is_after);
        now.map(|step| self.pace.work(round.rank, step)).sum()
    }
}
