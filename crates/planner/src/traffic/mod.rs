//! The bytes that every rank will move in a step, by operation: counted from the schedules that
//! the engine will run.
//!
//! Two questions have an answer before a run: *which calls* a step makes ([`calls`]) and *which
//! schedule* each of them follows ([`choice`]). The rest is counting, and so the prediction is what
//! the engine's counters will say, to the byte. Only rows of an embedding that travel one by one
//! depend on the text; then the dense way is counted, which is the most it can be.

pub mod calls;
pub mod choice;

pub use calls::{Call, Lengths, StepCalls};
pub use choice::{Chosen, Wires};

use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_model::Blueprint;
use lockstep_parallel::ReplicaPlan;
use lockstep_schedule::{Layout, Op, Schedule, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

/// What a rank moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Calls.
    pub calls: u64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes sent.
    pub sent: Bytes,
    /// Bytes received.
    pub received: Bytes,
    /// Bytes read from other ranks' memory.
    pub read: Bytes,
    /// Bytes written to other ranks' memory.
    pub written: Bytes,
}

impl Moved {
    /// What passes between this rank and others on its own account: what it sends, and what it
    /// reads from and writes to their memory. (What it receives was sent by somebody.)
    pub fn wire_bytes(&self) -> Bytes {
        self.sent + self.read + self.written
    }

    /// What a rank moves when it runs its program of a schedule.
    pub fn of(schedule: &Schedule, layout: &Layout, element: Bytes, rank: usize) -> Self {
        let mut moved = Self { calls: 1, ..Self::default() };
        for round in &schedule.programs[rank] {
            // All that goes to one peer in one round is one message.
            let mut peers = BTreeSet::new();
            for step in round {
                let bytes = element * layout.len(step.chunks()) as u64;
                match step {
                    Step::Send { peer, .. } => {
                        peers.insert(*peer);
                        moved.sent += bytes;
                    }
                    Step::Recv { .. } | Step::RecvReduce { .. } => moved.received += bytes,
                    Step::Copy { .. } | Step::Reduce { .. } => {
                        let elsewhere = |place: &lockstep_schedule::Place| place.rank != rank;
                        let num_read = step.reads(rank).into_iter().filter(elsewhere).count();
                        let num_written = step.writes(rank).into_iter().filter(elsewhere).count();
                        moved.read += bytes * num_read as u64;
                        moved.written += bytes * num_written as u64;
                    }
                    Step::Signal | Step::Wait { .. } => {}
                }
            }
            moved.messages += peers.len() as u64;
        }
        moved
    }

    /// The same call so many times.
    pub fn times(self, num_calls: u64) -> Self {
        Self {
            calls: self.calls * num_calls,
            messages: self.messages * num_calls,
            sent: self.sent * num_calls,
            received: self.received * num_calls,
            read: self.read * num_calls,
            written: self.written * num_calls,
        }
    }
}

impl AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.messages += other.messages;
        self.sent += other.sent;
        self.received += other.received;
        self.read += other.read;
        self.written += other.written;
    }
}

/// What one rank moves in a step, by operation.
pub type ByOp = BTreeMap<Op, Moved>;

/// The calls of one of a recipe's steps, and what every rank moves in them. Where buckets are
/// measured when the run starts, the answer is exact if all lengths that they may have give it.
pub fn of_recipe(
    recipe: &Recipe,
    blueprint: &Blueprint,
    step: u64,
    wires: &Wires,
) -> (StepCalls, Vec<ByOp>) {
    let plans = calls::plans_at(recipe, blueprint, step);
    let mut all = plans.iter().map(|plan| {
        let calls = calls::of_plan(plan, blueprint);
        let moved = by_rank(&calls, wires);
        (calls, moved)
    });
    let (mut calls, moved) = all.next().expect("there is a plan");
    let bytes = |moved: &[ByOp]| -> Vec<Bytes> {
        moved.iter().map(|rank| total(rank).wire_bytes()).collect()
    };
    calls.is_exact &= all.all(|(_, other)| bytes(&other) == bytes(&moved));
    (calls, moved)
}

/// What the busiest rank moves in a step, for every length that buckets may have.
pub fn busiest_by_bucket_len(
    recipe: &Recipe,
    blueprint: &Blueprint,
    step: u64,
    wires: &Wires,
) -> Vec<(usize, Bytes)> {
    let busiest = |plan: ReplicaPlan| {
        let moved = by_rank(&calls::of_plan(&plan, blueprint), wires);
        let most = moved.iter().map(|rank| total(rank).wire_bytes()).max();
        (plan.bucket_len, most.unwrap_or_default())
    };
    calls::plans_at(recipe, blueprint, step).into_iter().map(busiest).collect()
}

/// What every rank moves in a step.
pub fn by_rank(step: &StepCalls, wires: &Wires) -> Vec<ByOp> {
    let mut ranks = vec![ByOp::new(); step.addends.num_ranks()];
    let mut chosen = Chosen::new(wires, &step.addends);
    for call in &step.list {
        let schedule = chosen.of(call);
        let layout = call.layout(schedule);
        for (rank, moved) in ranks.iter_mut().enumerate() {
            let one = Moved::of(schedule, &layout, calls::ELEMENT, rank);
            *moved.entry(call.op).or_default() += one.times(call.times);
        }
    }
    ranks
}

/// All operations of a rank together.
pub fn total(moved: &ByOp) -> Moved {
    moved.values().fold(Moved::default(), |mut total, one| {
        total += *one;
        total
    })
}
