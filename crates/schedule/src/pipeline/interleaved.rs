//! Interleaved 1F1B: every device holds v stages that lie p apart, so that the pipeline fills v
//! times as fast.
//!
//! Microbatches go in groups of p: a group passes through a device's first stage, then its second,
//! and so on, and backward the other way round. The idle time falls by a factor of v. The price is
//! v times the messages, and a longer warm-up, which keeps up to (p-1)/v microbatches more.
//!
//! Where the last group would be smaller, the schedule is that of the next multiple of p with the
//! microbatches left out that are not there. What is left of an order in which nobody waits for
//! ever is such an order.

use super::one_f_one_b::alternate;
use super::{Pass, Shape, Task};

/// What a device does.
pub fn program(shape: Shape, device: usize) -> Vec<Task> {
    let num_microbatches = shape.num_microbatches.next_multiple_of(shape.num_devices);
    let mut tasks = regular(Shape { num_microbatches, ..shape }, device);
    tasks.retain(|task| task.microbatch < shape.num_microbatches);
    tasks
}

fn regular(shape: Shape, device: usize) -> Vec<Task> {
    let num_tasks = shape.num_microbatches * shape.num_chunks;
    let place = |index| place(shape, index);
    alternate(
        num_tasks,
        num_warm_up(shape, device),
        |index| task(Pass::Forward, shape, place(index)),
        |index| task(Pass::Backward, shape, place(index)),
    )
}

/// A microbatch of the first group needs all of its chunks forward before any goes back.
const fn num_warm_up(shape: Shape, device: usize) -> usize {
    2 * (shape.num_devices - 1 - device) + (shape.num_chunks - 1) * shape.num_devices
}

/// The microbatch, and the how-manieth chunk of it, of the pass number `index`.
const fn place(shape: Shape, index: usize) -> (usize, usize) {
    let Shape { num_devices, num_chunks, .. } = shape;
    let (group, place) = (index / (num_devices * num_chunks), index % (num_devices * num_chunks));
    (group * num_devices + place % num_devices, place / num_devices)
}

fn task(pass: Pass, shape: Shape, (microbatch, chunk): (usize, usize)) -> Task {
    match pass {
        Pass::Forward => Task::new(pass, microbatch, chunk),
        _ => Task::new(pass, microbatch, shape.num_chunks - 1 - chunk),
    }
}
