//! 1F1B: after a warm-up every device alternates between a forward and a backward pass.
//!
//! The device at distance k from the last one begins with k forward passes, which is as many as
//! the last one's first backward needs to come back to it. From then on each backward frees what
//! the next forward takes, so that no device keeps more than p microbatches, however many there
//! are. The idle time is that of GPipe.

use super::{Pass, Shape, Task};

/// What a device does.
pub fn program(shape: Shape, device: usize) -> Vec<Task> {
    let num_warm_up = shape.num_devices - 1 - device;
    alternate(
        shape.num_microbatches,
        num_warm_up,
        |i| Task::new(Pass::Forward, i, 0),
        |i| Task::new(Pass::Backward, i, 0),
    )
}

/// Some forwards, then forward and backward in turn, then the backwards that are left.
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
