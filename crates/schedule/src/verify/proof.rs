//! Symbolic execution of a schedule.
//!
//! A rank's clock advances when a round ends; knowledge gained during the round (from messages and
//! signals) counts from the next round on. A message or a signal carries the clock of its rank at
//! the *start* of the round: steps of one round are unordered.

use std::collections::BTreeMap;

use super::VerifyError;
use super::memory::{Clock, Memory, Storage};
use super::symbol::{Symbol, Symbols};
use crate::chunks::Chunks;
use crate::contributions::Contribution;
use crate::instruction::{Place, Side, Step};
use crate::op::Op;
use crate::schedule::{RoundId, Schedule, StepId};
use crate::sum_tree::SumTree;
use crate::walk::{Interrupted, Observer, walk};

/// Order of each sum, by runs of chunks of equal order.
pub(super) type Sums = Vec<(Chunks, SumTree<Contribution>)>;

/// Runs the schedule and checks every rank's results.
pub(super) fn run(schedule: &Schedule, storage: Storage) -> Result<Sums, VerifyError> {
    let mut proof = Proof::new(schedule, storage);
    walk(schedule, &mut proof).map_err(|interrupted| match interrupted {
        Interrupted::Observer(error) => error,
        Interrupted::Stuck(at) => {
            let step = &schedule.programs[at.rank][at.round][at.step];
            VerifyError::Stuck { at, step: step.to_string() }
        }
    })?;
    proof.check_endings()?;
    proof.check_results()
}

struct Proof<'a> {
    schedule: &'a Schedule,
    symbols: Symbols,
    memory: Memory<'a>,
    /// Clock of each rank.
    clocks: Vec<Clock>,
    /// Clocks that each rank has received in its current round.
    learned: Vec<Vec<Clock>>,
    /// Messages in flight, by sending step.
    messages: BTreeMap<StepId, Message>,
    /// Clock of each rank at its signals, by round.
    signals: BTreeMap<RoundId, Clock>,
}

struct Message {
    values: Vec<Symbol>,
    clock: Clock,
}

impl<'a> Proof<'a> {
    fn new(schedule: &'a Schedule, storage: Storage) -> Self {
        let num_ranks = schedule.num_ranks();
        let mut symbols = Symbols::default();
        let named = |rank, index| symbols.contribution(Contribution { rank, index });
        let memory = Memory::new(schedule, storage, named);
        Self {
            schedule,
            symbols,
            memory,
            clocks: (0..num_ranks).map(|rank| Clock::arrival(rank, num_ranks)).collect(),
            learned: vec![Vec::new(); num_ranks],
            messages: BTreeMap::new(),
            signals: BTreeMap::new(),
        }
    }

    fn step(&self, at: StepId) -> &'a Step {
        &self.schedule.programs[at.rank][at.round][at.step]
    }

    fn read(&mut self, at: StepId, place: Place, chunk: usize) -> Result<Symbol, VerifyError> {
        self.memory.read(at, &self.clocks[at.rank], place, chunk)
    }

    fn write(
        &mut self,
        at: StepId,
        place: Place,
        chunk: usize,
        value: Symbol,
    ) -> Result<(), VerifyError> {
        self.memory.write(at, &self.clocks[at.rank], place, chunk, value)
    }

    /// Sum of a tree of places.
    fn evaluate(
        &mut self,
        at: StepId,
        sum: &SumTree<Place>,
        chunk: usize,
    ) -> Result<Symbol, VerifyError> {
        match sum {
            SumTree::Leaf(place) => self.read(at, *place, chunk),
            SumTree::Sum(left, right) => {
                let left = self.evaluate(at, left, chunk)?;
                let right = self.evaluate(at, right, chunk)?;
                Ok(self.symbols.sum(left, right))
            }
        }
    }

    /// No rank's memory is in use when it is done, and a barrier has heard from every rank.
    fn check_endings(&self) -> Result<(), VerifyError> {
        for (rank, clock) in self.clocks.iter().enumerate() {
            if let Some((buffer, chunk, other)) = self.memory.in_use(rank, clock) {
                return Err(VerifyError::LeftTooEarly { rank, buffer, chunk, other });
            }
            let missing = (0..self.clocks.len()).find(|&other| !clock.knows(other));
            if let (Op::Barrier, Some(missing)) = (self.schedule.op, missing) {
                return Err(VerifyError::NotABarrier { rank, missing });
            }
        }
        Ok(())
    }

    /// Every output matches the operation, and sums have the same order everywhere.
    fn check_results(&mut self) -> Result<Sums, VerifyError> {
        let mut orders: BTreeMap<usize, Symbol> = BTreeMap::new();
        for rank in 0..self.schedule.num_ranks() {
            for chunk in self.schedule.output(rank).iter() {
                let found = self.memory.result(rank, chunk);
                let first = orders.get(&chunk).copied();
                if first.is_some() && first == found {
                    continue;
                }
                let right = found.filter(|&symbol| self.is_right(symbol, chunk));
                let Some(symbol) = right else { return Err(self.wrong_result(rank, chunk)) };
                if let Some(first) = first {
                    let [first, second] = [first, symbol].map(|s| Box::new(self.symbols.tree(s)));
                    return Err(VerifyError::OrdersDiffer { chunk, first, rank, second });
                }
                orders.insert(chunk, symbol);
            }
        }
        Ok(if self.schedule.op.is_sum() { self.runs(&orders) } else { Vec::new() })
    }

    /// Whether a value is right for a chunk: all contributions once, or the owner's data.
    fn is_right(&mut self, symbol: Symbol, chunk: usize) -> bool {
        if !self.schedule.op.is_sum() {
            return self
                .owner(chunk)
                .is_some_and(|owner| self.symbols.contribution(owner) == symbol);
        }
        let expected = self.schedule.contributions.all();
        self.symbols.num_leaves(symbol) == expected.len() && {
            let tree = self.symbols.tree(symbol);
            let mut leaves: Vec<Contribution> = tree.leaves().into_iter().copied().collect();
            leaves.sort_unstable();
            leaves == expected
        }
    }

    /// Contributor of a chunk that only one rank has.
    fn owner(&self, chunk: usize) -> Option<Contribution> {
        let mut ranks = 0..self.schedule.num_ranks();
        let rank = ranks.find(|&rank| self.schedule.input(rank).position(chunk).is_some())?;
        Some(Contribution { rank, index: 0 })
    }

    fn wrong_result(&self, rank: usize, chunk: usize) -> VerifyError {
        let num_contributions = self.schedule.contributions.all().len();
        let found = match self.memory.result(rank, chunk) {
            None => "nothing".to_owned(),
            Some(symbol) if self.symbols.num_leaves(symbol) > 2 * num_contributions => {
                format!("a sum of {} contributions", self.symbols.num_leaves(symbol))
            }
            Some(symbol) => self.symbols.tree(symbol).to_string(),
        };
        let expected = match self.owner(chunk) {
            Some(owner) if !self.schedule.op.is_sum() => owner.to_string(),
            _ => format!("a sum of all {num_contributions} contributions"),
        };
        VerifyError::WrongResult { rank, chunk, found, expected }
    }

    fn runs(&self, orders: &BTreeMap<usize, Symbol>) -> Sums {
        let mut runs: Vec<(Chunks, Symbol)> = Vec::new();
        for (&chunk, &symbol) in orders {
            match runs.last_mut() {
                Some((run, same)) if *same == symbol && run.end == chunk => run.end += 1,
                _ => runs.push((Chunks::one(chunk), symbol)),
            }
        }
        runs.into_iter().map(|(run, symbol)| (run, self.symbols.tree(symbol))).collect()
    }
}

