//! Steps whose times are computed by hand.

use super::*;
use crate::pipeline::{Kind, Pass, Shape, build};
use crate::step::{BlockPass, Builder, Call, CommGroup, Contents, Lengths, TaskBuilder};
use crate::{Contributions, Op};
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;

const LINK: Queue = Queue::Link(Axis::Data);

/// A step of a rank under construction, with a group of two ranks.
fn step_of(rank: usize) -> (Builder, Call) {
    let mut step = Builder::new(rank);
    let contributions = Contributions::one_each(2);
    let group = step.group(CommGroup { axis: Axis::Data, ranks: vec![0, 1], contributions });
    (step, Call { group, op: Op::AllReduce, lengths: Lengths::Even(1), element: Bytes(4) })
}

const fn pass(block: u32, microbatch: u32) -> BlockPass {
    BlockPass { chunk: 0, microbatch, block, part: 0 }
}

/// Plays programs with a duration by action.
fn times(programs: &[Program], mode: CallMode, seconds: impl Fn(TaskOp) -> f64) -> Option<Play> {
    let seconds = |at: usize, task: TaskId| {
        let program: &Program = &programs[at];
        Seconds(seconds(program.tasks[task.0 as usize].op))
    };
    play(programs, mode, seconds)
}

const fn sums(rank: &RankPlay) -> [Seconds; 3] {
    [rank.compute, rank.communication, rank.exposed]
}

/// Backward passes of three blocks, each of which is reduced, then a norm over all gradients.
fn reduced_blocks(rank: usize) -> Program {
    let (mut step, call) = step_of(rank);
    let grads = [0, 1, 2].map(|bucket| step.buffer(Contents::Grads { bucket }, 1));
    for bucket in (0..3).rev() {
        let grads = grads[bucket as usize];
        step.task(TaskOp::Backward(pass(bucket, 0)), Queue::Compute).adds(grads);
        step.task(TaskOp::Reduce { bucket }, LINK).updates(grads).calls(call.clone());
    }
    let norm = step.task(TaskOp::GradNorm, Queue::Compute);
    grads.into_iter().fold(norm, TaskBuilder::takes);
    step.finish()
}

#[test]
fn reductions_overlap_with_backward_unless_they_block_it() {
    let programs = [0, 1].map(reduced_blocks);
    let seconds = |op| if matches!(op, TaskOp::Reduce { .. }) { 2.0 } else { 1.0 };
    // Passes end at 1, 2 and 3, calls at 3, 5 and 7, the norm at 8.
    let overlapped = times(&programs, CallMode::Background, seconds).unwrap();
    assert_eq!(overlapped.seconds(), Seconds(8.0));
    assert_eq!(sums(&overlapped.ranks[0]), [4.0, 6.0, 4.0].map(Seconds));
    let reduce = overlapped.ranks[1].tasks[3];
    assert_eq!((reduce.start, reduce.end), (Seconds(3.0), Seconds(5.0)));
    let blocking = times(&programs, CallMode::Blocking, seconds).unwrap();
    assert_eq!(blocking.seconds(), Seconds(10.0));
    assert_eq!(sums(&blocking.ranks[0]), [4.0, 6.0, 6.0].map(Seconds));
}

#[test]
fn a_collective_waits_for_the_last_rank_of_its_group() {
    let programs = [0, 1].map(reduced_blocks);
    let seconds = |at: usize, task: TaskId| match programs[at].tasks[task.0 as usize].op {
        TaskOp::Backward(_) if at == 1 => Seconds(4.0),
        _ => Seconds(1.0),
    };
    let both = play(&programs, CallMode::Background, seconds).unwrap();
    assert_eq!(both.seconds(), Seconds(14.0));
    for rank in &both.ranks {
        assert_eq!(rank.tasks[1], Span { start: Seconds(4.0), end: Seconds(5.0) });
    }
    assert_eq!(sums(&both.ranks[0]), [4.0, 3.0, 10.0].map(Seconds));
    assert_eq!(sums(&both.ranks[1]), [13.0, 3.0, 1.0].map(Seconds));
    // A rank that is not played is not waited for.
    let alone = play(&programs[..1], CallMode::Background, seconds).unwrap();
    assert_eq!(alone.seconds(), Seconds(5.0));
}

