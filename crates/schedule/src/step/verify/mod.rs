//! Proof of a step: the programs of all ranks together.
//!
//! [`verify`] proves that
//! - every buffer is filled before it is read, emptied before it is filled again, and left as the
//!   next step expects it;
//! - tasks that touch one buffer are ordered by queues and dependencies, so that none is written
//!   while it is in flight;
//! - ranks of a group make the same calls in the same order, and every message that is sent is
//!   received, with the same length;
//! - no rank waits for ever, with the send buffers of a pipeline rank;
//! - every gradient is reduced once: each block's micro-batches appear once over the ranks of the
//!   group, in ascending order on each rank;
//! - a guarded task follows its agreement or its norm, on every rank; updates follow an agreement.
//!
//! The report has the peak of live memory.

mod ranks;

#[cfg(test)]
mod tests;

use super::{
    Access, BufferId, Contents, Message, MessageKind, Program, Queue, TaskId, TaskOp, Use,
};
use lockstep_mesh::Axis;
use ranks::{check_calls, check_reductions, run_all};

/// Reason that programs are not a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidStep {
    /// A program names a rank, task, buffer, group or call that does not exist.
    #[error("rank {rank}: task {task} names something that does not exist")]
    Malformed {
        /// Rank.
        rank: usize,
        /// Task.
        task: u32,
    },
    /// A task finds a buffer in the wrong state.
    #[error("rank {rank}: task {task}, {op}, finds {buffer} {state}")]
    BufferState {
        /// Rank.
        rank: usize,
        /// Task.
        task: u32,
        /// Its action.
        op: TaskOp,
        /// Buffer.
        buffer: Contents,
        /// State in which it is.
        state: &'static str,
    },
    /// A buffer is not as the next step expects it.
    #[error("rank {rank}: the step leaves {buffer} {state}")]
    LeftOver {
        /// Rank.
        rank: usize,
        /// Buffer.
        buffer: Contents,
        /// State in which it is.
        state: &'static str,
    },
    /// Two tasks touch one buffer in no order.
    #[error("rank {rank}: tasks {first} and {second} use {buffer} in no order")]
    Unordered {
        /// Rank.
        rank: usize,
        /// Earlier task.
        first: u32,
        /// Later task.
        second: u32,
        /// Buffer.
        buffer: Contents,
    },
    /// Ranks of a group make different calls.
    #[error("ranks {one} and {other} make different calls along the {axis} axis, at call {index}")]
    DifferentCalls {
        /// Rank.
        one: usize,
        /// Another rank of the group.
        other: usize,
        /// Axis of the group.
        axis: Axis,
        /// Number of the call in the group.
        index: usize,
    },
    /// A rank can never go on.
    #[error("rank {rank} waits for ever in task {task}, {op}")]
    Deadlock {
        /// Rank.
        rank: usize,
        /// Task.
        task: u32,
        /// Its action.
        op: TaskOp,
    },
    /// A message is sent and never received.
    #[error("rank {from} sends {kind:?} to rank {to}, which never receives it")]
    NeverReceived {
        /// Sender.
        from: usize,
        /// Receiver.
        to: usize,
        /// Meaning of the message.
        kind: MessageKind,
    },
    /// A gradient is not reduced once over all micro-batches.
    #[error(
        "block {block}: its micro-batches are not reduced exactly once, in ascending order on \
         each rank (rank {rank})"
    )]
    Reduction {
        /// Block of the model.
        block: u32,
        /// First rank of the group.
        rank: usize,
    },
    /// A guarded task does not follow its agreement or norm.
    #[error("rank {rank}: task {task} is guarded by a task that is not an earlier agreement")]
    Guard {
        /// Rank.
        rank: usize,
        /// Task.
        task: u32,
    },
}

/// Measures of a proven step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepReport {
    /// By rank: largest number of elements in full buffers at a time.
    pub peak_len: Vec<u64>,
}

/// Proves the programs of all ranks of a run.
pub fn verify(programs: &[Program]) -> Result<StepReport, InvalidStep> {
    for (rank, program) in programs.iter().enumerate() {
        check_names(rank, program, programs.len())?;
        check_order(rank, program)?;
        check_guards(rank, program)?;
    }
    let states = programs.iter().enumerate().map(|(rank, program)| check_states(rank, program));
    let peak_len = states.collect::<Result<_, _>>()?;
    check_calls(programs)?;
    run_all(programs)?;
    check_reductions(programs)?;
    Ok(StepReport { peak_len })
}

fn check_names(rank: usize, program: &Program, num_ranks: usize) -> Result<(), InvalidStep> {
    for (id, task) in program.iter() {
        let is_buffer = |access: &Access| (access.buffer.0 as usize) < program.buffers.len();
        let is_call = |call: u32| {
            let call = program.calls.get(call as usize);
            let group = call.and_then(|call| program.groups.get(call.group as usize));
            group.is_some_and(|group| group.ranks.contains(&rank))
        };
        let is_peer = match task.op {
            TaskOp::Send(Message { peer, .. }) | TaskOp::Recv(Message { peer, .. }) => {
                (peer as usize) < num_ranks && peer as usize != rank
            }
            _ => true,
        };
        let is_earlier = program.after(id).iter().all(|before| before < &id);
        let is_whole = program.accesses(id).iter().all(is_buffer)
            && task.call.is_none_or(is_call)
            && is_peer
            && is_earlier
            && program.rank == rank;
        if !is_whole {
            return Err(InvalidStep::Malformed { rank, task: id.0 });
        }
    }
    Ok(())
}

