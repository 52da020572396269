//! From gradients to steps: optimizers, clipping by the global norm, learning-rate courses.
//!
//! Everything works on flat buffers, one per block, and on a list of [`Slot`]s that says which
//! parameters they hold; nothing here knows what the parameters mean or who else holds them.
//!
//! # Layout
//! - [`lr`]: the learning rate of each step.
//! - [`clip`]: norms, and the scales that keep them within limits.
//! - [`loss_scale`]: what the loss is multiplied by in `fp16`.
//! - [`optimizer`]: SGD, momentum, Nesterov, Adam, AdamW, LARS and LAMB with their state.
//! - [`state`]: where that state is kept.
//! - [`phases`]: which parameters are trained when.
//!
//! # Example
//! ```
//! use lockstep_config::{LrSchedule, Optim, OptimName, Recipe};
//! use lockstep_optim::{ClipPlan, GlobalNorm, LearningRate, Optimizer, Slot, Update};
//! use lockstep_tensor::{Cpu, Isa};
//!
//! let settings = Optim {
//!     name: OptimName::Sgd,
//!     lr: 0.5,
//!     weight_decay: 0.0,
//!     warmup_steps: 0,
//!     schedule: LrSchedule::Constant,
//!     ..Recipe::default().optim
//! };
//! let cpu = Cpu::single(Isa::detect());
//! let (name, range, grads) = ("w".to_string(), 0..2, 0..2);
//! let slots = [Slot { block: 0, name, tensor: 0, piece: 0, range, grads, first: 0, decay: true }];
//! let (mut params, grads) = (vec![1.0, 1.0], [vec![0.0, 2.0]]);
//!
//! let plan = ClipPlan::global(1.0);
//! let clip = GlobalNorm::new(&slots).clip(&cpu, |block| &grads[block], &plan);
//! let lr = LearningRate::new(&settings, 100).at(0, 16);
//! let update = Update { count: 1, lr, clip };
//! Optimizer::new(&settings, &slots).step_block(&cpu, &update, 0, &mut params, &grads[0]);
//! assert_eq!(params, [1.0, 0.5]);
//! ```

pub mod lr;

pub mod clip;

pub mod loss_scale;

pub mod optimizer;
pub mod state;

pub mod phases;

pub use clip::{CHUNK_LEN, Clip, ClipPlan, GlobalNorm};
pub use loss_scale::{LossScaler, OverflowWatch};
pub use lr::LearningRate;
pub use optimizer::{Optimizer, TensorNorms, Update};
pub use phases::Phases;

use std::ops::Range;

/// A parameter, or a part of one, in the flat buffers of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which buffers.
    pub block: usize,
    /// The parameter's name, unique in the model.
    pub name: String,
    /// Its number among all parameters of the model, by name.
    pub tensor: usize,
    /// Which piece of the parameter, where slices of the model have a piece each.
    pub piece: usize,
    /// Its elements in the buffer of parameters.
    pub range: Range<usize>,
    /// Its elements in the buffer of gradients, in which nothing that is frozen has a place.
    pub grads: Range<usize>,
    /// Which element of the parameter the first of them is, pieces one behind the other; a whole
    /// number of chunks of the norm from the start of the piece.
    pub first: usize,
    /// Whether weight decay pulls on it.
    pub decay: bool,
}