impl Observer for Proof<'_> {
    type Error = VerifyError;

    fn begin(&mut self, round: RoundId) -> Result<(), VerifyError> {
        let RoundId { rank, round: number } = round;
        for (index, step) in self.schedule.round(round).iter().enumerate() {
            let at = StepId { rank, round: number, step: index };
            match step {
                Step::Send { chunks, from, .. } => {
                    let read = |chunk| self.read(at, from.on(rank), chunk);
                    let values = chunks.iter().map(read).collect::<Result<_, _>>()?;
                    let clock = self.clocks[rank].clone();
                    self.messages.insert(at, Message { values, clock });
                }
                Step::Copy { chunks, into, from } => {
                    for chunk in chunks.iter() {
                        // A copy of memory to itself is a no-op.
                        if !self.memory.is_same(*into, *from, chunk) {
                            let value = self.read(at, *from, chunk)?;
                            self.write(at, *into, chunk, value)?;
                        }
                    }
                }
                Step::Reduce { chunks, into, sum } => {
                    for chunk in chunks.iter() {
                        let value = self.evaluate(at, sum, chunk)?;
                        for place in into {
                            self.write(at, *place, chunk, value)?;
                        }
                    }
                }
                Step::Signal => {
                    self.signals.insert(round, self.clocks[rank].clone());
                }
                Step::Recv { .. } | Step::RecvReduce { .. } | Step::Wait { .. } => {}
            }
        }
        Ok(())
    }

    fn deliver(&mut self, send: StepId, recv: StepId) -> Result<(), VerifyError> {
        let (sent, expected) = (self.step(send).chunks(), self.step(recv).chunks());
        if sent != expected {
            return Err(VerifyError::Mismatch { send, sent, recv, expected });
        }
        let message = self.messages.remove(&send).expect("a send is posted before it is delivered");
        self.learned[recv.rank].push(message.clock);
        for (chunk, received) in expected.iter().zip(message.values) {
            let (into, value) = match *self.step(recv) {
                Step::Recv { into, .. } => (into, received),
                Step::RecvReduce { into, with, received: side, .. } => {
                    let own = self.read(recv, with.on(recv.rank), chunk)?;
                    let (left, right) = match side {
                        Side::Left => (received, own),
                        Side::Right => (own, received),
                    };
                    (into, self.symbols.sum(left, right))
                }
                _ => unreachable!("only a receive matches a send"),
            };
            self.write(recv, into.on(recv.rank), chunk, value)?;
        }
        Ok(())
    }

    fn wake(&mut self, wait: StepId, signal: RoundId) -> Result<(), VerifyError> {
        let clock = self.signals.get(&signal).expect("a signal is given before it is observed");
        self.learned[wait.rank].push(clock.clone());
        Ok(())
    }

    fn end(&mut self, round: RoundId) -> Result<(), VerifyError> {
        let clock = &mut self.clocks[round.rank];
        clock.tick(round.rank);
        for learned in std::mem::take(&mut self.learned[round.rank]) {
            clock.learn(&learned);
        }
        Ok(())
    }
}
