//! Play of a step: start and end of every task of all ranks, for given durations.
//!
//! Tasks of one queue run in program order and queues run side by side; a task starts when the
//! tasks that it waits for are done. A collective starts when all ranks of its group have reached
//! it and ends on all of them together, unless its messages are simulated ([`play_with`]). A
//! message is received once it was sent.
//!
//! Ranks with equal programs need not all be played: a rank that is not played is never waited
//! for, so one rank can stand for many.

use super::{BufferId, Message, MessageKind, Program, Queue, TaskId, TaskOp, Use};
use lockstep_config::units::Seconds;
use std::collections::{BTreeMap, BTreeSet};

/// Threads that run calls and messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMode {
    /// Links and control are queues of their own.
    Background,
    /// The compute queue runs calls and messages too, in program order: overlap is off, or no core
    /// is free for it.
    Blocking,
}

/// Start and end of a task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Start: of a collective, when its last rank has reached it; of a receive, not before its
    /// message is sent.
    pub start: Seconds,
    /// End.
    pub end: Seconds,
}

/// A rank at a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrival {
    /// Index of its program.
    pub program: usize,
    /// Time at which the rank reaches the collective.
    pub at: Seconds,
    /// Duration of the rank's task.
    pub length: Seconds,
}

/// Tasks of one rank in time.
#[derive(Debug, Clone, PartialEq)]
pub struct RankPlay {
    /// Tasks, by their ids.
    pub tasks: Vec<Span>,
    /// Time of the tasks on the compute queue.
    pub compute: Seconds,
    /// Time of calls and messages, hidden or not, without waiting for other ranks.
    pub communication: Seconds,
    /// Exposed communication: time in which compute tasks wait for calls and messages, and so for
    /// other ranks, and time of calls after the last compute task.
    pub exposed: Seconds,
}

/// A step in time.
#[derive(Debug, Clone, PartialEq)]
pub struct Play {
    /// Ranks, in the order of the programs.
    pub ranks: Vec<RankPlay>,
    /// Interval at which equal steps can follow each other: as long as a queue or a buffer is used
    /// by one step. What the next step does not wait for overlaps with it.
    pub period: Seconds,
}

impl Queue {
    /// Whether its tasks are calls and messages.
    pub const fn is_communication(self) -> bool {
        matches!(self, Self::Link(_) | Self::Control)
    }
}

impl Span {
    /// Task that did not run yet.
    const NONE: Self = Self { start: Seconds(f64::NAN), end: Seconds(f64::NAN) };

    /// Duration.
    pub fn seconds(&self) -> Seconds {
        self.end - self.start
    }

    const fn is_none(&self) -> bool {
        self.end.0.is_nan()
    }
}

impl Play {
    /// Time from the first start to the last end.
    pub fn seconds(&self) -> Seconds {
        let spans = self.ranks.iter().flat_map(|rank| &rank.tasks);
        spans.fold(Seconds(0.0), |end, span| end.max(span.end))
    }
}

/// Plays programs, where `seconds` gives the duration of a task by the index of its program; `None`
/// if a rank waits for ever.
pub fn play(
    programs: &[Program],
    mode: CallMode,
    seconds: impl Fn(usize, TaskId) -> Seconds,
) -> Option<Play> {
    let together = |arrivals: &[Arrival]| {
        let starts = arrivals.iter().map(|arrival| arrival.at);
        let lengths = arrivals.iter().map(|arrival| arrival.length);
        let start = starts.fold(Seconds(0.0), Seconds::max);
        vec![start + lengths.fold(Seconds(0.0), Seconds::max); arrivals.len()]
    };
    play_with(programs, mode, seconds, together)
}

/// Plays programs as [`play`] does, where `collective` gives the end of a collective on each rank
/// by the arrivals of all of them.
pub fn play_with(
    programs: &[Program],
    mode: CallMode,
    seconds: impl Fn(usize, TaskId) -> Seconds,
    collective: impl Fn(&[Arrival]) -> Vec<Seconds>,
) -> Option<Play> {
    let mut player = Player::new(programs, mode);
    loop {
        let mut has_moved = false;
        for at in 0..programs.len() {
            for queue in 0..player.ranks[at].queues.len() {
                while player.advance(at, queue, &seconds, &collective) {
                    has_moved = true;
                }
            }
        }
        if !has_moved {
            break;
        }
    }
    player.finish()
}

struct Player<'a> {
    programs: &'a [Program],
    mode: CallMode,
    played: BTreeSet<usize>,
    ranks: Vec<Progress>,
    meetings: Vec<Meeting>,
    /// Messages that were sent, by sender, receiver and meaning.
    sent: BTreeMap<(usize, usize, MessageKind), Span>,
}

/// Progress of a rank.
struct Progress {
    spans: Vec<Span>,
    queues: Vec<QueueProgress>,
    /// By call of the program: its meeting.
    meetings: Vec<usize>,
}