/// Programs of a pipeline with one block a stage.
fn pipeline(kind: Kind, num_devices: usize, num_microbatches: usize) -> Vec<Program> {
    let shape = Shape { num_devices, num_chunks: 1, num_microbatches };
    let pipeline = build(kind, shape).unwrap();
    let link = Queue::Link(Axis::Pipeline);
    let message = |kind, device: usize| Message { kind, peer: device as u32, len: 1, element: 4 };
    let program = |device: usize| {
        let mut step = Builder::new(device);
        let (block, last) = (device as u32, num_devices - 1);
        for task in &pipeline.programs[device] {
            let microbatch = task.microbatch as u32;
            let input = step.buffer(Contents::Stream { block, slot: microbatch }, 1);
            let output = step.buffer(Contents::Output { chunk: 0, slot: microbatch }, 1);
            let grad = step.buffer(Contents::StreamGrad, 1);
            let boundary = |device: usize| device as u32;
            if task.pass == Pass::Forward {
                let kind = |at| MessageKind::Activation { boundary: boundary(at), microbatch };
                if device > 0 {
                    let message = message(kind(device - 1), device - 1);
                    step.task(TaskOp::Recv(message), link).writes(input);
                }
                let forward = TaskOp::Forward(pass(block, microbatch));
                let forward = step.task(forward, Queue::Compute);
                let forward = if device > 0 { forward.takes(input) } else { forward };
                if device < last {
                    forward.writes(output);
                    let message = message(kind(device), device + 1);
                    step.task(TaskOp::Send(message), link).takes(output);
                }
                continue;
            }
            let kind = |at| MessageKind::ActivationGrad { boundary: boundary(at), microbatch };
            if device < last {
                let message = message(kind(device), device + 1);
                step.task(TaskOp::Recv(message), link).writes(grad);
            }
            let backward = TaskOp::Backward(pass(block, microbatch));
            let backward = step.task(backward, Queue::Compute);
            if device < last {
                backward.updates(grad)
            } else {
                backward.writes(grad)
            };
            if device > 0 {
                let message = message(kind(device - 1), device - 1);
                step.task(TaskOp::Send(message), link).takes(grad);
            } else {
                step.task(TaskOp::Unscale, Queue::Compute).takes(grad);
            }
        }
        step.finish()
    };
    (0..num_devices).map(program).collect()
}

#[test]
fn the_bubble_of_a_pipeline_is_its_closed_form() {
    let seconds = |op: TaskOp| match op {
        TaskOp::Forward(_) => 1.0,
        TaskOp::Backward(_) => 2.0,
        _ => 0.0,
    };
    for (kind, p, m) in [(Kind::OneFOneB, 4, 8), (Kind::GPipe, 4, 8), (Kind::OneFOneB, 3, 5)] {
        let programs = pipeline(kind, p, m);
        for mode in [CallMode::Background, CallMode::Blocking] {
            let play = times(&programs, mode, seconds).unwrap();
            assert_eq!(play.seconds(), Seconds(3.0 * (m + p - 1) as f64), "{kind}");
            let idle = play.seconds() * p as f64 - play.ranks.iter().map(|rank| rank.compute).sum();
            let bubble = idle / (play.seconds() * p as f64);
            let closed = (p - 1) as f64 / (m + p - 1) as f64;
            assert!((bubble - closed).abs() < 1e-12, "{kind}: {bubble}, not {closed}");
            // The last stage waits for its first activation only, the first for its gradients.
            assert_eq!(play.ranks[p - 1].exposed, Seconds((p - 1) as f64), "{kind}");
            assert_eq!(play.ranks[0].exposed, Seconds(3.0 * (p - 1) as f64), "{kind}");
        }
    }
}

