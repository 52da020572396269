//! Forward only: what evaluation runs. Microbatches pass through a device's first stage, then
//! through its second, and so on; nothing is kept.

use super::{Pass, Shape, Task};

/// What every device does.
pub fn program(shape: Shape) -> Vec<Task> {
    let chunk =
        |chunk| (0..shape.num_microbatches).map(move |i| Task::new(Pass::Forward, i, chunk));
    (0..shape.num_chunks).flat_map(chunk).collect()
}
