//! Proof over several ranks: equal calls, matched messages, no deadlock, complete reductions.

use super::InvalidStep;
use crate::pipeline::NUM_SEND_BUFFERS;
use crate::step::{Message, MessageKind, Program, Queue, Task, TaskId, TaskOp, Use};
use lockstep_mesh::Axis;
use std::collections::BTreeMap;

/// Calls of a rank in a group, in order.
fn calls_in<'a>(program: &'a Program, ranks: &'a [usize]) -> impl Iterator<Item = &'a Task> {
    program
        .tasks
        .iter()
        .filter(move |task| program.call(task).is_some_and(|(_, group)| group.ranks == ranks))
}

/// Checks that ranks of a group make the same calls.
pub(super) fn check_calls(programs: &[Program]) -> Result<(), InvalidStep> {
    for program in programs {
        for (number, group) in program.groups.iter().enumerate() {
            let is_first = !program.groups[..number].iter().any(|g| g.ranks == group.ranks);
            if !is_first || group.ranks.first() != Some(&program.rank) {
                continue;
            }
            let shape = |program: &Program, task: &Task| {
                let (call, _) = program.call(task).expect("it makes a call");
                (task.op, task.queue, call.op, call.lengths.clone(), call.element)
            };
            let own: Vec<_> =
                calls_in(program, &group.ranks).map(|task| shape(program, task)).collect();
            for &other in &group.ranks[1..] {
                let Some(program_of_other) = programs.get(other) else {
                    return Err(InvalidStep::Malformed { rank: program.rank, task: 0 });
                };
                let others = calls_in(program_of_other, &group.ranks);
                let others: Vec<_> = others.map(|task| shape(program_of_other, task)).collect();
                let (one, axis) = (program.rank, group.axis);
                let pairs = own.iter().zip(&others).position(|(own, other)| own != other);
                let is_longer = own.len() != others.len();
                let index = pairs.or(is_longer.then_some(own.len().min(others.len())));
                if let Some(index) = index {
                    return Err(InvalidStep::DifferentCalls { one, other, axis, index });
                }
            }
        }
    }
    // A call that only some members of its group know was compared above unless its first member
    // has no such group at all.
    for program in programs {
        for group in &program.groups {
            let first = group.ranks.first().and_then(|first| programs.get(*first));
            let knows = |first: &Program| first.groups.iter().any(|g| g.ranks == group.ranks);
            if !first.is_some_and(knows) {
                let (one, other, axis) = (group.ranks[0], program.rank, group.axis);
                return Err(InvalidStep::DifferentCalls { one, other, axis, index: 0 });
            }
        }
    }
    Ok(())
}

/// Progress of one rank in [`run_all`].
struct Progress {
    next: usize,
    /// By distinct list of ranks: number of calls that were issued.
    issued: BTreeMap<Vec<usize>, usize>,
    /// By task: number of its call within its group.
    number: BTreeMap<u32, usize>,
}