/// Checks that tasks on one buffer are ordered by queues and dependencies.
fn check_order(rank: usize, program: &Program) -> Result<(), InvalidStep> {
    let mut queues: Vec<Queue> = program.tasks.iter().map(|task| task.queue).collect();
    queues.sort_unstable();
    queues.dedup();
    let queue_of = |task: TaskId| {
        let queue = program.tasks[task.0 as usize].queue;
        queues.binary_search(&queue).expect("it is one of them")
    };
    // By task: how many tasks of the whole program, by queue, are known to be done before it.
    let mut done: Vec<Vec<u32>> = Vec::with_capacity(program.tasks.len());
    let mut last_of_queue: Vec<Option<TaskId>> = vec![None; queues.len()];
    let mut uses: Vec<(Option<TaskId>, Vec<TaskId>)> =
        vec![(None, Vec::new()); program.buffers.len()];
    for (id, _) in program.iter() {
        let queue = queue_of(id);
        let mut known = vec![0; queues.len()];
        let before = last_of_queue[queue].iter().chain(program.after(id));
        for &before in before {
            for (mine, other) in known.iter_mut().zip(&done[before.0 as usize]) {
                *mine = (*mine).max(*other);
            }
            let place = &mut known[queue_of(before)];
            *place = (*place).max(before.0 + 1);
        }
        let is_ordered = |earlier: TaskId| known[queue_of(earlier)] > earlier.0;
        for Access { buffer, mode } in program.accesses(id) {
            let (writer, readers) = &mut uses[buffer.0 as usize];
            let others = if *mode == Use::Read { &[][..] } else { &readers[..] };
            let conflict =
                writer.iter().chain(others).find(|other| **other != id && !is_ordered(**other));
            if let Some(first) = conflict {
                let buffer = program.buffers[buffer.0 as usize].contents;
                let (first, second) = (first.0, id.0);
                return Err(InvalidStep::Unordered { rank, first, second, buffer });
            }
            if *mode == Use::Read {
                readers.push(id);
            } else {
                readers.clear();
                *writer = Some(id);
            }
        }
        last_of_queue[queue] = Some(id);
        done.push(known);
    }
    Ok(())
}

fn check_guards(rank: usize, program: &Program) -> Result<(), InvalidStep> {
    for (id, task) in program.iter() {
        // An update is always subject to an agreement.
        let needs_agreement = task.op.is_of_update();
        let is_guard = |guard: TaskId| {
            let op = program.tasks[guard.0 as usize].op;
            guard < id && (op == TaskOp::Agree || op == TaskOp::GradNorm && !needs_agreement)
        };
        if !task.guard.map_or(!needs_agreement, is_guard) {
            return Err(InvalidStep::Guard { rank, task: id.0 });
        }
    }
    Ok(())
}

/// Checks that every buffer is full when it is read, and as expected at the end. Returns the peak
/// of full elements.
fn check_states(rank: usize, program: &Program) -> Result<u64, InvalidStep> {
    let mut is_full: Vec<bool> = program.buffers.iter().map(|b| b.is_persistent).collect();
    let lens =
        program.buffers.iter().map(|buffer| if buffer.is_persistent { buffer.len } else { 0 });
    let mut live: u64 = lens.sum();
    let mut peak = live;
    for (id, task) in program.iter() {
        for Access { buffer: BufferId(buffer), mode } in program.accesses(id) {
            let (buffer, full) =
                (program.buffers[*buffer as usize], &mut is_full[*buffer as usize]);
            let wrong = match mode {
                Use::Read | Use::Update | Use::Take => (!*full).then_some("empty"),
                Use::Write => full.then_some("full"),
                Use::Add => None,
            };
            if let Some(state) = wrong {
                let (op, buffer) = (task.op, buffer.contents);
                return Err(InvalidStep::BufferState { rank, task: id.0, op, buffer, state });
            }
            if !*full {
                live += buffer.len;
            }
            *full = *mode != Use::Take;
        }
        // All buffers of a task are live while it runs.
        peak = peak.max(live);
        let taken = program.accesses(id).iter().filter(|access| access.mode == Use::Take);
        live -= taken.map(|it| program.buffers[it.buffer.0 as usize].len).sum::<u64>();
    }
    for (buffer, is_full) in program.buffers.iter().zip(is_full) {
        if is_full != buffer.is_persistent {
            let state = if is_full { "full" } else { "empty" };
            return Err(InvalidStep::LeftOver { rank, buffer: buffer.contents, state });
        }
    }
    Ok(peak)
}
