//! The transformers and small problems that Lockstep trains, as lists of blocks that know no ranks.
//!
//! # Layout
//! - [`block`]: the contract between runtime and mathematics; read it first.
//! - [`param`]: what a block's flat buffer holds; [`init`]: what it starts with.
//! - [`scratch`]: short-lived buffers without allocation.
//! - [`blueprint`]: [`describe`] turns a recipe's model into blocks, counts and FLOPs.
//! - `llama`, `gpt2`: the two families, as declarations.
//! - `embedding`, `layer` (made of `attention` and `feed_forward`), `head`: the blocks.
//! - [`shards`], [`collectives`], `reduction_tree`: a model cut for tensor and sequence parallelism; `column`
//!   and `row`, the two ways in which a linear layer is cut, and `row_sums`.
//! - `linear`, `norm`, `dropout`: kernels bound to places in a flat buffer.
//! - [`problem`]: a classifier and three convex problems made of blocks, with their optimum.
//! - [`decode`]: generating token by token through the same kernels.
//!
//! # Example
//! ```
//! use lockstep_config::{Family, Model, Problem};
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

pub mod collectives;
mod reduction_tree;
pub mod tensor_shards;

mod gpt2;
mod llama;

mod embedding;
mod head;
mod layer;

mod attention;
mod feed_forward;

mod deferred_weight_grad;
mod norm_linear;

mod column_parallel;
mod row_parallel;
mod row_sums;

mod dropout;
mod linear;
mod norm;

pub mod problem;

pub mod decode;
pub mod init;

pub use block::{
    Block, BlockIo, Context, DecodeContext, Flops, IGNORE, Microbatch, MicrobatchShape, Mode, Pass,
    Recompute, Saved, SavedLen,
};
pub use blueprint::{Blueprint, Mirror};
pub use collectives::{CollectiveCall, CollectiveKind, SingleRank, TensorCollectives};
pub use decode::Decoder;
pub use describe::{describe, describe_shards, precision_of};
pub use grads::Grads;
pub use param::{Init, Param, Piece};
pub use scratch::{Frame, Scratch};
pub use tensor_shards::TensorShards;
