//! Straggler policies that leave ranks out of a step (backup workers, Chen et al. 2016; timeout;
//! drop-slowest): ranks agree on whose gradients count before any is reduced, and those that do not
//! count contribute zeros. Every rank makes all calls whatever the agreement is.

use super::Replay;
use lockstep_config::units::Bytes;
use lockstep_schedule::Op;
use lockstep_schedule::step::{Call, Contents, Lengths, Program, Queue, TaskId, TaskOp, Use};

/// The program of a step with the reductions held until the cutoff; `world` is the group of all
/// ranks.
pub(crate) fn hold_reductions(program: &Program) -> Program {
    let world = super::WORLD;
    let end = program.position(|op| *op == TaskOp::GatherLosses).expect("a step has losses");
    let is_held =
        |id: TaskId| id < end && matches!(program.tasks[id.0 as usize].op, TaskOp::Reduce { .. });
    let ids = || (0..program.tasks.len() as u32).map(TaskId);
    let mut replay = Replay::new(program, program.rank);
    ids().filter(|id| *id < end && !is_held(*id)).for_each(|id| replay.repeat(id, true));
    let num_ranks = program.groups[world as usize].ranks.len();
    let (op, lengths) = (Op::AllGather, Lengths::Even(num_ranks));
    let call = Call { group: world, op, lengths, element: Bytes(8) };
    let mut grads: Vec<_> = ids()
        .filter(|id| is_held(*id))
        .flat_map(|id| program.accesses(id))
        .filter(|access| access.mode == Use::Update)
        .map(|access| access.buffer)
        .filter(|buffer| {
            let contents = program.buffers[buffer.0 as usize].contents;
            matches!(contents, Contents::Grads { .. })
        })
        .collect();
    grads.dedup();
    let mut cutoff = replay.tasks.task(TaskOp::Cutoff, Queue::Control).calls(call);
    for grads in grads {
        cutoff = cutoff.updates(grads);
    }
    ids().filter(|id| is_held(*id)).for_each(|id| replay.repeat(id, true));
    // All later tasks follow the one that was added.
    replay.shift = 1;
    ids().filter(|id| *id >= end).for_each(|id| replay.repeat(id, true));
    replay.tasks.finish()
}
