//! The bytes that every rank will move in a step, by operation: counted from the schedules that
//! the engine will run.
//!
//! Two questions have an answer before a run: *which calls* a step makes, along each axis of the
//! mesh ([`calls`]), and *which schedule* each of them follows ([`choice`]). The rest is counting,
//! and so the prediction is what the engine's counters will say, to the byte. Only rows of an
//! embedding that travel one by one depend on the text: whoever has seen it says how many there are
//! ([`rows`]); otherwise the dense way is counted, which is about the most it can be. Where workers
//! agree in rounds or compress their gradients steps differ, and the mean is told ([`kinds`]).

pub mod calls;
pub mod choice;
pub mod kinds;
mod program;
pub mod rows;
mod windows;

pub use calls::{Call, GroupCalls, Known, Lengths, Message, StepCalls};
pub use choice::{Chosen, Wires};
pub use kinds::Meeting;

use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_mesh::{Axis, Mesh, Rank};
use lockstep_model::Blueprint;
use lockstep_parallel::ReplicaPlan;
use lockstep_schedule::{Layout, Op, Schedule, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
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

    /// The mean of so many.
    fn over(self, num: u64) -> Self {
        let of = |bytes: Bytes| Bytes(bytes.0 / num);
        Self {
            calls: self.calls / num,
            messages: self.messages / num,
            sent: of(self.sent),
            received: of(self.received),
            read: of(self.read),
            written: of(self.written),
        }
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

/// What moves bytes: an operation along an axis of the mesh, or messages between stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// Among whom.
    pub axis: Axis,
    /// What; none is messages from one to another.
    pub op: Option<Op>,
}

impl fmt::Display for Cause {
    /// The axis is named unless it is the one that every layout has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.axis, self.op) {
            (Axis::Data, Some(op)) => write!(f, "{op}"),
            (axis, Some(op)) => write!(f, "{axis} {op}"),
            (Axis::Data, None) => write!(f, "send"),
            (axis, None) => write!(f, "{axis} send"),
        }
    }
}

/// What one rank moves in a step, by what moves it.
pub type ByCause = BTreeMap<Cause, Moved>;

/// The calls of one of a recipe's steps, and what every rank moves in them. Where buckets are
/// measured when the run starts, the answer is exact if all lengths that they may have give it.
pub fn of_recipe(
    recipe: &Recipe,
    blueprint: &Blueprint,
    step: u64,
    wires: &Wires,
    known: Known<'_>,
) -> (StepCalls, Vec<ByCause>) {
    let meeting = kinds::meeting_in(recipe, step);
    of_meeting(recipe, blueprint, step, &meeting, wires, known)
}

/// The same of a step in which workers do this together.
fn of_meeting(
    recipe: &Recipe,
    blueprint: &Blueprint,
    step: u64,
    meeting: &Meeting,
    wires: &Wires,
    known: Known<'_>,
) -> (StepCalls, Vec<ByCause>) {
    let plans = calls::plans_at(recipe, blueprint, step);
    let mut all = plans.iter().map(|plan| {
        let calls = calls_of(recipe, plan, blueprint, meeting, known);
        let moved = by_rank(&calls, wires);
        (calls, moved)
    });
    let (mut calls, moved) = all.next().expect("there is a plan");
    let bytes = |moved: &[ByCause]| -> Vec<Bytes> {
        moved.iter().map(|rank| total(rank).wire_bytes()).collect()
    };
    calls.is_exact &= all.all(|(_, other)| bytes(&other) == bytes(&moved));
    (calls, moved)
}

/// The calls of a step in which workers do this together.
fn calls_of(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    meeting: &Meeting,
    known: Known<'_>,
) -> StepCalls {
    let mut calls = calls::of_plan(plan, blueprint, known);
    kinds::apply(meeting, recipe, plan, blueprint, &mut calls);
    calls
}

