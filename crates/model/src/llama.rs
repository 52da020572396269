//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.
//!
//! Its descendants differ by parts: Qwen2 has biases on q, k and v, Qwen3 normalises the heads of q
//! and k, Mistral has a sliding window. OLMo 2 normalises q and k as a whole, and the outputs of
//! attention and feed-forward instead of their inputs; Gemma 2 both, with GeGLU and soft caps.
//! Phi-3 is Llama with fused tensors.
//!
//! Names and shapes are those of `LlamaForCausalLM` in Hugging Face checkpoints. q, k and v are
//! three tensors in a file and one product here, because they are contiguous; so are gate and up.
//! Phi-3 has one tensor for each product.

use crate::attention::{Attention, Scores};
use crate::column_parallel::ColumnParallel;
use crate::dropout::Dropout;
use crate::feed_forward::{Activation, FeedForward};
use crate::formats::Formats;
use crate::frozen_weight::{BaseFormat, LayerParams, TensorPiece};
use crate::head_norms::HeadNorms;
use crate::layer::Layer;
use crate::linear::{Linear, WeightLayout};
use crate::lora::{AdapterParams, ColumnAdapters, RowAdapter};
use crate::mup;
use crate::norm::{Norm, NormKind};
use crate::norm_linear::NormLinear;
use crate::param::{Init, ParamList, Piece, Run};
use crate::rope::RopeAngles;
use crate::row_parallel::RowParallel;
use crate::tensor_shards::TensorShards;
use lockstep_config::{LoraTarget, Model, ModelType};
use std::sync::Arc;

/// Name of the embedding.
pub(crate) const EMBEDDING: &str = "model.embed_tokens";
/// Prefix of the last normalisation.
pub(crate) const FINAL_NORM: &str = "model.norm";
/// Name of the output projection.
pub(crate) const HEAD: &str = "lm_head";

/// Names of the normalisations of a layer, where a model has them.
struct LayerNorms {
    before_attention: Option<&'static str>,
    after_attention: Option<&'static str>,
    before_feed_forward: Option<&'static str>,
    after_feed_forward: Option<&'static str>,
}

impl LayerNorms {
    const LLAMA: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_feed_forward: Some("post_attention_layernorm"),
        after_feed_forward: None,
    };

    const OLMO2: Self = Self {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_feed_forward: None,
        after_feed_forward: Some("post_feedforward_layernorm"),
    };

    const GEMMA2: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_feed_forward: Some("pre_feedforward_layernorm"),
        after_feed_forward: Some("post_feedforward_layernorm"),
    };

    const fn of(model: &Model) -> &'static Self {
        match model.variant.model_type {
            Some(ModelType::Olmo2) => &Self::OLMO2,
            Some(ModelType::Gemma2) => &Self::GEMMA2,
            _ => &Self::LLAMA,
        }
    }
}

/// Whether a model is of this type.
fn is(model: &Model, model_type: ModelType) -> bool {
    model.variant.model_type == Some(model_type)
}

/// Factor on embedded tokens.
pub(crate) fn embedding_scale(model: &Model) -> Option<f32> {
    is(model, ModelType::Gemma2).then(|| (model.width as f32).sqrt())
}

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
    base: Option<&BaseFormat>,
) -> Layer {
    let name = format!("model.layers.{index}");
    let (rate, adapter_rate) = (model.dropout, model.lora.dropout);
    let dropout = Dropout { rate, adapter_rate, block: index as u64 + 1 };
    let mut params = LayerParams { params: ParamList::default(), base };
    let mut attention =
        attention(model, of, (&name, index), &mut params, Arc::clone(rope), dropout);
    let mut feed_forward = feed_forward(model, of, &name, &mut params, dropout);
    let LayerParams { mut params, .. } = params;
    if model.lora.is_on() {
        attach_adapters(model, of, &name, &mut params, (&mut attention, &mut feed_forward));
    }
    let (width, params, is_frozen) = (model.width, params.finish(), model.lora.is_on());
    let is_parallel = false;
    Layer { name, width, params, attention, feed_forward, is_parallel, is_frozen }
}

/// Appends the adapters of a layer, whose parameters are contiguous: their gradients are one run.
fn attach_adapters(
    model: &Model,
    (tp_shards, formats): (&TensorShards, Formats),
    layer: &str,
    params: &mut ParamList,
    (attention, feed_forward): (&mut Attention, &mut FeedForward),
) {
    let mut params = AdapterParams { model, tp_shards, formats, params };
    let prefix = format!("{layer}.self_attn");
    let qkv = [LoraTarget::Query, LoraTarget::Key, LoraTarget::Value];
    attention.norm_linear.adapters = ColumnAdapters::new(&mut params, &prefix, &qkv);
    attention.out.adapter = RowAdapter::new(&mut params, &prefix, LoraTarget::Output);
    let prefix = format!("{layer}.mlp");
    let gate_up = [LoraTarget::Gate, LoraTarget::Up];
    feed_forward.norm_linear.adapters = ColumnAdapters::new(&mut params, &prefix, &gate_up);
    feed_forward.down.adapter = RowAdapter::new(&mut params, &prefix, LoraTarget::Down);
}

