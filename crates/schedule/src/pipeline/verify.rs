//! Proof of a pipeline: every pass runs once, the order has no deadlock, and every stage takes
//! micro-batches in ascending order.
//!
//! The order of weight gradients makes sums independent of the schedule. The order of the other
//! passes makes messages between stages arrive in sending order, and lets activations live in a
//! ring buffer.
//!
//! Freedom from deadlock is proven for links that buffer nothing: a device has a few send buffers
//! ([`NUM_SEND_BUFFERS`]) that are sent in order, each only while its receiver waits for a message
//! of that device. (Schedules that are only simulated and priced, [`Kind::is_run`], have links that
//! buffer.)

use super::dependencies::{comes_from, goes_to, needs, settled};
use super::{Kind, NUM_SEND_BUFFERS, Pass, Pipeline, Task, chimera};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Defect of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPipeline {
    /// A pass is missing, occurs twice, or belongs to no stage.
    #[error("device {device}: {task} does not come exactly once")]
    NotOnce {
        /// Device.
        device: usize,
        /// Pass.
        task: Task,
    },
    /// Sums would depend on the schedule, or messages would be mismatched.
    #[error("device {device} runs {task} after the same pass of a later microbatch")]
    NotAscending {
        /// Device.
        device: usize,
        /// Pass.
        task: Task,
    },
    /// Deadlock.
    #[error("device {device} waits for ever to begin {task}")]
    Stuck {
        /// First device that waits.
        device: usize,
        /// Pass that it cannot start.
        task: Task,
    },
}

/// Proves the pipeline, or returns the first defect.
pub fn verify(pipeline: &Pipeline) -> Result<(), InvalidPipeline> {
    for (device, program) in pipeline.programs.iter().enumerate() {
        check_program(pipeline, device, program)?;
    }
    run(pipeline)
}

fn check_program(
    pipeline: &Pipeline,
    device: usize,
    program: &[Task],
) -> Result<(), InvalidPipeline> {
    let is_split = program.iter().any(|task| task.pass == Pass::InputGrad);
    let passes: &[Pass] = if is_split {
        &[Pass::Forward, Pass::InputGrad, Pass::WeightGrad]
    } else {
        &[Pass::Forward, Pass::Backward]
    };
    let mut missing: BTreeSet<Task> = BTreeSet::new();
    for &pass in passes {
        for chunk in 0..pipeline.num_chunks() {
            let passes_here = |i: &usize| {
                pipeline.kind != Kind::Chimera
                    || chimera::microbatches(pipeline.shape, chunk).contains(i)
            };
            let all = (0..pipeline.shape.num_microbatches).filter(passes_here);
            missing.extend(all.map(|i| Task::new(pass, i, chunk)));
        }
    }
    let mut next: BTreeMap<(Pass, usize), usize> = BTreeMap::new();
    for &task in program {
        if !missing.remove(&task) {
            return Err(InvalidPipeline::NotOnce { device, task });
        }
        let next = next.entry((task.pass, task.chunk)).or_default();
        if task.microbatch < *next {
            return Err(InvalidPipeline::NotAscending { device, task });
        }
        *next = task.microbatch;
    }
    missing.pop_first().map_or(Ok(()), |task| Err(InvalidPipeline::NotOnce { device, task }))
}

/// Message between devices: the receiving stage, the pass and the micro-batch.
type Message = (usize, Pass, usize);

/// Progress of a device.
#[derive(Default)]
struct Progress {
    next: usize,
    /// Whether the next task has run and its output waits for a buffer.
    has_run: bool,
    /// Messages in flight, with their receiver.
    leaving: VecDeque<(usize, Message)>,
    arrived: BTreeSet<Message>,
}

