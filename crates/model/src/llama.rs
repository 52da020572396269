//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.
//!
//! Names and shapes are those of `LlamaForCausalLM` in Hugging Face checkpoints. q, k and v are
//! three tensors in a file and one product here, because they are contiguous; so are gate and up.

use crate::attention::Attention;
use crate::column_parallel::ColumnParallel;
use crate::dropout::Dropout;
use crate::feed_forward::{Activation, FeedForward};
use crate::formats::Formats;
use crate::init;
use crate::layer::Layer;
use crate::linear::{Linear, WeightLayout};
use crate::norm::{Norm, NormKind};
use crate::norm_linear::NormLinear;
use crate::param::{Init, ParamList, Piece};
use crate::rope::RopeAngles;
use crate::row_parallel::RowParallel;
use crate::tensor_shards::TensorShards;
use lockstep_config::Model;
use std::sync::Arc;

/// Name of the embedding table.
pub(crate) const TOKEN_TABLE: &str = "model.embed_tokens.weight";
/// Prefix of the last normalisation.
pub(crate) const FINAL_NORM: &str = "model.norm";

/// RoPE angles of all positions, shared by all layers.
pub(crate) fn rope_angles(model: &Model) -> Arc<RopeAngles> {
    Arc::new(RopeAngles::new(model.head_dim(), model.context, model.rope_theta))
}

/// Layer number `index`.
pub(crate) fn layer(
    model: &Model,
    of: (&TensorShards, Formats),
    index: usize,
    rope: &Arc<RopeAngles>,
) -> Layer {
    let name = format!("model.layers.{index}");
    let dropout = Dropout { rate: model.dropout, block: index as u64 + 1 };
    let mut params = ParamList::default();
    let attention = attention(model, of, &name, &mut params, Arc::clone(rope), dropout);
    let feed_forward = feed_forward(model, of, &name, &mut params, dropout);
    Layer { name, width: model.width, params: params.finish(), attention, feed_forward }
}

/// A normalisation: one weight.
pub(crate) fn norm(model: &Model, prefix: &str, params: &mut ParamList) -> Norm {
    let at = params.push(format!("{prefix}.weight"), &[model.width], Init::Ones);
    Norm { kind: NormKind::Rms, width: model.width, eps: model.norm_eps, at }
}

fn attention(
    model: &Model,
    of: (&TensorShards, Formats),
    layer: &str,
    params: &mut ParamList,
    rope: Arc<RopeAngles>,
    dropout: Dropout,
) -> Attention {
    let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
    let residual = init::residual_projection(model.layers);
    let norm = norm(model, &format!("{layer}.input_layernorm"), params);
    let outputs = [("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)];
    let prefix = format!("{layer}.self_attn");
    let qkv = column_parallel(&prefix, &outputs, model.width, of, params);
    let out = row_parallel(&prefix, "o", heads * head_dim, model.width, residual, of, params);
    let tp_shards = of.0.clone();
    let (heads, kv_heads) = (heads / tp_shards.num, kv_heads / tp_shards.num);
    let norm_linear = NormLinear { norm, product: qkv, tp_shards };
    Attention { heads, kv_heads, head_dim, norm_linear, rope: Some(rope), out, dropout }
}

fn feed_forward(
    model: &Model,
    of: (&TensorShards, Formats),
    layer: &str,
    params: &mut ParamList,
    dropout: Dropout,
) -> FeedForward {
    let residual = init::residual_projection(model.layers);
    let norm = norm(model, &format!("{layer}.post_attention_layernorm"), params);
    let outputs = [("gate", model.ffn), ("up", model.ffn)];
    let prefix = format!("{layer}.mlp");
    let up = column_parallel(&prefix, &outputs, model.width, of, params);
    let down = row_parallel(&prefix, "down", model.ffn, model.width, residual, of, params);
    let norm_linear = NormLinear { norm, product: up, tp_shards: of.0.clone() };
    FeedForward { norm_linear, activation: Activation::SwiGlu, down, dropout }
}

/// Column-parallel layer of the tensors `{prefix}.{name}_proj.weight`, each with its number of
/// outputs; a shard has its part of each, contiguous, and multiplies with all of them at once.
fn column_parallel(
    prefix: &str,
    outputs: &[(&str, usize)],
    num_inputs: usize,
    (tp_shards, formats): (&TensorShards, Formats),
    params: &mut ParamList,
) -> ColumnParallel {
    let num_outputs =
        outputs.iter().map(|&(_, num_outputs)| num_outputs).sum::<usize>() / tp_shards.num;
    let shards = tp_shards.local.clone().map(|shard| {
        let ranges = outputs.iter().map(|&(name, num_outputs)| {
            let shape = [num_outputs, num_inputs];
            let piece =
                Piece::rows(&shape, shard, tp_shards.num, tp_shards.range(num_outputs, shard));
            params.push_piece(format!("{prefix}.{name}_proj.weight"), &shape, piece, init::MATRIX)
        });
        let weight = ranges.reduce(|all, next| all.start..next.end).expect("at least one tensor");
        Linear { num_inputs, num_outputs, layout: WeightLayout::OutIn, weight, bias: None, formats }
    });
    ColumnParallel { shards: shards.collect(), num_shards: tp_shards.num }
}

/// Row-parallel layer of the tensor `{prefix}.{name}_proj.weight`.
fn row_parallel(
    prefix: &str,
    name: &str,
    num_inputs: usize,
    num_outputs: usize,
    init: Init,
    (tp_shards, formats): (&TensorShards, Formats),
    params: &mut ParamList,
) -> RowParallel {
    let shape = [num_outputs, num_inputs];
    let shards = tp_shards.local.clone().map(|shard| {
        let cols = tp_shards.range(num_inputs, shard);
        let piece = Piece::cols(&shape, shard, tp_shards.num, vec![cols]);
        let weight = params.push_piece(format!("{prefix}.{name}_proj.weight"), &shape, piece, init);
        let num_inputs = num_inputs / tp_shards.num;
        Linear { num_inputs, num_outputs, layout: WeightLayout::OutIn, weight, bias: None, formats }
    });
    RowParallel { shards: shards.collect(), bias: None, tp_shards: tp_shards.clone() }
}
