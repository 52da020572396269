//! GPipe (Huang et al. 2019): all micro-batches forward, then all of them backward.
//!
//! The bubble is (p-1)(F+B) per device; activations of all m micro-batches are alive. Backward
//! takes micro-batches in ascending order, unlike the original, so that weight gradients are summed
//! as in every other schedule; the time is the same.

use super::{Pass, Shape, Task};

/// Program of every device.
pub fn program(shape: Shape) -> Vec<Task> {
    let all = |pass| (0..shape.num_microbatches).map(move |i| Task::new(pass, i, 0));
    all(Pass::Forward).chain(all(Pass::Backward)).collect()
}
