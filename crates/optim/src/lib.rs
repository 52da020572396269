//! From gradients to steps: optimizers, clipping by the global norm, learning-rate courses.
//!
//! Everything works on flat buffers, one per block, and on a list of [`Slot`]s that says which
//! parameters they hold; nothing here knows what the parameters mean or who else holds them.
//!
//! # Layout
//! - [`lr`]: the learning rate of each step.
//! - [`clip`]: the global norm and the scale that keeps it within a limit.
//! - [`optimizer`]: SGD, momentum and AdamW with their state.
//!
//! # Example
//! ```
//! use lockstep_config::{LrSchedule, Optim, OptimName};
//! use lockstep_optim::{GlobalNorm, LearningRate, Optimizer, Slot, Update};
//! use lockstep_tensor::{Cpu, Isa};
//!
//! let settings = Optim {
//!     name: OptimName::Sgd,
//!     lr: 0.5,
//!     weight_decay: 0.0,
//!     clip: 1.0,
//!     warmup_steps: 0,
//!     schedule: LrSchedule::Constant,
//!     final_lr_fraction: 0.0,
//!     beta1: 0.9,
//!     beta2: 0.95,
//!     eps: 1e-8,
//!     momentum: 0.9,
//! };
//! let cpu = Cpu::single(Isa::detect());
//! let name = "w".to_string();
//! let slots = [Slot { block: 0, name, range: 0..2, first: 0, decay: true }];
//! let (mut params, grads) = (vec![1.0, 1.0], [vec![0.0, 2.0]]);
//!
//! let clip = GlobalNorm::new(&slots).clip(&cpu, |block| &grads[block], settings.clip);
//! let lr = LearningRate::new(&settings, 100).at(0);
//! let update = Update { count: 1, lr, grad_scale: clip.scale };
//! Optimizer::new(&settings, &slots).step_block(&cpu, &update, 0, &mut params, &grads[0]);
//! assert_eq!(params, [1.0, 0.5]);
//! ```

pub mod lr;

pub mod clip;

pub mod optimizer;

pub use clip::{CHUNK_LEN, Clip, GlobalNorm};
pub use lr::LearningRate;
pub use optimizer::{Optimizer, Update};

use std::ops::Range;

/// A parameter, or a part of one, in the flat buffer of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which buffer.
    pub block: usize,
    /// The parameter's name, unique in the model.
    pub name: String,
    /// Its elements in the buffer.
    pub range: Range<usize>,
    /// Which element of the parameter the first of them is; a whole number of chunks of the norm.
    pub first: usize,
    /// Whether weight decay pulls on it.
    pub decay: bool,
}
