//! Walk through collectives: a value is the set of ranks that contributed to it.

use super::{Frame, Held, Message, Walk};
use crate::error::LabError;
use crate::experiments::all_reduce_schedule;
use lockstep_config::units::Bytes;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Buffer, Chunks, Layout, Op, Place, Schedule, Step};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Contributing ranks of a value.
type Value = BTreeSet<usize>;

/// Chunks of a message with their values.
type Payload = (Chunks, Vec<Value>);

/// Line about the cells.
const CELLS: &str = "in the cells: contributing ranks";

/// Size of an element.
const ELEMENT: Bytes = Bytes(4);

pub(super) fn all_reduce(
    algorithm: Algorithm,
    num_ranks: usize,
    bytes: Bytes,
) -> Result<Walk, LabError> {
    let per_node = if num_ranks.is_multiple_of(2) { num_ranks / 2 } else { num_ranks };
    let schedule = all_reduce_schedule(algorithm, num_ranks, per_node)?;
    Ok(walk_schedule(&schedule, bytes))
}

pub(super) fn all_to_all(num_ranks: usize, bytes: Bytes) -> Walk {
    walk_schedule(
        &build_schedule(Op::AllToAll, Algorithm::Pairwise, num_ranks),
        Bytes(bytes.0 * num_ranks as u64),
    )
}

/// A mixture of experts, one expert a rank: tokens travel to their experts and back.
pub(super) fn moe(num_ranks: usize, bytes: Bytes) -> Walk {
    let exchange = all_to_all(num_ranks, bytes);
    let title = format!("mixture of experts, {num_ranks} ranks");
    concatenate(title, &[("dispatch", &exchange), ("combine", &exchange)])
}

/// ZeRO: reduce-scatter of gradients and all-gather of updated weights; with sharded weights
/// (ZeRO-3), all-gathers for the forward and the backward pass instead.
pub(super) fn zero(name: &str, num_ranks: usize, bytes: Bytes, shards_weights: bool) -> Walk {
    let scatter =
        walk_schedule(&build_schedule(Op::ReduceScatter, Algorithm::RING, num_ranks), bytes);
    let gather = walk_schedule(&build_schedule(Op::AllGather, Algorithm::RING, num_ranks), bytes);
    let title = format!("{name}, {num_ranks} ranks");
    if shards_weights {
        let parts = [
            ("weights for forward", &gather),
            ("weights for backward", &gather),
            ("gradients", &scatter),
        ];
        return concatenate(title, &parts);
    }
    concatenate(title, &[("gradients", &scatter), ("updated weights", &gather)])
}

/// Rank 0 is the server: all ranks push, then all ranks pull.
pub(super) fn parameter_server(num_ranks: usize, bytes: Bytes) -> Walk {
    let push = build_schedule(Op::Gather { root: 0 }, Algorithm::Linear, num_ranks);
    let push = walk_schedule(&push, Bytes(bytes.0 * num_ranks as u64));
    let pull = walk_schedule(
        &build_schedule(Op::Broadcast { root: 0 }, Algorithm::Linear, num_ranks),
        bytes,
    );
    let title = format!("parameter server on rank 0, {num_ranks} ranks");
    concatenate(title, &[("push", &push), ("pull", &pull)])
}

fn build_schedule(op: Op, algorithm: Algorithm, num_ranks: usize) -> Schedule {
    build(op, algorithm, &GroupSpec::new(num_ranks)).expect("the engine builds it for any size")
}

/// Concatenates walks; bytes accumulate.
fn concatenate(title: String, parts: &[(&str, &Walk)]) -> Walk {
    let mut frames: Vec<Frame> = Vec::new();
    for (name, walk) in parts {
        let before = frames.last().map(|frame| frame.sent.clone());
        for frame in &walk.frames {
            let mut frame = frame.clone();
            frame.title = format!("{name}: {}", frame.title);
            for (sent, before) in frame.sent.iter_mut().zip(before.iter().flatten()) {
                *sent += *before;
            }
            frames.push(frame);
        }
    }
    Walk { title, row: "rank", column: "chunk", cells: CELLS, frames }
}

fn walk_schedule(schedule: &Schedule, bytes: Bytes) -> Walk {
    let (op, algorithm, n) = (schedule.op, schedule.algorithm, schedule.num_ranks());
    let title = format!("{op} by {algorithm}, {n} ranks");
    let frames = Walker::new(schedule, bytes).frames();
    Walk { title, row: "rank", column: "chunk", cells: CELLS, frames }
}

struct Walker<'a> {
    schedule: &'a Schedule,
    layout: Layout,
    values: BTreeMap<(Place, usize), Value>,
    round: Vec<usize>,
    num_open: Vec<usize>,
    /// Posted sends by sender and receiver.
    sends: BTreeMap<(usize, usize), VecDeque<Payload>>,
    /// Posted receives by sender and receiver, as round and step.
    recvs: BTreeMap<(usize, usize), VecDeque<(usize, usize)>>,
    sent: Vec<Bytes>,
}

impl<'a> Walker<'a> {
    fn new(schedule: &'a Schedule, bytes: Bytes) -> Self {
        let n = schedule.num_ranks();
        let mut values = BTreeMap::new();
        for rank in 0..n {
            for chunk in schedule.input(rank).iter() {
                values.insert((Buffer::INPUT.on(rank), chunk), Value::from([rank]));
            }
        }
        Self {
            schedule,
            layout: Layout::even(schedule, (bytes.0 / ELEMENT.0) as usize),
            values,
            round: vec![0; n],
            num_open: vec![0; n],
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            sent: vec![Bytes(0); n],
        }
    }

