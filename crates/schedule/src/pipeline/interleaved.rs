//! Interleaved 1F1B: every device holds v stages that lie p apart, so that the pipeline fills v
//! times as fast.
//!
//! Microbatches go in groups of p: a group passes through a device's first stage, then its second,
//! and so on, and backward the other way round. The idle time falls by a factor of v. The price is
//! v times the messages, and a longer warm-up, which keeps up to (p-1)/v microbatches more.

use super::one_f_one_b::alternate;
use super::{Pass, Shape, Task};

/// What a device does.
pub fn program(shape: Shape, device: usize) -> Vec<Task> {
    let Shape { num_devices, num_chunks, num_microbatches } = shape;
    let num_tasks = num_microbatches * num_chunks;
    // A microbatch of the first group needs all of its chunks forward before any goes back.
    let num_warm_up = 2 * (num_devices - 1 - device) + (num_chunks - 1) * num_devices;
    let place = |index: usize| {
        let (group, place) =
            (index / (num_devices * num_chunks), index % (num_devices * num_chunks));
        (group * num_devices + place % num_devices, place / num_devices)
    };
    let forward = |index| {
        let (microbatch, chunk) = place(index);
        Task::new(Pass::Forward, microbatch, chunk)
    };
    let backward = |index| {
        let (microbatch, chunk) = place(index);
        Task::new(Pass::Backward, microbatch, num_chunks - 1 - chunk)
    };
    alternate(num_tasks, num_warm_up, forward, backward)
}
