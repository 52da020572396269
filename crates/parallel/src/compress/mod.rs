//! Compression: gradients travel as fewer bytes than they have.
//!
//! Every worker adds up the gradients of its own micro-batches, writes the sum in few bits, and all of them
//! add up what all of them wrote. A *biased* method (top-k, sign, PowerSGD) leaves something out
//! every time in the same way; with *error feedback* a worker keeps what it left out and adds it
//! to the next gradient, so that everything arrives at last. Tensors of which the message would be
//! longer than the tensor (small ones, or many workers) travel as they are. A method works tensor
//! by tensor and draws by (seed, step, tensor, worker), so results do not depend on buckets or
//! threads; on the number of workers they do.
//!
//! - `bits`: numbers of a few bits
//! - [`halves`]: two bytes; [`int8`], [`qsgd`]: fewer, rounded by chance
//! - [`top_k`], [`random_k`], [`dgc`]: few elements; [`sign`]: one bit each; [`power`]: thin
//!   matrices; [`one_bit`]: Adam's momentum in signs
//! - `exchange`: the step's exchange; `planned`: what it will take; `kept`: what is kept from step
//!   to step; `tiers`: groups that add up as they are

pub mod bits;
pub mod dgc;
pub mod halves;
pub mod int8;
pub mod one_bit;
pub mod power;
pub mod qsgd;
pub mod random_k;
pub mod sign;
pub mod top_k;

mod exchange;
mod kept;
mod planned;
mod tiers;

#[cfg(test)]
pub(crate) mod testing;

pub use exchange::Compression;
pub use planned::{PlannedCall, PlannedExchange};

use lockstep_model::Blueprint;
use lockstep_optim::Slot;
use lockstep_tensor::random::Key;
use power::Thin;

/// How gradients are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// See [`halves`].
    Bf16,
    /// See [`halves`].
    F16,
    /// See [`int8`].
    Int8,
    /// See [`qsgd`].
    Qsgd {
        /// Bits of an element, 2 to 8.
        bits: u32,
    },
    /// See [`top_k`].
    TopK {
        /// The share of elements that travel.
        ratio: f64,
    },
    /// See [`random_k`].
    RandomK {
        /// The share of elements that travel.
        ratio: f64,
    },
    /// See [`dgc`].
    Dgc {
        /// The share of elements that travel in the end.
        ratio: f64,
        /// Steps until then.
        warmup_steps: u64,
        /// Momentum of a worker's gradients.
        momentum: f32,
    },
    /// See [`sign`].
    Sign,
    /// See [`one_bit`].
    OneBitAdam {
        /// Decay of Adam's momentum.
        beta1: f32,
    },
    /// See [`power`].
    PowerSgd {
        /// Columns of the thin matrices.
        rank: usize,
    },
}

/// What a run asks of compression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressionPlan {
    /// How gradients are written, but for tensors that are written in a way of their own.
    pub method: Method,
    /// Whether what is left out is added to the next gradient.
    pub error_feedback: bool,
    /// Decides what is drawn.
    pub seed: u64,
    /// Consecutive workers that add up their gradients as they are; below 2 nobody does.
    pub group: usize,
}

/// What compression did in a step, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Σ‖Q(g) − g‖² / Σ‖g‖² of the workers' gradients, what they had kept included.
    pub delta: f64,
    /// The mean over workers of the norm of what is kept for later.
    pub residual_norm: f64,
    /// Bytes that a worker wrote.
    pub message_bytes: u64,
    /// Bytes of the same gradients as they are.
    pub dense_bytes: u64,
}

/// One tensor, as methods see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) len: usize,
    /// Elements of a row; of vectors all.
    pub(crate) row_len: usize,
    /// Its number, for drawing.
    pub(crate) number: u64,
}

impl Shape {
    /// Of what a worker steps of a parameter.
    fn of(slot: &Slot, blueprint: &Blueprint) -> Self {
        let len = slot.grads.len();
        let mut params = blueprint.params();
        let (_, param) = params.find(|(_, param)| param.name == slot.name).expect("a parameter");
        let row_len = if param.shape.len() == 2 { param.shape[1] } else { len };
        Self { len, row_len, number: slot.tensor as u64 }
    }