    fn frames(mut self) -> Vec<Frame> {
        let mut frames = vec![self.frame("initial state".to_owned(), Vec::new())];
        for rank in 0..self.schedule.num_ranks() {
            self.post(rank);
        }
        loop {
            let matched: Vec<(usize, usize)> = self
                .recvs
                .iter()
                .filter(|(channel, recvs)| {
                    !recvs.is_empty() && self.sends.get(channel).is_some_and(|s| !s.is_empty())
                })
                .map(|(channel, _)| *channel)
                .collect();
            if matched.is_empty() {
                return frames;
            }
            let mut messages = Vec::new();
            let mut ends = Vec::new();
            for (source, target) in matched {
                let posted =
                    self.sends[&(source, target)].len().min(self.recvs[&(source, target)].len());
                for _ in 0..posted {
                    let message = self.deliver(source, target);
                    messages.push(message);
                    ends.extend([source, target]);
                }
            }
            for rank in ends {
                self.num_open[rank] -= 1;
            }
            for rank in 0..self.schedule.num_ranks() {
                let is_inside = self.round[rank] < self.schedule.programs[rank].len();
                if self.num_open[rank] == 0 && is_inside {
                    self.round[rank] += 1;
                    self.post(rank);
                }
            }
            let title = format!("round {}", frames.len());
            frames.push(self.frame(title, messages));
        }
    }

    /// Runs the local steps of a rank and posts its messages until it must wait.
    fn post(&mut self, rank: usize) {
        let schedule = self.schedule;
        while let Some(steps) = schedule.programs[rank].get(self.round[rank]) {
            for (index, step) in steps.iter().enumerate() {
                match step {
                    Step::Send { peer, chunks, from } => {
                        let values = chunks.iter().map(|c| self.value(from.on(rank), c)).collect();
                        self.sends.entry((rank, *peer)).or_default().push_back((*chunks, values));
                    }
                    Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => {
                        let at = (self.round[rank], index);
                        self.recvs.entry((*peer, rank)).or_default().push_back(at);
                    }
                    Step::Copy { chunks, into, from } => {
                        for chunk in chunks.iter() {
                            let value = self.value(*from, chunk);
                            self.values.insert((*into, chunk), value);
                        }
                    }
                    Step::Reduce { chunks, into, sum } => {
                        for chunk in chunks.iter() {
                            let parts = sum.leaves().into_iter().map(|at| self.value(*at, chunk));
                            let value: Value = parts.flatten().collect();
                            for place in into {
                                self.values.insert((*place, chunk), value.clone());
                            }
                        }
                    }
                    Step::Signal | Step::Wait { .. } => {}
                }
            }
            self.num_open[rank] = steps.iter().filter(|step| step.is_message()).count();
            if self.num_open[rank] > 0 {
                return;
            }
            self.round[rank] += 1;
        }
    }

    fn value(&self, place: Place, chunk: usize) -> Value {
        self.values.get(&(place, chunk)).cloned().unwrap_or_default()
    }

    /// Delivers the oldest message from `source` to `target`.
    fn deliver(&mut self, source: usize, target: usize) -> Message {
        let channel = (source, target);
        let sends = self.sends.get_mut(&channel).expect("a send is posted");
        let (chunks, values) = sends.pop_front().expect("a send is posted");
        let recvs = self.recvs.get_mut(&channel).expect("a receive is posted");
        let (round, index) = recvs.pop_front().expect("a receive is posted");
        let (into, with) = match &self.schedule.programs[target][round][index] {
            Step::RecvReduce { into, with, .. } => (*into, Some(*with)),
            Step::Recv { into, .. } => (*into, None),
            step => panic!("{step:?} is no receive"),
        };
        for (chunk, mut value) in chunks.iter().zip(values) {
            if let Some(with) = with {
                value.extend(self.value(with.on(target), chunk));
            }
            self.values.insert((into.on(target), chunk), value);
        }
        let bytes = ELEMENT * self.layout.len(chunks) as u64;
        self.sent[source] += bytes;
        let verb = if with.is_some() { "to reduce" } else { "to store" };
        Message { source, target, content: format!("{chunks} {verb}"), bytes }
    }

    /// State of every rank: of each chunk the value with the most contributions.
    fn frame(&self, title: String, messages: Vec<Message>) -> Frame {
        let (n, is_sum) = (self.schedule.num_ranks(), self.schedule.op.is_sum());
        let mut best: Vec<Vec<Value>> = vec![vec![Value::new(); self.schedule.num_chunks]; n];
        for ((place, chunk), value) in &self.values {
            if value.len() > best[place.rank][*chunk].len() {
                best[place.rank][*chunk].clone_from(value);
            }
        }
        let held = |value: &Value| {
            let all = if is_sum { n } else { 1 };
            let share = value.len() as f64 / all as f64;
            let names: Vec<String> = value.iter().map(usize::to_string).collect();
            let text = match value.len() {
                0 => "·".to_owned(),
                count if is_sum && count == n => "sum".to_owned(),
                count if count > 4 => format!("{count} of {n}"),
                _ if is_sum => names.join("+"),
                _ => format!("of {}", names.join("+")),
            };
            Held { text, share: share.min(1.0) }
        };
        let held = best.iter().map(|rank| rank.iter().map(held).collect()).collect();
        Frame { title, messages, held, sent: self.sent.clone() }
    }
}
