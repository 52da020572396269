//! 1F1B (Narayanan et al. 2019; with flushes, 2021): after a warm-up every device alternates
//! between a forward and a backward pass.
//!
//! The device at distance k from the last one starts with k forward passes, as many as the last
//! device's first backward needs to return to it. From then on each backward frees the memory of
//! the next forward, so no device keeps more than p micro-batches. The bubble is that of GPipe,
//! (p-1)(F+B).

use super::{Pass, Shape, Task};

/// Program of a device.
pub fn program(shape: Shape, device: usize) -> Vec<Task> {
    let num_warm_up = shape.num_devices - 1 - device;
    alternate(
        shape.num_microbatches,
        num_warm_up,
        |i| Task::new(Pass::Forward, i, 0),
        |i| Task::new(Pass::Backward, i, 0),
    )
}

/// Warm-up forwards, then forward and backward alternating, then the remaining backwards.
pub(super) fn alternate(
    num_tasks: usize,
    num_warm_up: usize,
    forward: impl Fn(usize) -> Task,
    backward: impl Fn(usize) -> Task,
) -> Vec<Task> {
    let num_warm_up = num_warm_up.min(num_tasks);
    let mut tasks: Vec<Task> = (0..num_warm_up).map(&forward).collect();
    for index in 0..num_tasks - num_warm_up {
        tasks.extend([forward(num_warm_up + index), backward(index)]);
    }
    tasks.extend((num_tasks - num_warm_up..num_tasks).map(backward));
    tasks
}