    fn thin(&self, rank: usize) -> Thin {
        Thin { rows: self.len / self.row_len, cols: self.row_len, rank }
    }
}

impl Method {
    /// Whether a worker keeps a momentum for it.
    fn has_momentum(self) -> bool {
        match self {
            Self::OneBitAdam { .. } => true,
            Self::Dgc { momentum, .. } => momentum > 0.0,
            _ => false,
        }
    }

    /// What it is in a step.
    fn in_step(self, step: u64) -> Self {
        match self {
            Self::Dgc { ratio, warmup_steps, .. } => {
                Self::TopK { ratio: dgc::ratio_in(step, ratio, warmup_steps) }
            }
            method => method,
        }
    }

    /// Bytes of a tensor's message where every worker's goes to every other.
    pub(crate) fn message_len(self, shape: &Shape) -> usize {
        match self {
            Self::Int8 => int8::message_len(shape.len),
            Self::Qsgd { bits } => qsgd::message_len(shape.len, bits),
            Self::TopK { ratio } | Self::Dgc { ratio, .. } => top_k::message_len(shape.len, ratio),
            Self::Sign | Self::OneBitAdam { .. } => sign::message_len(shape.len, shape.row_len),
            Self::Bf16 | Self::F16 | Self::RandomK { .. } | Self::PowerSgd { .. } => 0,
        }
    }

    /// Whether a tensor is better left as it is, among so many workers: an all-reduce moves twice
    /// the tensor, less a part of it, and a message goes to everybody.
    fn leaves_alone(self, shape: &Shape, num_workers: usize) -> bool {
        let dense = shape.len * size_of::<f32>();
        match self {
            Self::RandomK { ratio } => top_k::num_sent(shape.len, ratio) == shape.len,
            Self::PowerSgd { rank } => {
                let thin = shape.thin(rank);
                thin.rows < 2 || thin.sent() >= shape.len
            }
            _ => num_workers * self.message_len(shape) >= 2 * dense,
        }
    }

    /// How a tensor is written in a step, among so many workers; nothing where it travels as it is.
    fn of_tensor_in(self, step: u64, shape: &Shape, num_workers: usize) -> Option<Self> {
        Some(self.in_step(step)).filter(|now| !now.leaves_alone(shape, num_workers))
    }

    /// Bytes that a worker writes of a tensor.
    fn written_bytes(self, shape: &Shape) -> usize {
        match self {
            Self::Bf16 | Self::F16 => shape.len * size_of::<u16>(),
            Self::RandomK { ratio } => top_k::num_sent(shape.len, ratio) * size_of::<f32>(),
            Self::PowerSgd { rank } => shape.thin(rank).sent() * size_of::<f32>(),
            method => method.message_len(shape),
        }
    }

    /// Writes a tensor.
    pub(crate) fn encode(self, shape: &Shape, values: &[f32], key: Key, message: &mut Vec<u8>) {
        match self {
            Self::Int8 => int8::encode(values, key, message),
            Self::Qsgd { bits } => qsgd::encode(values, bits, key, message),
            Self::TopK { ratio } | Self::Dgc { ratio, .. } => {
                top_k::encode(values, ratio, message);
            }
            Self::Sign | Self::OneBitAdam { .. } => sign::encode(values, shape.row_len, message),
            Self::Bf16 | Self::F16 | Self::RandomK { .. } | Self::PowerSgd { .. } => {
                unreachable!("these are added up")
            }
        }
    }

    /// Adds a tensor that was written.
    pub(crate) fn decode(self, shape: &Shape, message: &[u8], into: &mut [f32]) {
        match self {
            Self::Int8 => int8::decode(message, into),
            Self::Qsgd { bits } => qsgd::decode(message, bits, into),
            Self::TopK { ratio } | Self::Dgc { ratio, .. } => top_k::decode(message, ratio, into),
            Self::Sign | Self::OneBitAdam { .. } => sign::decode(message, shape.row_len, into),
            Self::Bf16 | Self::F16 | Self::RandomK { .. } | Self::PowerSgd { .. } => {
                unreachable!("these are added up")
            }
        }
    }
}