/// A normalisation: one weight.
pub(crate) fn norm(model: &Model, prefix: &str, params: &mut ParamList) -> Norm {
    let (kind, init) = if is(model, ModelType::Gemma2) {
        (NormKind::OffsetRms, Init::Zeros)
    } else {
        (NormKind::Rms, Init::Ones)
    };
    let at = params.push(format!("{prefix}.weight"), &[model.width], init);
    Norm { kind, width: model.width, eps: model.norm_eps, at }
}

/// A normalisation of a layer, where the model has it.
fn layer_norm(
    model: &Model,
    layer: &str,
    name: Option<&str>,
    params: &mut ParamList,
) -> Option<Norm> {
    name.map(|name| norm(model, &format!("{layer}.{name}"), params))
}

/// Changes of the scores of layer `index`. Every second layer of Gemma 2 has no window.
fn scores(model: &Model, index: usize) -> Scores {
    let variant = &model.variant;
    let is_global = is(model, ModelType::Gemma2) && !index.is_multiple_of(2);
    let mup_scale = mup::score_scale(model);
    Scores {
        scale: variant.query_scalar.map(|scalar| 1.0 / (scalar as f32).sqrt()).or(mup_scale),
        soft_cap: variant.attention_soft_cap.map(|cap| cap as f32),
        window: variant.sliding_window.filter(|window| !is_global && *window < model.context),
        has_alibi: false,
    }
}

