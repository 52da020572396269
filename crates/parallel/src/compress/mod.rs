//! Gradient compression with error feedback.
//!
//! Every rank sums the gradients of its own micro-batches, compresses the sum, and all ranks add
//! the compressed sums of all. A *biased* method (top-k, sign, PowerSGD) drops the same kind of
//! information every step; with *error feedback* (Seide et al. 2014; Karimireddy et al. 2019) a
//! rank keeps the residual and adds it to the next gradient, so that all of it is sent eventually.
//! A tensor whose messages would be longer than the tensor itself (small tensors, or many ranks) is
//! sent uncompressed. Methods work tensor by tensor and draw random numbers by (seed, step, tensor,
//! rank), so results do not depend on buckets or threads; they do depend on the number of ranks.
//!
//! - `bit_packing`: integers of a few bits
//! - [`half_precision`]: two bytes an element; [`int8`], [`qsgd`]: fewer, with stochastic rounding
//! - [`top_k`], [`random_k`], [`dgc`]: sparsification; [`sign`]: one bit an element; [`power_sgd`]:
//!   low-rank factors; [`one_bit_adam`]: signs of Adam's momentum
//! - `step`: its tasks and state; `exchange`: the exchange of a step; `bucket_exchange`: that of
//!   one bucket, which overlaps with backward; `wire`: its buffers; `exchange_plan`: its calls and
//!   memory, in advance; `hierarchy`: uncompressed reduction within groups

pub mod bit_packing;
pub mod dgc;
pub mod half_precision;
pub mod int8;
pub mod one_bit_adam;
pub mod power_sgd;
pub mod qsgd;
pub mod random_k;
pub mod sign;
pub mod top_k;

mod bucket_exchange;
mod exchange;
mod exchange_plan;
mod hierarchy;
mod step;
mod wire;

#[cfg(test)]
pub(crate) mod testing;

pub use crate::measurements::CompressionStats;
pub use bucket_exchange::Stage;
pub use exchange_plan::{ExchangePlan, PlannedCall};
pub use step::{CompressedExchange, exchange_plan};

use lockstep_model::Blueprint;
use lockstep_optim::Slot;
use lockstep_tensor::Cpu;
use lockstep_tensor::random::Key;
use lockstep_tensor::simd::Isa;
use power_sgd::LowRank;

/// Compression method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// [`half_precision`] with `bf16`.
    Bf16,
    /// [`half_precision`] with `fp16`.
    F16,
    /// [`int8`].
    Int8,
    /// [`qsgd`].
    Qsgd {
        /// Bits per element, 2 to 8.
        bits: u32,
    },
    /// [`top_k`].
    TopK {
        /// Fraction of elements sent.
        ratio: f64,
    },
    /// [`random_k`].
    RandomK {
        /// Fraction of elements sent.
        ratio: f64,
    },
    /// [`dgc`].
    Dgc {
        /// Fraction of elements sent after the warm-up.
        ratio: f64,
        /// Length of the warm-up in steps.
        warmup_steps: u64,
        /// Momentum of each rank's local velocity.
        momentum: f32,
    },
    /// [`sign`].
    Sign,
    /// [`one_bit_adam`].
    OneBitAdam {
        /// Decay of Adam's momentum.
        beta1: f32,
    },
    /// [`power_sgd`].
    PowerSgd {
        /// Rank of the factors.
        rank: usize,
    },
}

/// Compression settings of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressionPlan {
    /// Method of all tensors without an override.
    pub method: Method,
    /// Whether the residual is added to the next gradient.
    pub error_feedback: bool,
    /// Seed of stochastic methods.
    pub seed: u64,
    /// Size of groups of consecutive ranks that reduce uncompressed; below 2 there are none.
    pub group: usize,
}

/// Shape of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) len: usize,
    /// Elements of a row; of vectors, all elements.
    pub(crate) row_len: usize,
    /// Tensor number, for random streams.
    pub(crate) number: u64,
}

impl Shape {
    /// Shape of a slot's parameter.
    fn of(slot: &Slot, blueprint: &Blueprint) -> Self {
        let len = slot.grads.len();
        let mut params = blueprint.params();
        let (_, param) = params.find(|(_, param)| param.name == slot.name).expect("a parameter");
        let row_len = if param.shape.len() == 2 { param.shape[1] } else { len };
        Self { len, row_len, number: slot.tensor as u64 }
    }

    fn low_rank(&self, rank: usize) -> LowRank {
        LowRank { rows: self.len / self.row_len, cols: self.row_len, rank }
    }
}

/// A vector in the messages of a method, to measure the time of reading them.
pub struct SampleMessage {
    method: Method,
    shape: Shape,
    message: Vec<u8>,
}

impl SampleMessage {
    /// Encodes a matrix; `None` for methods whose sums other ranks add on the way.
    pub fn new(cpu: &Cpu, method: Method, values: &[f32], row_len: usize) -> Option<Self> {
        let shape = Shape { len: values.len(), row_len, number: 0 };
        let mut message = Vec::new();
        (method.message_len(&shape) > 0).then(|| {
            method.encode(cpu.isa(), &shape, values, Key::new(0, "sample"), &mut message);
            Self { method, shape, message }
        })
    }

