//! PipeDream: 1F1B that never drains.
//!
//! Every microbatch is a step: its weight gradients are applied as soon as they are there, and the
//! next microbatch follows at once, so that after the first p microbatches nobody idles. A
//! microbatch must go backward with the weights that it went forward with, so a device keeps as
//! many versions of its weights as it has microbatches in flight: p - s at stage s. The microbatch
//! is learned from with weights that are p - 1 - s steps old, which is another algorithm than one
//! worker's; it is drawn and priced here, and not trained with. (arXiv:1806.03377.)

use super::{Shape, Task, one_f_one_b};

/// What a device does: 1F1B over all microbatches of the run.
pub fn program(shape: Shape, device: usize) -> Vec<Task> {
    one_f_one_b::program(shape, device)
}