fn attention(
    model: &Model,
    of: (&TensorShards, Formats),
    (layer, index): (&str, usize),
    params: &mut LayerParams<'_>,
    rope: Arc<RopeAngles>,
    dropout: Dropout,
) -> Attention {
    let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
    let residual = mup::residual_projection(model);
    let norms = LayerNorms::of(model);
    let norm = layer_norm(model, layer, norms.before_attention, &mut params.params);
    let norm = norm.unwrap_or_else(|| Norm::identity(model.width));
    let outputs = [("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)];
    let prefix = format!("{layer}.self_attn");
    let has_bias = model.variant.qkv_bias;
    let fused = is(model, ModelType::Phi3).then_some("qkv");
    let inputs = (model.width, mup::hidden_matrix(model));
    let qkv = column_parallel(&prefix, &outputs, fused, inputs, has_bias, of, params);
    let tp_shards = of.0.clone();
    let of_shard = (heads / tp_shards.num, kv_heads / tp_shards.num);
    let has_head_norms = model.variant.qk_norm || is(model, ModelType::Olmo2);
    let head_norms =
        has_head_norms.then(|| head_norms(model, &prefix, of_shard, &mut params.params));
    let mut out = row_parallel(&prefix, "o", heads * head_dim, model.width, residual, of, params);
    out.post_norm = layer_norm(model, layer, norms.after_attention, &mut params.params);
    let (heads, kv_heads) = of_shard;
    let adapters = ColumnAdapters::none(of.1);
    let norm_linear = NormLinear { norm, product: qkv, adapters, tp_shards };
    let rope = Some(rope);
    let scores = scores(model, index);
    Attention { heads, kv_heads, head_dim, norm_linear, head_norms, rope, scores, out, dropout }
}

/// Normalisations of queries and keys: of each head with one weight, in OLMo 2 over all heads.
fn head_norms(
    model: &Model,
    prefix: &str,
    (heads, kv_heads): (usize, usize),
    params: &mut ParamList,
) -> HeadNorms {
    let (head_dim, eps) = (model.head_dim(), model.norm_eps);
    let ([heads, kv_heads], widths) = if is(model, ModelType::Olmo2) {
        ([1, 1], [heads * head_dim, kv_heads * head_dim])
    } else {
        ([heads, kv_heads], [head_dim; 2])
    };
    let mut norm = |name: &str, width: usize| {
        let at = params.push(format!("{prefix}.{name}_norm.weight"), &[width], Init::Ones);
        Norm { kind: NormKind::Rms, width, eps, at }
    };
    let (query, key) = (norm("q", widths[0]), norm("k", widths[1]));
    HeadNorms { query, key, heads, kv_heads }
}

fn feed_forward(
    model: &Model,
    of: (&TensorShards, Formats),
    layer: &str,
    params: &mut LayerParams<'_>,
    dropout: Dropout,
) -> FeedForward {
    let residual = mup::residual_projection(model);
    let norms = LayerNorms::of(model);
    let norm = layer_norm(model, layer, norms.before_feed_forward, &mut params.params);
    let norm = norm.unwrap_or_else(|| Norm::identity(model.width));
    let outputs = [("gate", model.ffn), ("up", model.ffn)];
    let prefix = format!("{layer}.mlp");
    let fused = is(model, ModelType::Phi3).then_some("gate_up");
    let inputs = (model.width, mup::hidden_matrix(model));
    let up = column_parallel(&prefix, &outputs, fused, inputs, false, of, params);
    let mut down = row_parallel(&prefix, "down", model.ffn, model.width, residual, of, params);
    down.post_norm = layer_norm(model, layer, norms.after_feed_forward, &mut params.params);
    let (adapters, tp_shards) = (ColumnAdapters::none(of.1), of.0.clone());
    let norm_linear = NormLinear { norm, product: up, adapters, tp_shards };
    let is_geglu = is(model, ModelType::Gemma2);
    let activation = if is_geglu { Activation::GeGlu } else { Activation::SwiGlu };
    FeedForward { norm_linear, activation, down, dropout }
}

/// Column-parallel layer of the tensors `{prefix}.{name}_proj.weight`, and of their biases where it
/// has them, each with its number of outputs; a shard has its part of each, contiguous, and
/// multiplies with all of them at once. With `fused`, they are rows of one tensor of that name.
fn column_parallel(
    prefix: &str,
    outputs: &[(&str, usize)],
    fused: Option<&str>,
    (num_inputs, init): (usize, Init),
    has_bias: bool,
    (tp_shards, formats): (&TensorShards, Formats),
    params: &mut LayerParams<'_>,
) -> ColumnParallel {
    let num_outputs =
        outputs.iter().map(|&(_, num_outputs)| num_outputs).sum::<usize>() / tp_shards.num;
    let (layout, sizes) = (WeightLayout::OutIn, [num_inputs, num_outputs]);
    let shards = tp_shards.local.clone().map(|shard| {
        if let Some(name) = fused {
            let name = format!("{prefix}.{name}_proj.weight");
            let tensor = fused_rows(name, outputs, (num_inputs, init), tp_shards, shard);
            let (weight, frozen) = params.weight(std::iter::once(tensor), sizes);
            return Linear { num_inputs, num_outputs, layout, weight, frozen, bias: None, formats };
        }
        let tensors = outputs.iter().map(|&(name, num_outputs)| {
            let shape = [num_outputs, num_inputs];
            let piece =
                Piece::rows(&shape, shard, tp_shards.num, tp_shards.range(num_outputs, shard));
            (format!("{prefix}.{name}_proj.weight"), shape, piece, init)
        });
        let (weight, frozen) = params.weight(tensors, sizes);
        let with_bias = outputs.iter().filter(|_| has_bias);
        let ranges = with_bias.map(|&(name, num_outputs)| {
            let (shape, own) = ([num_outputs], tp_shards.range(num_outputs, shard));
            let piece = Piece::cols(&shape, shard, tp_shards.num, vec![own]);
            let name = format!("{prefix}.{name}_proj.bias");
            params.params.push_piece(name, &shape, piece, Init::Zeros)
        });
        let bias = ranges.reduce(|all, next| all.start..next.end);
        Linear { num_inputs, num_outputs, layout, weight, frozen, bias, formats }
    });
    ColumnParallel { shards: shards.collect(), num_shards: tp_shards.num }
}

/// Rows of a shard in a fused tensor: its part of each output.
fn fused_rows(
    name: String,
    outputs: &[(&str, usize)],
    (num_inputs, init): (usize, Init),
    tp_shards: &TensorShards,
    shard: usize,
) -> TensorPiece {
    let mut start = 0;
    let rows = outputs.iter().map(|&(_, num_outputs)| {
        let own = tp_shards.range(num_outputs, shard);
        let rows = start + own.start..start + own.end;
        start += num_outputs;
        Run::from(rows)
    });
    let rows = rows.collect();
    let shape = [start, num_inputs];
    (name, shape, Piece::runs(&shape, shard, tp_shards.num, rows), init)
}

/// Row-parallel layer of the tensor `{prefix}.{name}_proj.weight`.
fn row_parallel(
    prefix: &str,
    name: &str,
    num_inputs: usize,
    num_outputs: usize,
    init: Init,
    (tp_shards, formats): (&TensorShards, Formats),
    params: &mut LayerParams<'_>,
) -> RowParallel {
    let shape = [num_outputs, num_inputs];
    let shards = tp_shards.local.clone().map(|shard| {
        let cols = tp_shards.range(num_inputs, shard);
        let piece = Piece::cols(&shape, shard, tp_shards.num, vec![cols]);
        let tensor = (format!("{prefix}.{name}_proj.weight"), shape, piece, init);
        let num_inputs = num_inputs / tp_shards.num;
        let (weight, frozen) = params.weight(std::iter::once(tensor), [num_inputs, num_outputs]);
        let layout = WeightLayout::OutIn;
        Linear { num_inputs, num_outputs, layout, weight, frozen, bias: None, formats }
    });
    let (shards, tp_shards) = (shards.collect(), tp_shards.clone());
    RowParallel { shards, bias: None, adapter: None, post_norm: None, tp_shards }
}