#[test]
fn messages_take_time_between_stages() {
    let programs = pipeline(Kind::OneFOneB, 2, 1);
    let seconds = |op: TaskOp| match op {
        TaskOp::Forward(_) => 1.0,
        TaskOp::Backward(_) => 2.0,
        TaskOp::Send(_) => 5.0,
        _ => 0.0,
    };
    // Forward, message, forward, backward, message, backward.
    let play = times(&programs, CallMode::Background, seconds).unwrap();
    assert_eq!(play.seconds(), Seconds(16.0));
    let recv = play.ranks[1].tasks[0];
    assert_eq!((recv.start, recv.end), (Seconds(1.0), Seconds(6.0)));
    assert_eq!(sums(&play.ranks[0]), [3.0, 10.0, 13.0].map(Seconds));
}

/// Forward passes of three blocks, whose parameters are gathered into two windows (ZeRO-3).
fn gathered_blocks() -> Program {
    let (mut step, call) = step_of(0);
    let windows = [0, 1].map(|window| step.buffer(Contents::Window { window }, 1));
    let gather = |step: &mut Builder, bucket: u32| {
        let window = windows[bucket as usize % 2];
        step.task(TaskOp::GatherParams { bucket }, LINK).writes(window).calls(call.clone());
    };
    gather(&mut step, 0);
    for bucket in 0..3 {
        if bucket < 2 {
            gather(&mut step, bucket + 1);
        }
        let window = windows[bucket as usize % 2];
        step.task(TaskOp::Forward(pass(bucket, 0)), Queue::Compute).reads(window);
        step.task(TaskOp::ReleaseParams { bucket }, Queue::Compute).takes(window);
    }
    step.finish()
}

#[test]
fn prefetched_parameters_are_exposed_as_far_as_gathering_is_slower() {
    let exposed = |gather: f64| {
        let seconds = |op: TaskOp| match op {
            TaskOp::GatherParams { .. } => gather,
            TaskOp::Forward(_) => 2.0,
            _ => 0.0,
        };
        let play = times(&[gathered_blocks()], CallMode::Background, seconds).unwrap();
        (play.seconds().0, play.ranks[0].exposed.0)
    };
    // Only the first gather is exposed; the third one waits for a free window.
    assert_eq!(exposed(1.0), (7.0, 1.0));
    // Passes from 3 to 5, 6 to 8 and 9 to 11.
    assert_eq!(exposed(3.0), (11.0, 5.0));
}

#[test]
fn the_next_step_overlaps_with_what_it_does_not_wait_for() {
    let (mut step, call) = step_of(0);
    let params = [0, 1].map(|bucket| step.persistent(Contents::Params { bucket }, 1));
    for block in 0..2 {
        let forward = step.task(TaskOp::Forward(pass(block, 0)), Queue::Compute);
        forward.reads(params[block as usize]);
    }
    for bucket in 0..2 {
        step.task(TaskOp::Update { bucket }, Queue::Compute).updates(params[bucket as usize]);
    }
    for bucket in 0..2 {
        let gather = step.task(TaskOp::GatherUpdated { bucket }, LINK);
        gather.updates(params[bucket as usize]).calls(call.clone());
    }
    let program = [step.finish()];
    let of = |gather: f64| {
        let seconds = |op| if matches!(op, TaskOp::GatherUpdated { .. }) { gather } else { 1.0 };
        let play = times(&program, CallMode::Background, seconds).unwrap();
        (play.seconds().0, play.period.0)
    };
    // Updates end at 3 and 4. The first gather hides behind the second update, the second one
    // behind the next step's first pass.
    assert_eq!(of(1.0), (5.0, 4.0));
    // Gathers end at 5 and 7; the second pass started at 1.
    assert_eq!(of(2.0), (7.0, 6.0));
}

#[test]
fn a_rank_that_waits_for_ever_has_no_times() {
    let mut step = Builder::new(0);
    let kind = MessageKind::Custom { number: 0 };
    let message = Message { kind, peer: 1, len: 1, element: 4 };
    step.task(TaskOp::Recv(message), LINK);
    let waiting = step.finish();
    let silent = Builder::new(1).finish();
    let programs = [waiting, silent];
    assert_eq!(times(&programs, CallMode::Background, |_| 1.0), None);
    assert!(times(&programs[..1], CallMode::Background, |_| 1.0).is_some());
}