/// The calls of every kind of step with their share of the run, the most frequent first, and what
/// every rank moves in the mean step. Most runs have one kind; its calls are those of the first
/// step.
pub fn of_run(
    recipe: &Recipe,
    blueprint: &Blueprint,
    wires: &Wires,
    known: Known<'_>,
) -> (Vec<(f64, StepCalls)>, Vec<ByCause>) {
    let kinds = kinds::kinds(recipe);
    let num_steps: u64 = kinds.values().sum();
    let mut sums = vec![ByCause::new(); recipe.run.workers];
    let mut all = Vec::new();
    for (meeting, count) in kinds {
        let (calls, moved) = of_meeting(recipe, blueprint, 0, &meeting, wires, known);
        all.push((count as f64 / num_steps as f64, calls));
        for (sum, rank) in sums.iter_mut().zip(&moved) {
            for (cause, moved) in rank {
                *sum.entry(*cause).or_default() += moved.times(count);
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    for moved in sums.iter_mut().flat_map(|rank| rank.values_mut()) {
        *moved = moved.over(num_steps);
    }
    (all, sums)
}

/// What the busiest rank moves in a step, for every length that buckets may have.
pub fn busiest_by_bucket_len(
    recipe: &Recipe,
    blueprint: &Blueprint,
    wires: &Wires,
) -> Vec<(usize, Bytes)> {
    busiest(recipe, blueprint, wires, &[Known::default()])
}

/// The same in the mean of the first steps, of which it is known how many rows of the embedding
/// each rank touches.
pub fn busiest_with_rows(
    recipe: &Recipe,
    blueprint: &Blueprint,
    wires: &Wires,
    rows_by_step: &[Vec<usize>],
) -> Vec<(usize, Bytes)> {
    let known = |rows| Known { rows_by_rank: Some(rows), ..Known::default() };
    let steps: Vec<Known<'_>> = rows_by_step.iter().map(|rows| known(&rows[..])).collect();
    busiest(recipe, blueprint, wires, &steps)
}

fn busiest(
    recipe: &Recipe,
    blueprint: &Blueprint,
    wires: &Wires,
    steps: &[Known<'_>],
) -> Vec<(usize, Bytes)> {
    let kinds = kinds::kinds(recipe);
    let num_steps: u64 = kinds.values().sum();
    let of_plan = |plan: ReplicaPlan| {
        let mut sums = vec![0; plan.mesh.num_ranks()];
        for (meeting, count) in &kinds {
            // Where no gradients travel nothing is known of them either.
            let steps = if meeting.gradients { steps } else { &steps[..1] };
            let mut of_kind = vec![0; sums.len()];
            for known in steps {
                let calls = calls_of(recipe, &plan, blueprint, meeting, *known);
                for (sum, rank) in of_kind.iter_mut().zip(&by_rank(&calls, wires)) {
                    *sum += total(rank).wire_bytes().0;
                }
            }
            for (sum, bytes) in sums.iter_mut().zip(of_kind) {
                *sum += bytes * count / steps.len() as u64;
            }
        }
        let most = sums.into_iter().max().unwrap_or(0);
        (plan.bucket_len, Bytes(most / num_steps))
    };
    calls::plans_at(recipe, blueprint, 0).into_iter().map(of_plan).collect()
}

/// What every rank moves in a step.
pub fn by_rank(step: &StepCalls, wires: &Wires) -> Vec<ByCause> {
    let mut ranks = vec![ByCause::new(); step.mesh.num_ranks()];
    for (device, holders) in step.data.iter().enumerate() {
        for (holder, calls) in holders.iter().enumerate() {
            let rank = |part| rank_at(&step.mesh, device, part, holder);
            add_calls(&mut ranks, calls, Axis::Data, wires, &rank);
        }
    }
    for (device, parts) in step.tensor.iter().enumerate() {
        for (part, calls) in parts.iter().enumerate() {
            let rank = |holder| rank_at(&step.mesh, device, part, holder);
            add_calls(&mut ranks, calls, Axis::Tensor, wires, &rank);
        }
    }
    for (first, calls) in &step.behind {
        add_calls(&mut ranks, calls, Axis::Data, wires, &|member| first + member);
    }
    for (from, messages) in step.told.iter().enumerate() {
        let cause = Cause { axis: Axis::Data, op: None };
        for message in messages {
            send(&mut ranks, cause, from, message.to, *message);
        }
    }
    for (device, parts) in step.messages.iter().enumerate() {
        for (part, messages) in parts.iter().enumerate() {
            add_messages(&mut ranks, &step.mesh, (device, part), messages);
        }
    }
    ranks
}

/// Adds what the members of a group move; `rank` is that of a member.
fn add_calls(
    ranks: &mut [ByCause],
    calls: &GroupCalls,
    axis: Axis,
    wires: &Wires,
    rank: &dyn Fn(usize) -> usize,
) {
    let members: Vec<usize> = (0..calls.addends.num_ranks()).map(rank).collect();
    let mut chosen = Chosen::new(&wires.among(&members), &calls.addends);
    for call in &calls.list {
        let schedule = chosen.of(call);
        let layout = call.layout(schedule);
        for (member, &rank) in members.iter().enumerate() {
            let one = Moved::of(schedule, &layout, call.element, member);
            let cause = Cause { axis, op: Some(call.op) };
            *ranks[rank].entry(cause).or_default() += one.times(call.times);
        }
    }
}

/// Adds what a device with a part of the batch, and whoever it sends to, move.
fn add_messages(
    ranks: &mut [ByCause],
    mesh: &Mesh,
    (device, part): (usize, usize),
    messages: &[Message],
) {
    let cause = Cause { axis: Axis::Pipeline, op: None };
    for holder in 0..mesh.degree(Axis::Tensor) {
        for message in messages {
            let from = rank_at(mesh, device, part, holder);
            let to = rank_at(mesh, message.to, part, holder);
            send(ranks, cause, from, to, *message);
        }
    }
}

/// Adds messages from one rank to another.
fn send(ranks: &mut [ByCause], cause: Cause, from: usize, to: usize, message: Message) {
    let Message { len, times, .. } = message;
    let bytes = calls::ELEMENT * (len as u64 * times);
    *ranks[from].entry(cause).or_default() +=
        Moved { calls: times, messages: times, sent: bytes, ..Moved::default() };
    ranks[to].entry(cause).or_default().received += bytes;
}

/// Who stands there.
pub(crate) fn rank_at(mesh: &Mesh, device: usize, part: usize, holder: usize) -> usize {
    let is_there = |rank: &usize| {
        let at = |axis| mesh.index(axis, Rank(*rank));
        (at(Axis::Pipeline), at(Axis::Data), at(Axis::Tensor)) == (device, part, holder)
    };
    (0..mesh.num_ranks()).find(is_there).expect("the mesh has this place")
}

/// All operations of a rank together.
pub fn total(moved: &ByCause) -> Moved {
    moved.values().fold(Moved::default(), |mut total, one| {
        total += *one;
        total
    })
}