/// Issues all tasks of all ranks, strictly in program order: receives and calls on the control and
/// tensor queues block their rank, other calls run in the background. A rank has a few buffers for
/// messages between stages and waits when all are in flight.
pub(super) fn run_all(programs: &[Program]) -> Result<(), InvalidStep> {
    let mut ranks: Vec<Progress> = programs
        .iter()
        .map(|_| Progress { next: 0, issued: BTreeMap::new(), number: BTreeMap::new() })
        .collect();
    // Messages in flight: (from, to, meaning) with their length.
    let mut in_flight: BTreeMap<(usize, usize, MessageKind), (u64, u32)> = BTreeMap::new();
    let mut num_in_flight = vec![0_usize; programs.len()];
    loop {
        let mut has_moved = false;
        for rank in 0..programs.len() {
            while advance(programs, &mut ranks, rank, &mut in_flight, &mut num_in_flight)? {
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    for (rank, progress) in ranks.iter().enumerate() {
        if let Some(task) = programs[rank].tasks.get(progress.next) {
            return Err(InvalidStep::Deadlock { rank, task: progress.next as u32, op: task.op });
        }
    }
    if let Some(((from, to, kind), _)) = in_flight.pop_first() {
        return Err(InvalidStep::NeverReceived { from, to, kind });
    }
    Ok(())
}

/// Issues the next task of a rank, if it can start. Returns whether it did.
fn advance(
    programs: &[Program],
    ranks: &mut [Progress],
    rank: usize,
    in_flight: &mut BTreeMap<(usize, usize, MessageKind), (u64, u32)>,
    num_in_flight: &mut [usize],
) -> Result<bool, InvalidStep> {
    let program = &programs[rank];
    let at = ranks[rank].next;
    let Some(task) = program.tasks.get(at) else { return Ok(false) };
    let id = TaskId(at as u32);
    let is_done = |ranks: &[Progress], before: TaskId| {
        let Some((_, group)) = program.call(&program.tasks[before.0 as usize]) else { return true };
        let number = ranks[rank].number[&before.0];
        group.ranks.iter().all(|member| {
            ranks[*member].issued.get(&group.ranks).is_some_and(|issued| *issued > number)
        })
    };
    if !program.after(id).iter().all(|before| is_done(ranks, *before)) {
        return Ok(false);
    }
    match task.op {
        TaskOp::Send(Message { kind, peer, len, element }) => {
            let is_activation =
                matches!(kind, MessageKind::Activation { .. } | MessageKind::ActivationGrad { .. });
            if is_activation && num_in_flight[rank] >= NUM_SEND_BUFFERS {
                return Ok(false);
            }
            let twice = in_flight.insert((rank, peer as usize, kind), (len, element));
            if twice.is_some() {
                return Err(InvalidStep::NeverReceived { from: rank, to: peer as usize, kind });
            }
            num_in_flight[rank] += usize::from(is_activation);
        }
        TaskOp::Recv(Message { kind, peer, len, element }) => {
            let from = peer as usize;
            if in_flight.get(&(from, rank, kind)) != Some(&(len, element)) {
                return Ok(false);
            }
            in_flight.remove(&(from, rank, kind));
            let is_activation =
                matches!(kind, MessageKind::Activation { .. } | MessageKind::ActivationGrad { .. });
            num_in_flight[from] -= usize::from(is_activation);
        }
        _ => {}
    }
    if let Some((_, group)) = program.call(task) {
        if !ranks[rank].number.contains_key(&id.0) {
            let progress = &mut ranks[rank];
            let issued = progress.issued.entry(group.ranks.clone()).or_insert(0);
            progress.number.insert(id.0, *issued);
            *issued += 1;
        }
        let is_blocking = matches!(task.queue, Queue::Control | Queue::Link(Axis::Tensor));
        if is_blocking && !is_done(ranks, id) {
            return Ok(false);
        }
    }
    ranks[rank].next += 1;
    Ok(true)
}

/// Micro-batches whose gradients were added, by block.
type Addends = BTreeMap<u32, Vec<u32>>;

/// Checks that each block's micro-batches are reduced once over the ranks of a group.
pub(super) fn check_reductions(programs: &[Program]) -> Result<(), InvalidStep> {
    // By group: addends of every rank, in order.
    let mut groups: BTreeMap<Vec<usize>, Vec<Addends>> = BTreeMap::new();
    let mut tasks = programs.iter().flat_map(|program| &program.tasks);
    let reduces = tasks.any(|task| matches!(task.op, TaskOp::Reduce { .. }));
    for program in programs {
        let mut held: Vec<Addends> = vec![Addends::new(); program.buffers.len()];
        for (id, task) in program.iter() {
            match task.op {
                TaskOp::Backward(pass) | TaskOp::WeightGrad(pass) => {
                    let added = program.accesses(id).iter().filter(|a| a.mode == Use::Add);
                    for access in added {
                        let microbatch = program.microbatches.get(pass.microbatch as usize);
                        let Some(&number) = microbatch else {
                            return Err(InvalidStep::Malformed { rank: program.rank, task: id.0 });
                        };
                        let addends = &mut held[access.buffer.0 as usize];
                        addends.entry(pass.block).or_default().push(number);
                    }
                }
                TaskOp::Encode { .. } => {
                    // The sums move on in another format.
                    let accesses = program.accesses(id);
                    let from = accesses.iter().find(|a| matches!(a.mode, Use::Take | Use::Read));
                    let into = accesses.iter().find(|a| a.mode == Use::Write);
                    if let (Some(from), Some(into)) = (from, into) {
                        let addends = std::mem::take(&mut held[from.buffer.0 as usize]);
                        held[into.buffer.0 as usize] = addends;
                    }
                }
                TaskOp::Reduce { .. } => {
                    let Some((_, group)) = program.call(task) else { continue };
                    let ranks = groups
                        .entry(group.ranks.clone())
                        .or_insert_with(|| vec![Addends::new(); group.ranks.len()]);
                    let own = group.ranks.iter().position(|rank| *rank == program.rank);
                    let own = &mut ranks[own.expect("it is a member")];
                    for access in program.accesses(id) {
                        for (block, numbers) in std::mem::take(&mut held[access.buffer.0 as usize])
                        {
                            own.entry(block).or_default().extend(numbers);
                        }
                    }
                }
                _ => {}
            }
        }
        // A step that reduces gradients on any rank reduces all of them.
        let left = held.iter().find_map(|addends| addends.keys().next());
        if let (true, Some(&block)) = (reduces, left) {
            return Err(InvalidStep::Reduction { block, rank: program.rank });
        }
    }
    for (ranks, addends) in groups {
        let mut expected: Vec<u32> =
            ranks.iter().flat_map(|rank| programs[*rank].microbatches.iter().copied()).collect();
        expected.sort_unstable();
        let is_twice = expected.windows(2).any(|pair| pair[0] == pair[1]);
        let blocks: Vec<u32> = addends.iter().flat_map(|own| own.keys().copied()).collect();
        for block in blocks {
            let of_block = || addends.iter().filter_map(|own| own.get(&block));
            let is_ascending = of_block().all(|numbers| numbers.is_sorted());
            let mut all: Vec<u32> = of_block().flatten().copied().collect();
            all.sort_unstable();
            if all != expected || is_twice || !is_ascending {
                return Err(InvalidStep::Reduction { block, rank: ranks[0] });
            }
        }
    }
    Ok(())
}
