//! Steps that are proven, and every way in which a step is refused.

use super::*;
use crate::step::{BlockPass, Builder, Call, CommGroup, Lengths};
use crate::{Contributions, Op};
use lockstep_config::units::Bytes;

const LINK: Queue = Queue::Link(Axis::Data);

/// A step of two ranks, each with one block and one micro-batch, that all-reduces gradients.
fn two_ranks() -> Vec<Program> {
    (0..2).map(|rank| data_parallel(rank, 100)).collect()
}

fn data_parallel(rank: usize, len: usize) -> Program {
    let mut step = Builder::new(rank);
    step.microbatches([rank].into_iter());
    let group = step.group(CommGroup {
        axis: Axis::Data,
        ranks: vec![0, 1],
        contributions: Contributions::one_each(2),
    });
    let params = step.persistent(Contents::Params { bucket: 0 }, len);
    let saved = step.buffer(Contents::Saved { block: 0, slot: 0 }, 10);
    let grads = step.buffer(Contents::Grads { bucket: 0 }, len);
    let norm = step.buffer(Contents::Norm, 1);
    let pass = BlockPass { chunk: 0, microbatch: 0, block: 0, part: 0 };
    step.task(TaskOp::Forward(pass), Queue::Compute).reads(params).writes(saved);
    step.task(TaskOp::Backward(pass), Queue::Compute).reads(params).takes(saved).adds(grads);
    let lengths = Lengths::Even(len);
    let call = |op| Call { group, op, lengths: lengths.clone(), element: Bytes(4) };
    step.task(TaskOp::Reduce { bucket: 0 }, LINK).updates(grads).calls(call(Op::AllReduce));
    step.task(TaskOp::GradNorm, Queue::Compute).reads(grads).writes(norm);
    let agree = step.task(TaskOp::Agree, Queue::Control).takes(norm);
    let agree = agree.calls(call(Op::AllGather)).id();
    let update = step.task(TaskOp::Update { bucket: 0 }, Queue::Compute).guarded_by(agree);
    update.takes(grads).updates(params);
    step.finish()
}

fn message(peer: u32, microbatch: u32) -> Message {
    let kind = MessageKind::Activation { boundary: 0, microbatch };
    Message { kind, peer, len: 4, element: 4 }
}

#[test]
fn a_step_is_proven_with_its_peak_of_live_memory() {
    let report = verify(&two_ranks()).unwrap();
    // Parameters, activations and gradients, in the backward pass.
    assert_eq!(report.peak_len, [210, 210]);
}

#[test]
fn no_task_can_be_left_out() {
    let programs = two_ranks();
    for task in 0..programs[1].tasks.len() as u32 {
        let mutant = [programs[0].clone(), programs[1].without(TaskId(task))];
        assert!(verify(&mutant).is_err(), "without task {task}");
    }
}

#[test]
fn dependencies_cross_queues_only_and_forgotten_ones_are_found() {
    let mut program = data_parallel(0, 100);
    let reduce = program.position(|op| matches!(op, TaskOp::Reduce { .. })).unwrap();
    assert_eq!(program.after(reduce), [TaskId(reduce.0 - 1)]);
    assert_eq!(program.after(TaskId(1)), [], "both are on the compute queue");
    program.tasks[reduce.0 as usize].after = 0..0;
    let programs = [program, data_parallel(1, 100)];
    let error = verify(&programs).unwrap_err();
    assert!(matches!(error, InvalidStep::Unordered { rank: 0, .. }), "{error}");
}

#[test]
fn ranks_of_a_group_make_the_same_calls() {
    let programs = [data_parallel(0, 100), data_parallel(1, 99)];
    let error = verify(&programs).unwrap_err();
    assert!(matches!(error, InvalidStep::DifferentCalls { index: 0, .. }), "{error}");
}

#[test]
fn gradients_are_reduced_once_and_ascending() {
    let mut programs = two_ranks();
    programs[1].microbatches = vec![0];
    let error = verify(&programs).unwrap_err();
    assert!(matches!(error, InvalidStep::Reduction { block: 0, .. }), "{error}");
}

#[test]
fn ranks_that_wait_for_each_other_are_found() {
    let program = |rank: usize, receives_first: bool| {
        let mut step = Builder::new(rank);
        let out = step.persistent(Contents::Custom { number: 0 }, 4);
        let stream = step.buffer(Contents::Stream { block: 0, slot: 0 }, 4);
        let peer = 1 - rank as u32;
        let queue = Queue::Link(Axis::Pipeline);
        let send = |step: &mut Builder| {
            step.task(TaskOp::Send(message(peer, rank as u32)), queue).reads(out);
        };
        if !receives_first {
            send(&mut step);
        }
        step.task(TaskOp::Recv(message(peer, peer)), queue).writes(stream);
        if receives_first {
            send(&mut step);
        }
        step.task(TaskOp::Custom { number: 0 }, Queue::Compute).takes(stream);
        step.finish()
    };
    assert!(verify(&[program(0, false), program(1, true)]).is_ok());
    let error = verify(&[program(0, true), program(1, true)]).unwrap_err();
    assert!(matches!(error, InvalidStep::Deadlock { rank: 0, task: 0, .. }), "{error}");
}

#[test]
fn messages_are_received_and_updates_guarded() {
    let mut sender = Builder::new(0);
    let out = sender.persistent(Contents::Custom { number: 0 }, 4);
    let task = sender.task(TaskOp::Send(message(1, 0)), Queue::Link(Axis::Pipeline));
    task.reads(out);
    let programs = [sender.finish(), Builder::new(1).finish()];
    let error = verify(&programs).unwrap_err();
    assert!(matches!(error, InvalidStep::NeverReceived { from: 0, to: 1, .. }), "{error}");

    let mut step = Builder::new(0);
    let params = step.persistent(Contents::Params { bucket: 0 }, 4);
    step.task(TaskOp::Update { bucket: 0 }, Queue::Compute).updates(params);
    assert_eq!(verify(&[step.finish()]), Err(InvalidStep::Guard { rank: 0, task: 0 }));
}

#[test]
fn a_program_reads_as_a_list() {
    let text = data_parallel(0, 100).to_string();
    assert!(text.starts_with("step of rank 0, 6 tasks\n"), "{text}");
    let reduce = "   2  data         reduce 0  ~grads(0)  all-reduce of 100 by 2  after 1";
    assert_eq!(text.lines().nth(3), Some(reduce), "{text}");
}
