//! Symbolic execution order of a schedule, all ranks together, under the strictest engine.
//!
//! Channels buffer nothing: a send completes when its receive is posted, and no earlier. A rank
//! posts the steps of a round together and continues when all are done. The k-th send from one rank
//! to another matches the k-th receive. A schedule that completes under these rules completes with
//! any buffering, and since all matches are fixed, the order of the walk does not matter.
//!
//! The walk itself computes nothing. An [`Observer`] receives its events: the proof tracks values
//! and clocks, the cost model seconds, the rendering rounds.

use std::collections::{BTreeMap, VecDeque};

use crate::instruction::Step;
use crate::schedule::{RoundId, Schedule, StepId};

/// Receiver of a walk's events.
pub(crate) trait Observer {
    /// Error that stops the walk.
    type Error;

    /// A rank starts a round; all its steps are posted now.
    fn begin(&mut self, round: RoundId) -> Result<(), Self::Error>;

    /// A send matched its receive.
    fn deliver(&mut self, send: StepId, recv: StepId) -> Result<(), Self::Error>;

    /// A rank observed the signal it waited for, given in round `signal`.
    fn wake(&mut self, wait: StepId, signal: RoundId) -> Result<(), Self::Error>;

    /// A rank completed all steps of a round.
    fn end(&mut self, round: RoundId) -> Result<(), Self::Error>;
}

/// Reason that a walk ended early.
#[derive(Debug)]
pub(crate) enum Interrupted<E> {
    /// Deadlock, with the first step by rank that cannot complete.
    Stuck(StepId),
    /// The observer stopped the walk.
    Observer(E),
}

impl<E> From<E> for Interrupted<E> {
    fn from(error: E) -> Self {
        Self::Observer(error)
    }
}

/// Walks from the first round of every rank to the last.
pub(crate) fn walk<O: Observer>(
    schedule: &Schedule,
    observer: &mut O,
) -> Result<(), Interrupted<O::Error>> {
    let mut walker = Walker::new(schedule);
    while let Some(rank) = walker.ready.pop_front() {
        let Some(round) = walker.next_round(rank) else { continue };
        observer.begin(round)?;
        walker.post(round, observer)?;
    }
    walker.first_stuck().map_or(Ok(()), |step| Err(Interrupted::Stuck(step)))
}

struct Walker<'a> {
    schedule: &'a Schedule,
    /// Ranks that can start a round.
    ready: VecDeque<usize>,
    /// Number of rounds that each rank has started.
    started: Vec<usize>,
    /// Pending steps of each rank's current round.
    open: Vec<Vec<usize>>,
    /// Unmatched sends and receives, by sender and receiver.
    sends: BTreeMap<(usize, usize), VecDeque<StepId>>,
    recvs: BTreeMap<(usize, usize), VecDeque<StepId>>,
    /// Rounds in which each rank has signalled.
    signals: Vec<Vec<RoundId>>,
    /// Unsatisfied waits for each rank, with their counts.
    waits: Vec<Vec<(StepId, usize)>>,
}

impl<'a> Walker<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let num_ranks = schedule.num_ranks();
        Self {
            schedule,
            ready: (0..num_ranks).collect(),
            started: vec![0; num_ranks],
            open: vec![Vec::new(); num_ranks],
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            signals: vec![Vec::new(); num_ranks],
            waits: vec![Vec::new(); num_ranks],
        }
    }

    fn next_round(&mut self, rank: usize) -> Option<RoundId> {
        let round = self.started[rank];
        (round < self.schedule.programs[rank].len()).then(|| {
            self.started[rank] += 1;
            RoundId { rank, round }
        })
    }

    fn post<O: Observer>(&mut self, round: RoundId, observer: &mut O) -> Result<(), O::Error> {
        let RoundId { rank, round: number } = round;
        let schedule = self.schedule;
        let steps = schedule.round(round);
        self.open[rank] = (0..steps.len()).collect();
        for (index, step) in steps.iter().enumerate() {
            let id = StepId { rank, round: number, step: index };
            match *step {
                Step::Send { peer, .. } => {
                    self.sends.entry((rank, peer)).or_default().push_back(id);
                    self.meet((rank, peer), observer)?;
                }
                Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => {
                    self.recvs.entry((peer, rank)).or_default().push_back(id);
                    self.meet((peer, rank), observer)?;
                }
                Step::Signal => {
                    self.signals[rank].push(round);
                    self.done(id, observer)?;
                    self.look(rank, observer)?;
                }
                Step::Wait { rank: signaller, count } => {
                    if let Some(waits) = self.waits.get_mut(signaller) {
                        waits.push((id, count));
                        self.look(signaller, observer)?;
                    }
                }
                Step::Copy { .. } | Step::Reduce { .. } => self.done(id, observer)?,
            }
        }
        if steps.is_empty() { self.finish(round, observer) } else { Ok(()) }
    }

    /// Matches the oldest send of a channel with the oldest receive, if both are posted.
    fn meet<O: Observer>(
        &mut self,
        channel: (usize, usize),
        observer: &mut O,
    ) -> Result<(), O::Error> {
        let (Some(sends), Some(recvs)) =
            (self.sends.get_mut(&channel), self.recvs.get_mut(&channel))
        else {
            return Ok(());
        };
        let (Some(&send), Some(&recv)) = (sends.front(), recvs.front()) else { return Ok(()) };
        sends.pop_front();
        recvs.pop_front();
        observer.deliver(send, recv)?;
        self.done(send, observer)?;
        self.done(recv, observer)
    }

    /// Completes the waits for signals that `signaller` has given.
    fn look<O: Observer>(&mut self, signaller: usize, observer: &mut O) -> Result<(), O::Error> {
        let num_signals = self.signals[signaller].len();
        let waits = std::mem::take(&mut self.waits[signaller]);
        let (over, waiting): (Vec<_>, Vec<_>) =
            waits.into_iter().partition(|(_, count)| (1..=num_signals).contains(count));
        self.waits[signaller] = waiting;
        for (wait, count) in over {
            observer.wake(wait, self.signals[signaller][count - 1])?;
            self.done(wait, observer)?;
        }
        Ok(())
    }

    fn done<O: Observer>(&mut self, id: StepId, observer: &mut O) -> Result<(), O::Error> {
        let open = &mut self.open[id.rank];
        open.retain(|&step| step != id.step);
        let round = RoundId { rank: id.rank, round: id.round };
        if open.is_empty() { self.finish(round, observer) } else { Ok(()) }
    }

    fn finish<O: Observer>(&mut self, round: RoundId, observer: &mut O) -> Result<(), O::Error> {
        self.ready.push_back(round.rank);
        observer.end(round)
    }

    fn first_stuck(&self) -> Option<StepId> {
        let stuck =
            self.open.iter().enumerate().find_map(|(rank, open)| Some((rank, *open.first()?)));
        stuck.map(|(rank, step)| StepId { rank, round: self.started[rank] - 1, step })
    }
}