struct QueueProgress {
    queue: Queue,
    /// Index of the next task, of this queue or of another one.
    next: usize,
    free: Seconds,
    /// Whether the rank has reached the collective of its next task.
    has_arrived: bool,
}

/// A collective of the played ranks of a group.
struct Meeting {
    num_missing: usize,
    arrivals: Vec<Arrival>,
    /// By index of the program, once all ranks have reached it.
    spans: BTreeMap<usize, Span>,
}

impl Meeting {
    /// Adds a rank; with the last one the collective runs.
    fn add(&mut self, arrival: Arrival, collective: &impl Fn(&[Arrival]) -> Vec<Seconds>) {
        self.arrivals.push(arrival);
        self.num_missing -= 1;
        if self.num_missing > 0 {
            return;
        }
        self.arrivals.sort_unstable_by_key(|arrival| arrival.program);
        let last = self.arrivals.iter().map(|it| it.at).fold(Seconds(0.0), Seconds::max);
        let spans = self.arrivals.iter().zip(collective(&self.arrivals)).map(|(arrival, end)| {
            // A rank whose part ends early does not wait for the last one.
            let start = if end < last { arrival.at } else { last };
            (arrival.program, Span { start, end })
        });
        self.spans = spans.collect();
    }
}

impl<'a> Player<'a> {
    fn new(programs: &'a [Program], mode: CallMode) -> Self {
        let played: BTreeSet<usize> = programs.iter().map(|program| program.rank).collect();
        let mut meetings: Vec<Meeting> = Vec::new();
        // By ranks of a group and number of a call within it.
        let mut ids: BTreeMap<(&[usize], usize), usize> = BTreeMap::new();
        let progress = |program: &'a Program| {
            let mut queues: Vec<Queue> =
                program.tasks.iter().map(|task| effective(task.queue, mode)).collect();
            queues.sort_unstable();
            queues.dedup();
            let queue =
                |queue| QueueProgress { queue, next: 0, free: Seconds(0.0), has_arrived: false };
            let mut num_calls: BTreeMap<&[usize], usize> = BTreeMap::new();
            let mut own = vec![0; program.calls.len()];
            for task in &program.tasks {
                let (Some(call), Some((_, group))) = (task.call, program.call(task)) else {
                    continue;
                };
                let number = num_calls.entry(&group.ranks).or_insert(0);
                own[call as usize] = *ids.entry((&group.ranks, *number)).or_insert_with(|| {
                    let num_missing = group.ranks.iter().filter(|r| played.contains(r)).count();
                    let (arrivals, spans) = (Vec::new(), BTreeMap::new());
                    meetings.push(Meeting { num_missing, arrivals, spans });
                    meetings.len() - 1
                });
                *number += 1;
            }
            Progress {
                spans: vec![Span::NONE; program.tasks.len()],
                queues: queues.into_iter().map(queue).collect(),
                meetings: own,
            }
        };
        let ranks = programs.iter().map(progress).collect();
        Self { programs, mode, played, ranks, meetings, sent: BTreeMap::new() }
    }

    /// Runs the next task of a queue, if everything that it waits for is known. Returns whether it
    /// did.
    fn advance(
        &mut self,
        at: usize,
        queue: usize,
        seconds: &impl Fn(usize, TaskId) -> Seconds,
        collective: &impl Fn(&[Arrival]) -> Vec<Seconds>,
    ) -> bool {
        let (program, mode) = (&self.programs[at], self.mode);
        let Progress { spans, queues, .. } = &mut self.ranks[at];
        let state = &mut queues[queue];
        let mut rest = program.tasks[state.next..].iter();
        let Some(skipped) = rest.position(|task| effective(task.queue, mode) == state.queue) else {
            state.next = program.tasks.len();
            return false;
        };
        state.next += skipped;
        let id = TaskId(state.next as u32);
        let mut ready = state.free;
        for before in program.after(id) {
            let span = spans[before.0 as usize];
            if span.is_none() {
                return false;
            }
            ready = ready.max(span.end);
        }
        let arrival = Arrival { program: at, at: ready, length: seconds(at, id) };
        let Some(span) = self.span(queue, id, arrival, collective) else { return false };
        let Progress { spans, queues, .. } = &mut self.ranks[at];
        spans[id.0 as usize] = span;
        let state = &mut queues[queue];
        state.next += 1;
        (state.free, state.has_arrived) = (span.end, false);
        true
    }

    /// Start and end of a task that is ready, if the other ranks that it needs are too.
    fn span(
        &mut self,
        queue: usize,
        id: TaskId,
        arrival: Arrival,
        collective: &impl Fn(&[Arrival]) -> Vec<Seconds>,
    ) -> Option<Span> {
        let Arrival { program: at, at: ready, length } = arrival;
        let program = &self.programs[at];
        let task = &program.tasks[id.0 as usize];
        let plain = Span { start: ready, end: ready + length };
        if let Some(call) = task.call {
            let progress = &mut self.ranks[at];
            let meeting = &mut self.meetings[progress.meetings[call as usize]];
            if !std::mem::replace(&mut progress.queues[queue].has_arrived, true) {
                meeting.add(arrival, collective);
            }
            return meeting.spans.get(&at).copied();
        }
        match task.op {
            TaskOp::Send(Message { kind, peer, .. }) => {
                self.sent.insert((program.rank, peer as usize, kind), plain);
                Some(plain)
            }
            TaskOp::Recv(Message { kind, peer, .. }) => {
                let peer = peer as usize;
                match self.sent.get(&(peer, program.rank, kind)) {
                    Some(sent) => {
                        let start = ready.max(sent.start);
                        Some(Span { start, end: (start + length).max(sent.end) })
                    }
                    None if self.played.contains(&peer) => None,
                    None => Some(plain),
                }
            }
            _ => Some(plain),
        }
    }

    fn finish(self) -> Option<Play> {
        let is_done = |rank: &Progress| !rank.spans.iter().any(Span::is_none);
        if !self.ranks.iter().all(is_done) {
            return None;
        }
        let mode = self.mode;
        let ranks = self.programs.iter().zip(self.ranks);
        let ranks: Vec<RankPlay> =
            ranks.map(|(program, rank)| account(program, rank.spans, mode)).collect();
        let periods = self.programs.iter().zip(&ranks);
        let periods = periods.map(|(program, rank)| period(program, &rank.tasks, mode));
        let period = periods.fold(Seconds(0.0), Seconds::max);
        Some(Play { ranks, period })
    }
}

