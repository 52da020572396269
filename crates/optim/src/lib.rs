//! Optimizers, gradient clipping by the global norm, learning-rate schedules and `fp16` loss
//! scaling.
//!
//! Everything works on flat buffers, one per block, and on a list of [`Slot`]s that names the
//! parameters in them. Optimizers do not know the model or the other ranks.
//!
//! # Layout
//! - [`lr`]: the learning rate of each step.
//! - [`clip`]: gradient norms and clipping.
//! - [`loss_scale`]: static and dynamic loss scaling for `fp16`.
//! - [`optimizer`]: the optimizer of a rank, with its state; `rule`: the seam of update rules;
//!   `rules`: one file a rule.
//! - [`newton_schulz`]: orthogonalisation of matrices, for Muon; [`factored`]: second moments of
//!   rows and columns, for Adafactor; `eight_bit`: moments of eight bits.
//! - [`update`]: quantities of one step.
//! - [`state`]: optimizer state in memory or offloaded to a file.
//! - [`phases`]: spans of steps with a fixed set of trained parameters.
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
//! let (tensor, piece, first, shape, decay, matrix) = (0, 0, 0, [1, 2], true, None);
//! let slots = [Slot { block: 0, name, tensor, piece, range, grads, first, shape, decay, matrix }];
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

mod eight_bit;
pub mod factored;
pub mod newton_schulz;
pub mod optimizer;
mod rule;
mod rules;
pub mod state;
pub mod update;

pub mod phases;

pub use clip::{CHUNK_LEN, Clip, ClipPlan, GlobalNorm};
pub use loss_scale::{LossScaler, OverflowMonitor};
pub use lr::LearningRate;
pub use optimizer::Optimizer;
pub use phases::Phases;
pub use update::{TensorNorms, Update, UpdateInputs, WholeTensors};

use std::ops::Range;

/// A parameter, or a part of one, in the flat buffers of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Index of the block.
    pub block: usize,
    /// The parameter's name, unique in the model.
    pub name: String,
    /// Index among all parameters of the model, by name.
    pub tensor: usize,
    /// Piece of the parameter: tensor-parallel shards hold one piece each.
    pub piece: usize,
    /// Elements in the parameter buffer.
    pub range: Range<usize>,
    /// Elements in the gradient buffer, which has no room for frozen parameters.
    pub grads: Range<usize>,
    /// Index of the first of them in the parameter, pieces concatenated; a whole number of norm
    /// chunks from the start of the piece.
    pub first: usize,
    /// Rows and columns of the whole tensor; a vector is one row.
    pub shape: [usize; 2],
    /// Whether weight decay applies.
    pub decay: bool,
    /// Rows and columns of the whole tensor, if it is a matrix inside the network: not of the
    /// embedding or the head.
    pub matrix: Option<[usize; 2]>,
}