/// Runs every device as far as possible, until all are done or none can continue.
fn run(pipeline: &Pipeline) -> Result<(), InvalidPipeline> {
    let mut done: BTreeSet<(usize, Pass, usize)> = BTreeSet::new();
    let mut devices: Vec<Progress> = Vec::new();
    devices.resize_with(pipeline.programs.len(), Progress::default);
    loop {
        let mut has_moved = false;
        for device in 0..devices.len() {
            while deliver(pipeline, device, &mut devices) {
                has_moved = true;
            }
            while advance(pipeline, device, &mut devices[device], &mut done) {
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
    for (device, (program, progress)) in pipeline.programs.iter().zip(&devices).enumerate() {
        if let Some(&task) = program.get(progress.next) {
            return Err(InvalidPipeline::Stuck { device, task });
        }
    }
    Ok(())
}

/// Message that a device waits for, and its sender.
fn awaited(pipeline: &Pipeline, device: usize, progress: &Progress) -> Option<(usize, Message)> {
    let task = pipeline.programs[device].get(progress.next)?;
    let stage = pipeline.stage(device, task.chunk);
    let from = comes_from(pipeline.shape, stage, task.pass)?;
    let from = pipeline.device(from, task.microbatch);
    let message = (stage, settled(task.pass), task.microbatch);
    let waits = !progress.has_run && !progress.arrived.contains(&message);
    (waits && from != device).then_some((from, message))
}

/// Delivers the oldest message of a device if its receiver waits for one from it.
fn deliver(pipeline: &Pipeline, device: usize, devices: &mut [Progress]) -> bool {
    let Some(&(to, message)) = devices[device].leaving.front() else { return false };
    let is_awaited = awaited(pipeline, to, &devices[to]).is_some_and(|(from, _)| from == device);
    let can_leave = is_awaited || !pipeline.kind.is_run();
    if can_leave {
        devices[device].leaving.pop_front();
        devices[to].arrived.insert(message);
    }
    can_leave
}

/// Runs the next task of a device if it is ready, and sends its output if there is a buffer.
fn advance(
    pipeline: &Pipeline,
    device: usize,
    progress: &mut Progress,
    done: &mut BTreeSet<(usize, Pass, usize)>,
) -> bool {
    let Some(task) = pipeline.programs[device].get(progress.next) else { return false };
    let (shape, stage) = (pipeline.shape, pipeline.stage(device, task.chunk));
    if !progress.has_run {
        let is_done =
            |&(stage, pass): &(usize, Pass)| done.contains(&(stage, pass, task.microbatch));
        let needs = needs(shape, stage, task.pass);
        if awaited(pipeline, device, progress).is_some() || !needs.iter().flatten().all(is_done) {
            return false;
        }
        done.insert((stage, settled(task.pass), task.microbatch));
        progress.has_run = true;
    }
    let target = goes_to(shape, stage, task.pass);
    let target = target.map(|to| (to, pipeline.device(to, task.microbatch)));
    if let Some((stage, to)) = target.filter(|(_, to)| *to != device) {
        if progress.leaving.len() == NUM_SEND_BUFFERS {
            return false;
        }
        let message = (stage, settled(task.pass), task.microbatch);
        progress.leaving.push_back((to, message));
    }
    progress.next += 1;
    progress.has_run = false;
    true
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Shape, build};
    use super::*;

    #[test]
    fn every_schedule_of_every_small_shape_is_valid() {
        for kind in Kind::ALL {
            for num_devices in 1..=8 {
                for num_chunks in 1..=4 {
                    for num_microbatches in 1..=16 {
                        let shape = Shape { num_devices, num_chunks, num_microbatches };
                        if let Ok(pipeline) = build(kind, shape) {
                            assert_eq!(verify(&pipeline), Ok(()), "{pipeline}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn live_microbatches_match_the_schedule() {
        for num_devices in 1..=8 {
            for num_microbatches in 1..=16 {
                let shape = Shape { num_devices, num_chunks: 1, num_microbatches };
                let live = |kind: Kind, device| build(kind, shape).unwrap().live(device)[0];
                for device in 0..num_devices {
                    let bound = num_microbatches.min(num_devices - device);
                    assert_eq!(live(Kind::GPipe, device), num_microbatches);
                    assert_eq!(live(Kind::OneFOneB, device), bound);
                    assert!(live(Kind::ZeroBubble, device) <= num_microbatches.min(num_devices));
                    let deferred_weight_grads =
                        |kind: Kind| build(kind, shape).unwrap().deferred_weight_grads(device)[0];
                    assert_eq!(
                        deferred_weight_grads(Kind::ZeroBubble),
                        num_microbatches.min(device + 1)
                    );
                    assert_eq!(deferred_weight_grads(Kind::OneFOneB), 0);
                    let pipedream = build(Kind::PipeDream, shape).unwrap();
                    assert_eq!(pipedream.weight_versions(device), bound);
                }
            }
        }
    }

    #[test]
    fn defects_are_reported() {
        let shape = Shape { num_devices: 2, num_chunks: 1, num_microbatches: 2 };
        let right = build(Kind::OneFOneB, shape).unwrap();
        let broken = |change: &dyn Fn(&mut Vec<Task>)| {
            let mut pipeline = right.clone();
            change(&mut pipeline.programs[1]);
            verify(&pipeline).unwrap_err().to_string()
        };
        assert_eq!(broken(&|tasks| tasks.truncate(3)), "device 1: B1 does not come exactly once");
        assert_eq!(broken(&|tasks| tasks[0].chunk = 1), "device 1: F0' does not come exactly once");
        // F0 B0 F1 B1 becomes F0 B1 F1 B0.
        assert_eq!(
            broken(&|tasks| tasks.swap(1, 3)),
            "device 1 runs B0 after the same pass of a later microbatch"
        );
        // B0 F0 F1 B1: backward before forward.
        assert_eq!(broken(&|tasks| tasks.swap(0, 1)), "device 0 waits for ever to begin B0");
    }
}