/// Queue on which a task runs.
const fn effective(queue: Queue, mode: CallMode) -> Queue {
    match mode {
        CallMode::Blocking if queue.is_communication() => Queue::Compute,
        _ => queue,
    }
}

/// Sums of a rank's tasks by kind.
fn account(program: &Program, tasks: Vec<Span>, mode: CallMode) -> RankPlay {
    let none = Seconds(0.0);
    let (mut compute, mut communication, mut exposed) = (none, none, none);
    // Ends of the last compute task, of the last call, and of the last call that blocks compute.
    let (mut computed, mut called, mut blocked) = (none, none, none);
    for (id, task) in program.iter() {
        let span = tasks[id.0 as usize];
        if task.queue.is_communication() {
            communication += span.seconds();
            called = called.max(span.end);
            if mode == CallMode::Blocking {
                blocked = span.end;
            }
        } else if task.queue == Queue::Compute {
            let calls = program.after(id).iter().map(|before| before.0 as usize);
            let calls = calls.filter(|before| program.tasks[*before].queue.is_communication());
            let needed = calls.map(|before| tasks[before].end).fold(blocked, Seconds::max);
            exposed += (needed - computed).max(none);
            compute += span.seconds();
            computed = span.end;
        }
    }
    exposed += (called - computed).max(none);
    RankPlay { tasks, compute, communication, exposed }
}

/// Longest use of a queue or a buffer by a step.
fn period(program: &Program, tasks: &[Span], mode: CallMode) -> Seconds {
    let mut queues: BTreeMap<Queue, Span> = BTreeMap::new();
    let mut buffers = vec![BufferUse::default(); program.buffers.len()];
    for (id, task) in program.iter() {
        let span = tasks[id.0 as usize];
        queues.entry(effective(task.queue, mode)).or_insert(span).end = span.end;
        for access in program.accesses(id) {
            let BufferId(buffer) = access.buffer;
            buffers[buffer as usize].add(span, access.mode != Use::Read);
        }
    }
    let queues = queues.values().map(Span::seconds);
    queues.chain(buffers.iter().map(BufferUse::seconds)).fold(Seconds(0.0), Seconds::max)
}

/// Use of a buffer by all tasks, and by those that change it.
#[derive(Clone, Copy, Default)]
struct BufferUse {
    all: Option<Span>,
    changes: Option<Span>,
}

impl BufferUse {
    fn add(&mut self, span: Span, is_change: bool) {
        let extend = |known: &mut Option<Span>| {
            let known = known.get_or_insert(span);
            known.start = Seconds(known.start.0.min(span.start.0));
            known.end = known.end.max(span.end);
        };
        extend(&mut self.all);
        if is_change {
            extend(&mut self.changes);
        }
    }

    /// From the first use to the last change, and from the first change to the last use; steps that
    /// only read a buffer do not wait for each other.
    fn seconds(&self) -> Seconds {
        let (Some(all), Some(changes)) = (self.all, self.changes) else { return Seconds(0.0) };
        (changes.end - all.start).max(all.end - changes.start)
    }
}

#[cfg(test)]
mod tests;
