//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases but
//! those of Qwen2 on q, k and v; Qwen3 normalises the heads of q and k.
//!
//! Names and shapes are those of `LlamaForCausalLM` in Hugging Face checkpoints. q, k and v are
//! three tensors in a file and one product here, because they are contiguous; so are gate and up.

use crate::attention::Attention;
use crate::column_parallel::ColumnParallel;
use crate::dropout::Dropout;
use crate::feed_forward::{Activation, FeedForward};
use crate::formats::Formats;
use crate::head_norms::HeadNorms;
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
    Arc::new(RopeAngles::new(model))
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
    let has_bias = model.variant.qkv_bias;
    let qkv = column_parallel(&prefix, &outputs, model.width, has_bias, of, params);
    let tp_shards = of.0.clone();
    let of_shard = (heads / tp_shards.num, kv_heads / tp_shards.num);
    let head_norms = model.variant.qk_norm.then(|| head_norms(model, &prefix, of_shard, params));
    let out = row_parallel(&prefix, "o", heads * head_dim, model.width, residual, of, params);
    let (heads, kv_heads) = of_shard;
    let norm_linear = NormLinear { norm, product: qkv, tp_shards };
    let rope = Some(rope);
    Attention { heads, kv_heads, head_dim, norm_linear, head_norms, rope, out, dropout }
}

/// Normalisations of queries and keys, each with one weight for all heads.
fn head_norms(
    model: &Model,
    prefix: &str,
    (heads, kv_heads): (usize, usize),
    params: &mut ParamList,
) -> HeadNorms {
    let (width, eps) = (model.head_dim(), model.norm_eps);
    let [query, key] = ["q", "k"].map(|name| {
        let at = params.push(format!("{prefix}.{name}_norm.weight"), &[width], Init::Ones);
        Norm { kind: NormKind::Rms, width, eps, at }
    });
    HeadNorms { query, key, heads, kv_heads }
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
    let up = column_parallel(&prefix, &outputs, model.width, false, of, params);
    let down = row_parallel(&prefix, "down", model.ffn, model.width, residual, of, params);
    let norm_linear = NormLinear { norm, product: up, tp_shards: of.0.clone() };
    FeedForward { norm_linear, activation: Activation::SwiGlu, down, dropout }
}

/// Column-parallel layer of the tensors `{prefix}.{name}_proj.weight`, and of their biases where it
/// has them, each with its number of outputs; a shard has its part of each, contiguous, and
/// multiplies with all of them at once.
fn column_parallel(
    prefix: &str,
    outputs: &[(&str, usize)],
    num_inputs: usize,
    has_bias: bool,
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
        let with_bias = outputs.iter().filter(|_| has_bias);
        let ranges = with_bias.map(|&(name, num_outputs)| {
            let (shape, own) = ([num_outputs], tp_shards.range(num_outputs, shard));
            let piece = Piece::cols(&shape, shard, tp_shards.num, vec![own]);
            params.push_piece(format!("{prefix}.{name}_proj.bias"), &shape, piece, Init::Zeros)
        });
        let bias = ranges.reduce(|all, next| all.start..next.end);
        Linear { num_inputs, num_outputs, layout: WeightLayout::OutIn, weight, bias, formats }
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
