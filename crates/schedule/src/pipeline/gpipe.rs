//! GPipe: all microbatches forward, then all of them backward.
//!
//! The simplest schedule, and the one that keeps most: no activation is let go before the last
//! microbatch is forward. Backward takes microbatches in ascending order, unlike the original, so
//! that weight gradients are summed as in every other schedule; the time is the same.

use super::{Pass, Shape, Task};

/// What every device does.
pub fn program(shape: Shape) -> Vec<Task> {
    let all = |pass| (0..shape.num_microbatches).map(move |i| Task::new(pass, i, 0));
    all(Pass::Forward).chain(all(Pass::Backward)).collect()
}
