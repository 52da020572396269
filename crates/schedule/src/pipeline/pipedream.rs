//! PipeDream (Narayanan et al. 2019, arXiv:1806.03377): 1F1B without flushes.
//!
//! Every micro-batch is a step: its weight gradients are applied immediately, and the next
//! micro-batch follows, so there is no bubble after the first p micro-batches. A micro-batch must
//! run backward with the weights of its forward pass, so a device keeps as many versions of its
//! weights as it has micro-batches in flight: p - s at stage s. Its gradients are p - 1 - s steps
//! stale, which is another algorithm than one worker's; this schedule is simulated and priced but
//! not trained with.

use super::{Shape, Task, one_f_one_b};

/// Program of a device: 1F1B over all micro-batches of the run.
pub fn program(shape: Shape, device: usize) -> Vec<Task> {
    one_f_one_b::program(shape, device)
}
