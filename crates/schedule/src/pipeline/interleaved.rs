//! Interleaved 1F1B (Narayanan et al. 2021): every device holds v virtual stages, p stages apart.
//!
//! Micro-batches go in groups of p: a group passes through a device's first virtual stage, then its
//! second, and so on, and backward in reverse. The bubble falls by a factor of v, to (p-1)(F+B)/v.
//! The price is v times the messages, and a longer warm-up, which keeps up to (p-1)/v micro-batches
//! more.
//!
//! Where the last group is smaller, the schedule is that of the next multiple of p without the
//! missing micro-batches. Removing passes from an order without deadlock introduces none.

use super::one_f_one_b::alternate;
use super::{Pass, Shape, Task};

/// Program of a device.
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

/// A micro-batch of the first group passes all virtual stages forward before any backward pass.
const fn num_warm_up(shape: Shape, device: usize) -> usize {
    2 * (shape.num_devices - 1 - device) + (shape.num_chunks - 1) * shape.num_devices
}

/// Micro-batch, and index of its virtual stage, of pass number `index`.
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