    /// Adds the decoded vector to a sum.
    pub fn add_to(&self, sum: &mut [f32]) {
        self.method.decode(&self.shape, &self.message, sum);
    }
}

impl Method {
    /// Whether a rank keeps a momentum for this method.
    fn has_momentum(self) -> bool {
        match self {
            Self::OneBitAdam { .. } => true,
            Self::Dgc { momentum, .. } => momentum > 0.0,
            _ => false,
        }
    }

    /// Method in effect in a step: DGC is top-k with a warm-up.
    fn in_step(self, step: u64) -> Self {
        match self {
            Self::Dgc { ratio, warmup_steps, .. } => {
                Self::TopK { ratio: dgc::ratio_in(step, ratio, warmup_steps) }
            }
            method => method,
        }
    }

    /// Bytes of a tensor's message in an all-gather.
    pub(crate) fn message_len(self, shape: &Shape) -> usize {
        match self {
            Self::Int8 => int8::message_len(shape.len),
            Self::Qsgd { bits } => qsgd::message_len(shape.len, bits),
            Self::TopK { ratio } | Self::Dgc { ratio, .. } => top_k::message_len(shape.len, ratio),
            Self::Sign | Self::OneBitAdam { .. } => sign::message_len(shape.len, shape.row_len),
            Self::Bf16 | Self::F16 | Self::RandomK { .. } | Self::PowerSgd { .. } => 0,
        }
    }

    /// Whether a tensor is cheaper uncompressed among `num_workers` ranks: an all-reduce moves
    /// about twice the tensor per rank, an all-gather of messages one message per rank.
    fn is_dense(self, shape: &Shape, num_workers: usize) -> bool {
        let dense = shape.len * size_of::<f32>();
        match self {
            Self::RandomK { ratio } => top_k::num_sent(shape.len, ratio) == shape.len,
            Self::PowerSgd { rank } => {
                let low_rank = shape.low_rank(rank);
                low_rank.rows < 2 || low_rank.sent() >= shape.len
            }
            _ => num_workers * self.message_len(shape) >= 2 * dense,
        }
    }

    /// Method of a tensor in a step; `None` where it is sent uncompressed.
    fn at_step(self, step: u64, shape: &Shape, num_workers: usize) -> Option<Self> {
        Some(self.in_step(step)).filter(|now| !now.is_dense(shape, num_workers))
    }

    /// Bytes that a rank sends of a tensor.
    fn written_bytes(self, shape: &Shape) -> usize {
        match self {
            Self::Bf16 | Self::F16 => shape.len * size_of::<u16>(),
            Self::RandomK { ratio } => top_k::num_sent(shape.len, ratio) * size_of::<f32>(),
            Self::PowerSgd { rank } => shape.low_rank(rank).sent() * size_of::<f32>(),
            method => method.message_len(shape),
        }
    }

    /// Encodes a tensor with an instruction set, on which no bit depends.
    pub(crate) fn encode(
        self,
        isa: Isa,
        shape: &Shape,
        values: &[f32],
        key: Key,
        message: &mut Vec<u8>,
    ) {
        match self {
            Self::Int8 => int8::encode(isa, values, key, message),
            Self::Qsgd { bits } => qsgd::encode(isa, values, bits, key, message),
            Self::TopK { ratio } | Self::Dgc { ratio, .. } => {
                top_k::encode(values, ratio, message);
            }
            Self::Sign | Self::OneBitAdam { .. } => sign::encode(values, shape.row_len, message),
            Self::Bf16 | Self::F16 | Self::RandomK { .. } | Self::PowerSgd { .. } => {
                unreachable!("these methods all-reduce")
            }
        }
    }

    /// Decodes a message and adds it to `into`.
    pub(crate) fn decode(self, shape: &Shape, message: &[u8], into: &mut [f32]) {
        match self {
            Self::Int8 => int8::decode(message, into),
            Self::Qsgd { bits } => qsgd::decode(message, bits, into),
            Self::TopK { ratio } | Self::Dgc { ratio, .. } => top_k::decode(message, ratio, into),
            Self::Sign | Self::OneBitAdam { .. } => sign::decode(message, shape.row_len, into),
            Self::Bf16 | Self::F16 | Self::RandomK { .. } | Self::PowerSgd { .. } => {
                unreachable!("these methods all-reduce")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_do_not_depend_on_the_instruction_set() {
        let values = testing::values(1500, 8);
        let shape = Shape { len: 1500, row_len: 30, number: 3 };
        for method in [Method::Int8, Method::Qsgd { bits: 3 }, Method::Sign] {
            let message = |isa| {
                let mut message = Vec::new();
                method.encode(isa, &shape, &values, Key::new(1, "isa"), &mut message);
                message
            };
            let portable = message(Isa::Portable);
            assert_eq!(portable, message(Isa::detect()), "{method:?}");
            assert_eq!(portable.len(), method.message_len(&shape));
        }
    }
}
