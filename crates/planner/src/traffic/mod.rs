//! Traffic of every rank in a step, by operation, counted from the schedules that the engine will
//! run.
//!
//! The calls of a step along each axis of the mesh are known before a run ([`step_calls`]), and so
//! is the schedule of each call ([`schedule_selection`]). The prediction equals the engine's
//! counters to the byte. Only sparse exchange of embedding rows depends on the tokens
//! ([`embedding_rows`]); without them the dense exchange is counted, an approximate upper bound.
//! Where workers synchronize in rounds or compress gradients steps differ, and the mean is reported
//! ([`StepKind`]). Where timing or data decide, there is a range ([`range`]), and the traffic of a
//! step is its upper end.
//!
//! # Layout
//! - [`call`]: calls and messages of a step
//! - [`step_calls`]: the calls of a step, from its plan
//! - [`range`]: the least and the most bytes of a run's mean step; [`replay`]: those of a run that
//!   was recorded
//! - [`pairs`]: bytes from each rank to each other one
//! - [`interconnect`], [`schedule_selection`]: links between ranks, and the schedule of each call;
//!   [`fixed_algorithms`]: those that a recipe fixes

pub mod call;
pub mod embedding_rows;
mod exactness;
pub mod fixed_algorithms;
pub mod interconnect;
pub mod pairs;
pub mod range;
pub mod replay;
pub mod schedule_selection;
pub mod step_calls;

pub(crate) use exactness::may_skip_updates;

pub use call::{Call, GroupCalls, Lengths, Message, StepCalls};
pub use fixed_algorithms::{RefusedAlgorithm, check_algorithms};
pub use interconnect::Interconnect;
pub use lockstep_parallel::step_program::StepKind;
pub use pairs::BytesByPair;
pub use range::{ByteRange, wire_range};
pub use replay::{RecordedDecisions, wire_replay};
pub use schedule_selection::SelectedSchedules;
pub use step_calls::{StepInputs, programs_at};

pub(crate) use lockstep_parallel::step_program::rank_at;

use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_mesh::{Axis, Mesh};
use lockstep_model::Blueprint;
use lockstep_parallel::ReplicaPlan;
use lockstep_parallel::step_program::RankPlan;
use lockstep_parallel::strategy::StrategyPlan;
use lockstep_schedule::{Layout, Op, Schedule, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::AddAssign;

/// Traffic of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficCounts {
    /// Number of calls.
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

impl TrafficCounts {
    /// Bytes that this rank moves itself: sent, and read from or written to other ranks' memory.
    /// Received bytes count for the sender.
    pub fn wire_bytes(&self) -> Bytes {
        self.sent + self.read + self.written
    }

    /// Traffic of a rank that runs its program of a schedule.
    pub fn of(schedule: &Schedule, layout: &Layout, element: Bytes, rank: usize) -> Self {
        let mut moved = Self { calls: 1, ..Self::default() };
        for round in &schedule.programs[rank] {
            // All sends to one peer in one round are one message.
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

    /// Mean over `num` steps.
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

    /// Traffic of `num_calls` equal calls.
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

impl AddAssign for TrafficCounts {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.messages += other.messages;
        self.sent += other.sent;
        self.received += other.received;
        self.read += other.read;
        self.written += other.written;
    }
}

/// Source of traffic: an operation along an axis of the mesh, or messages between stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommOp {
    /// Axis of the group.
    pub axis: Axis,
    /// Operation; `None` for point-to-point messages.
    pub op: Option<Op>,
}

impl fmt::Display for CommOp {
    /// The data axis, which every layout has, is not named.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.axis, self.op) {
            (Axis::Data, Some(op)) => write!(f, "{op}"),
            (axis, Some(op)) => write!(f, "{axis} {op}"),
            (Axis::Data, None) => write!(f, "send"),
            (axis, None) => write!(f, "{axis} send"),
        }
    }
}

/// Traffic of one rank in a step, by source.
pub type TrafficByOp = BTreeMap<CommOp, TrafficCounts>;

/// Calls of one step of a recipe, and the traffic of every rank. Where the bucket length is tuned
/// at start-up, the result is exact if all candidates agree.
pub fn of_recipe(
    recipe: &Recipe,
    blueprint: &Blueprint,
    step: u64,
    interconnect: &Interconnect,
    known: StepInputs<'_>,
) -> (StepCalls, Vec<TrafficByOp>) {
    let kind = StepKind::at(recipe, step);
    of_kind(recipe, blueprint, step, &kind, interconnect, known)
}

