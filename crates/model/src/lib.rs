//! Transformers and small test problems as lists of blocks, independent of ranks and layouts.
//!
//! # Layout
//! - [`block`]: the interface between the runtime and a model; read it first.
//! - [`param`]: layout of a block's flat buffer; [`init`]: initial weights; [`grads`]: gradients.
//! - [`scratch`]: temporary buffers without allocation.
//! - [`blueprint`]: a model as blocks, with counts and FLOPs; [`describe()`] makes one from a
//!   recipe; [`teacher`]: the frozen model that a student learns from.
//! - `llama`, `gpt2`: the families and those that are of their parts.
//! - `embedding`, `layer` (made of `attention` and `feed_forward`), `head`: the blocks;
//!   `chunked_head`: the head without a place for all logits; `logit_transform`: changes of logits.
//! - [`tensor_shards`], [`collectives`], `reduction_tree`: tensor and sequence parallelism;
//!   `column_parallel`, `row_parallel`: the two kinds of sharded linear layer; `row_sums`:
//!   gradients of norms and biases; `deferred_weight_grad`: the split backward pass;
//!   `stream_gradient`: halves beside each other.
//! - [`lora`]: low-rank adapters of the linear layers; [`frozen_weight`]: weights in four bits
//!   beside them; [`mup`]: width transfer;
//!   [`mup_folding`]: its removal for exports.
//! - [`linear`], `norm`, `norm_linear`, `dropout`, `rope`: operations of a device on ranges of a
//!   flat buffer.
//! - [`problem`]: a classifier and three convex problems, with their optimum.
//! - [`decode`]: token-by-token generation with a key-value cache; [`sampling`]: choice of the next
//!   token.
//!
//! # Example
//! ```
//! use lockstep_config::{Family, GptNeox, LlamaVariant, Lora, Model, Mup, Problem};
//!
//! let gpt2 = Model {
//!     family: Family::Gpt2,
//!     layers: 12,
//!     width: 768,
//!     heads: 12,
//!     kv_heads: 12,
//!     ffn: 3072,
//!     vocab: 50257,
//!     context: 1024,
//!     tied: true,
//!     dropout: 0.1,
//!     norm_eps: 1e-5,
//!     rope_theta: 10000.0,
//!     variant: LlamaVariant::PLAIN,
//!     gpt_neox: GptNeox::PYTHIA,
//!     mup: Mup::OFF,
//!     lora: Lora::NONE,
//!     problem: Problem::NONE,
//! };
//! let blueprint = lockstep_model::describe(&gpt2);
//! assert_eq!(blueprint.num_params(), 124_439_808);
//! assert_eq!(blueprint.blocks[1].params()[2].name, "transformer.h.0.attn.c_attn.weight");
//! ```

pub mod block;
pub mod grads;
pub mod param;
pub mod scratch;

pub mod blueprint;
mod describe;
pub mod teacher;

pub mod collectives;
mod reduction_tree;
pub mod tensor_shards;

mod gpt2;
mod llama;

mod chunked_head;
mod embedding;
mod head;
mod layer;
mod logit_transform;

mod attention;
mod feed_forward;
mod head_norms;

mod deferred_weight_grad;
mod norm_linear;
mod stream_gradient;

mod column_parallel;
mod row_parallel;
mod row_sums;

pub mod frozen_weight;
pub mod lora;
pub mod mup;
pub mod mup_folding;

mod dropout;
pub mod formats;
pub mod linear;
mod norm;
mod rope;

pub mod problem;

pub mod decode;
pub mod init;
pub mod sampling;

pub use block::{
    Block, BlockIo, CachedSequence, Context, DecodeContext, Flops, IGNORE, Microbatch,
    MicrobatchShape, Mode, Pass, ProductPlan, Recompute, Saved, SavedLen,
};
pub use blueprint::{Blueprint, Mirror};
pub use collectives::{CollectiveCall, CollectiveKind, SingleRank, TensorCollectives};
pub use decode::Decoder;
pub use describe::{describe, describe_in, describe_shards, describe_student, precision_of};
pub use formats::Formats;
pub use grads::Grads;
pub use linear::{Linear, WeightLayout};
pub use param::{Init, Param, ParamList, Piece};
pub use scratch::{Frame, Scratch};
pub use tensor_shards::TensorShards;
