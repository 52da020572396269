//! Forward-only pipeline, for evaluation. Micro-batches pass through a device's first stage, then
//! through its second, and so on; no activations are saved.

use super::{Pass, Shape, Task};

/// Program of every device.
pub fn program(shape: Shape) -> Vec<Task> {
    let chunk =
        |chunk| (0..shape.num_microbatches).map(move |i| Task::new(Pass::Forward, i, chunk));
    (0..shape.num_chunks).flat_map(chunk).collect()
}