/// Calls and traffic of a step of this kind.
fn of_kind(
    recipe: &Recipe,
    blueprint: &Blueprint,
    step: u64,
    kind: &StepKind,
    interconnect: &Interconnect,
    known: StepInputs<'_>,
) -> (StepCalls, Vec<TrafficByOp>) {
    let plans = step_calls::plans_at(recipe, blueprint, step);
    let mut all = plans.iter().map(|plan| {
        let calls = step_calls::of_plan(recipe, plan, blueprint, kind, known);
        let moved = by_rank(&calls, interconnect);
        (calls, moved)
    });
    let (mut calls, moved) = all.next().expect("there is a plan");
    let bytes = |moved: &[TrafficByOp]| -> Vec<Bytes> {
        moved.iter().map(|rank| total(rank).wire_bytes()).collect()
    };
    calls.is_exact &= all.all(|(_, other)| bytes(&other) == bytes(&moved));
    (calls, moved)
}

/// Calls of each class of steps with its share of the run, most frequent first, and every rank's
/// traffic in the mean step. Most runs have one class; its calls are those of the first step.
pub fn of_run(
    recipe: &Recipe,
    blueprint: &Blueprint,
    interconnect: &Interconnect,
    known: StepInputs<'_>,
) -> (Vec<(f64, StepCalls)>, Vec<TrafficByOp>) {
    let step_classes = StepKind::of_run(recipe);
    let num_steps: u64 = step_classes.values().sum();
    let mut sums = vec![TrafficByOp::new(); recipe.run.workers];
    let mut all = Vec::new();
    for (kind, count) in step_classes {
        let (calls, moved) = of_kind(recipe, blueprint, 0, &kind, interconnect, known);
        all.push((count as f64 / num_steps as f64, calls));
        for (sum, rank) in sums.iter_mut().zip(&moved) {
            for (comm_op, moved) in rank {
                *sum.entry(*comm_op).or_default() += moved.times(count);
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    for moved in sums.iter_mut().flat_map(|rank| rank.values_mut()) {
        *moved = moved.over(num_steps);
    }
    (all, sums)
}

/// Bytes sent per step by the busiest rank, for every candidate bucket length.
pub fn busiest_by_bucket_len(
    recipe: &Recipe,
    blueprint: &Blueprint,
    interconnect: &Interconnect,
) -> Vec<(usize, Bytes)> {
    busiest(recipe, blueprint, interconnect, &[StepInputs::default()])
}

/// Bytes sent per step by the busiest rank with sparse embedding rows, in the mean of the first
/// steps, for every candidate bucket length.
pub fn busiest_with_rows(
    recipe: &Recipe,
    blueprint: &Blueprint,
    interconnect: &Interconnect,
    rows_by_step: &[Vec<usize>],
) -> Vec<(usize, Bytes)> {
    let known = |rows| StepInputs { rows_by_rank: Some(rows), ..StepInputs::default() };
    let steps: Vec<StepInputs<'_>> = rows_by_step.iter().map(|rows| known(&rows[..])).collect();
    busiest(recipe, blueprint, interconnect, &steps)
}

fn busiest(
    recipe: &Recipe,
    blueprint: &Blueprint,
    interconnect: &Interconnect,
    steps: &[StepInputs<'_>],
) -> Vec<(usize, Bytes)> {
    let step_classes = StepKind::of_run(recipe);
    let num_steps: u64 = step_classes.values().sum();
    let of_plan = |plan: ReplicaPlan| {
        let mut sums = vec![0; plan.mesh.num_ranks()];
        for (kind, count) in &step_classes {
            // Steps without gradient exchange do not depend on embedding rows.
            let steps = if kind.is_reduced() { steps } else { &steps[..1] };
            let mut of_kind_bytes = vec![0; sums.len()];
            for known in steps {
                let calls = step_calls::of_plan(recipe, &plan, blueprint, kind, *known);
                for (sum, rank) in of_kind_bytes.iter_mut().zip(&by_rank(&calls, interconnect)) {
                    *sum += total(rank).wire_bytes().0;
                }
            }
            for (sum, bytes) in sums.iter_mut().zip(of_kind_bytes) {
                *sum += bytes * count / steps.len() as u64;
            }
        }
        let most = sums.into_iter().max().unwrap_or(0);
        (plan.bucket_len, Bytes(most / num_steps))
    };
    step_calls::plans_at(recipe, blueprint, 0).into_iter().map(of_plan).collect()
}

/// Traffic of every rank in a step of some kind under a strategy.
pub fn of_strategy(
    strategy: &dyn StrategyPlan,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
    kind: &StepKind,
    interconnect: &Interconnect,
) -> Vec<TrafficByOp> {
    let program = |place: RankPlan<'_>| place.training_with(strategy, kind);
    by_rank(&step_calls::of_programs(plan, blueprint, &program, true), interconnect)
}

/// Traffic of every rank in a step.
pub fn by_rank(step: &StepCalls, interconnect: &Interconnect) -> Vec<TrafficByOp> {
    let mut ranks = vec![TrafficByOp::new(); step.mesh.num_ranks()];
    for (device, tp_ranks) in step.data.iter().enumerate() {
        for (tp_rank, calls) in tp_ranks.iter().enumerate() {
            let rank = |part| rank_at(&step.mesh, device, part, tp_rank);
            add_calls(&mut ranks, calls, Axis::Data, interconnect, &rank);
        }
    }
    for (device, parts) in step.tensor.iter().enumerate() {
        for (part, calls) in parts.iter().enumerate() {
            let rank = |tp_rank| rank_at(&step.mesh, device, part, tp_rank);
            add_calls(&mut ranks, calls, Axis::Tensor, interconnect, &rank);
        }
    }
    for (members, calls) in &step.after_step {
        add_calls(&mut ranks, calls, Axis::Data, interconnect, &|member| members[member]);
    }
    for (from, messages) in step.neighbor_messages.iter().enumerate() {
        let comm_op = CommOp { axis: Axis::Data, op: None };
        for message in messages {
            send(&mut ranks, comm_op, from, message.to, *message);
        }
    }
    for (rank, moved) in step.server_messages.iter().enumerate().filter(|(_, it)| it.calls > 0) {
        *ranks[rank].entry(CommOp { axis: Axis::Data, op: None }).or_default() += *moved;
    }
    for (device, parts) in step.messages.iter().enumerate() {
        for (part, messages) in parts.iter().enumerate() {
            add_messages(&mut ranks, &step.mesh, (device, part), messages);
        }
    }
    ranks
}

/// Adds the traffic of a group's calls; `rank` maps group ranks to ranks.
fn add_calls(
    ranks: &mut [TrafficByOp],
    calls: &GroupCalls,
    axis: Axis,
    interconnect: &Interconnect,
    rank: &dyn Fn(usize) -> usize,
) {
    let group: Vec<usize> = (0..calls.contributions.num_ranks()).map(rank).collect();
    let mut selected = SelectedSchedules::new(&interconnect.among(&group), &calls.contributions);
    for call in &calls.list {
        let schedule = selected.of(call);
        let layout = call.layout(schedule);
        for (group_rank, &rank) in group.iter().enumerate() {
            let one = TrafficCounts::of(schedule, &layout, call.element, group_rank);
            let comm_op = CommOp { axis, op: Some(call.op) };
            *ranks[rank].entry(comm_op).or_default() += one.times(call.times);
        }
    }
}

/// Adds the messages of a pipeline rank, at both ends.
fn add_messages(
    ranks: &mut [TrafficByOp],
    mesh: &Mesh,
    (device, part): (usize, usize),
    messages: &[Message],
) {
    let comm_op = CommOp { axis: Axis::Pipeline, op: None };
    for tp_rank in 0..mesh.degree(Axis::Tensor) {
        for message in messages {
            let from = rank_at(mesh, device, part, tp_rank);
            let to = rank_at(mesh, message.to, part, tp_rank);
            send(ranks, comm_op, from, to, *message);
        }
    }
}

/// Adds messages from one rank to another.
fn send(ranks: &mut [TrafficByOp], comm_op: CommOp, from: usize, to: usize, message: Message) {
    let Message { len, times, .. } = message;
    let bytes = call::ELEMENT * (len as u64 * times);
    *ranks[from].entry(comm_op).or_default() +=
        TrafficCounts { calls: times, messages: times, sent: bytes, ..TrafficCounts::default() };
    ranks[to].entry(comm_op).or_default().received += bytes;
}

/// Total over all operations of a rank.
pub fn total(moved: &TrafficByOp) -> TrafficCounts {
    moved.values().fold(TrafficCounts::default(), |mut total, one| {
        total += *one;
        total
    })
}
