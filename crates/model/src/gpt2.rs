//! The GPT-2 family (LayerNorm, GELU, biases everywhere), and GPT-NeoX and BLOOM of its parts.
//!
//! GPT-2 has learned positions; `c_attn` computes queries, keys and values at once, and matrices
//! are stored with a row per input ("Conv1D"). GPT-NeoX turns a part of each head, has a row per
//! output, those of `query_key_value` head by head, and adds both halves of a layer to its input.
//! BLOOM has such rows, biases of scores by distance, and a normalisation of the embedding. Names
//! and shapes are those of `GPT2LMHeadModel`, `GPTNeoXForCausalLM` and `BloomForCausalLM` in
//! Hugging Face checkpoints.

use crate::attention::{Attention, Scores};
use crate::column_parallel::ColumnParallel;
use crate::dropout::Dropout;
use crate::feed_forward::{Activation, FeedForward};
use crate::formats::Formats;
use crate::layer::Layer;
use crate::linear::{Linear, WeightLayout};
use crate::lora::ColumnAdapters;
use crate::mup;
use crate::norm::{Norm, NormKind};
use crate::norm_linear::NormLinear;
use crate::param::{Init, ParamList, Piece, Run};
use crate::rope::RopeAngles;
use crate::row_parallel::RowParallel;
use crate::tensor_shards::TensorShards;
use lockstep_config::{Family, GeluApproximate, Model};
use std::sync::Arc;

/// Tensors of a family by name, and the layout of its matrices.
pub(crate) struct Tensors {
    /// Embedding, a block of the model with one table.
    pub(crate) embedding: &'static str,
    /// Table of positions, where they are learned.
    pub(crate) position_table: Option<&'static str>,
    /// Prefix of the normalisation of the embedding, where there is one.
    pub(crate) embedding_norm: Option<&'static str>,
    /// Prefix of the last normalisation.
    pub(crate) final_norm: &'static str,
    /// Output projection, a block of the model.
    pub(crate) head: &'static str,
    /// Prefix of the layers.
    layers: &'static str,
    /// Prefixes of a layer's normalisations.
    norms: [&'static str; 2],
    /// Prefixes of attention's products.
    attention: [&'static str; 2],
    /// Prefixes of the feed-forward network's products.
    feed_forward: [&'static str; 2],
    layout: WeightLayout,
    /// Whether queries, keys and values alternate head by head.
    is_by_head: bool,
}

static GPT2: Tensors = Tensors {
    embedding: "transformer.wte",
    position_table: Some("transformer.wpe.weight"),
    embedding_norm: None,
    final_norm: "transformer.ln_f",
    head: "lm_head",
    layers: "transformer.h",
    norms: ["ln_1", "ln_2"],
    attention: ["attn.c_attn", "attn.c_proj"],
    feed_forward: ["mlp.c_fc", "mlp.c_proj"],
    layout: WeightLayout::InOut,
    is_by_head: false,
};

static GPT_NEOX: Tensors = Tensors {
    embedding: "gpt_neox.embed_in",
    position_table: None,
    embedding_norm: None,
    final_norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    layers: "gpt_neox.layers",
    norms: ["input_layernorm", "post_attention_layernorm"],
    attention: ["attention.query_key_value", "attention.dense"],
    feed_forward: ["mlp.dense_h_to_4h", "mlp.dense_4h_to_h"],
    layout: WeightLayout::OutIn,
    is_by_head: true,
};

static BLOOM: Tensors = Tensors {
    embedding: "transformer.word_embeddings",
    position_table: None,
    embedding_norm: Some("transformer.word_embeddings_layernorm"),
    final_norm: "transformer.ln_f",
    head: "lm_head",
    layers: "transformer.h",
    norms: ["input_layernorm", "post_attention_layernorm"],
    attention: ["self_attention.query_key_value", "self_attention.dense"],
    feed_forward: ["mlp.dense_h_to_4h", "mlp.dense_4h_to_h"],
    layout: WeightLayout::OutIn,
    is_by_head: true,
};

impl Tensors {
    /// Tensors of a model of these families.
    pub(crate) fn of(model: &Model) -> &'static Self {
        match model.family {
            Family::GptNeox => &GPT_NEOX,
            Family::Bloom => &BLOOM,
            _ => &GPT2,
        }
    }
}

/// RoPE angles of all positions, shared by all layers; none in a family without them.
pub(crate) fn rope_angles(model: &Model) -> Option<Arc<RopeAngles>> {
    (model.family == Family::GptNeox).then(|| Arc::new(RopeAngles::new(model)))
}

/// Layer number `index`.
pub(crate) fn layer(
    model: &Model,
    of: (&TensorShards, Formats),
    index: usize,
    rope: Option<&Arc<RopeAngles>>,
) -> Layer {
    let tensors = Tensors::of(model);
    let name = format!("{}.{index}", tensors.layers);
    let dropout = Dropout { rate: model.dropout, adapter_rate: 0.0, block: index as u64 + 1 };
    let mut list = ParamList::default();
    let mut builder = Builder { model, tensors, of, layer: &name, params: &mut list };
    let attention = builder.attention(rope, dropout);
    let feed_forward = builder.feed_forward(dropout);
    let is_parallel = model.family == Family::GptNeox && model.gpt_neox.parallel_residual;
    let (width, params, is_frozen) = (model.width, list.finish(), false);
    Layer { name, width, params, attention, feed_forward, is_parallel, is_frozen }
}

/// A normalisation: a weight and a bias.
pub(crate) fn norm(model: &Model, prefix: &str, params: &mut ParamList) -> Norm {
    let weight = params.push(format!("{prefix}.weight"), &[model.width], Init::Ones);
    let bias = params.push(format!("{prefix}.bias"), &[model.width], Init::Zeros);
    let at = weight.start..bias.end;
    Norm { kind: NormKind::Layer, width: model.width, eps: model.norm_eps, at }
}

/// Lays out the parameters of a layer.
struct Builder<'a> {
    model: &'a Model,
    tensors: &'a Tensors,
    of: (&'a TensorShards, Formats),
    layer: &'a str,
    params: &'a mut ParamList,
}

impl Builder<'_> {
    fn attention(&mut self, rope: Option<&Arc<RopeAngles>>, dropout: Dropout) -> Attention {
        let (model, tp_shards) = (self.model, self.of.0);
        let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
        let (q_len, kv_len) = (heads * head_dim, kv_heads * head_dim);
        let ([norm, _], [qkv, out]) = (self.tensors.norms, self.tensors.attention);
        let outputs = if self.tensors.is_by_head {
            Outputs::ByHead { parts: 3, len: q_len, head_dim }
        } else {
            Outputs::Parts(&[q_len, kv_len, kv_len])
        };
        Attention {
            heads: heads / tp_shards.num,
            kv_heads: kv_heads / tp_shards.num,
            head_dim,
            norm_linear: self.norm_linear(norm, qkv, &outputs),
            head_norms: None,
            rope: rope.cloned(),
            scores: Scores {
                scale: mup::score_scale(model),
                has_alibi: model.family == Family::Bloom,
                ..Scores::default()
            },
            out: self.row_parallel(out, q_len),
            dropout,
        }
    }

    fn feed_forward(&mut self, dropout: Dropout) -> FeedForward {
        let ([_, norm], [up, down]) = (self.tensors.norms, self.tensors.feed_forward);
        let is_exact = self.model.family == Family::GptNeox
            && self.model.gpt_neox.gelu_approximate == GeluApproximate::None;
        FeedForward {
            norm_linear: self.norm_linear(norm, up, &Outputs::Parts(&[self.model.ffn])),
            activation: if is_exact { Activation::GeluErf } else { Activation::Gelu },
            down: self.row_parallel(down, self.model.ffn),
            dropout,
        }
    }

    /// A normalisation and the column-parallel layer after it.
    fn norm_linear(&mut self, norm_name: &str, name: &str, outputs: &Outputs<'_>) -> NormLinear {
        let (tp_shards, formats) = self.of;
        NormLinear {
            norm: norm(self.model, &format!("{}.{norm_name}", self.layer), self.params),
            product: self.column_parallel(name, outputs),
            adapters: ColumnAdapters::none(formats),
            tp_shards: tp_shards.clone(),
        }
    }

    /// Column-parallel layer; a shard has its part of each of the outputs.
    fn column_parallel(&mut self, name: &str, outputs: &Outputs<'_>) -> ColumnParallel {
        let ((tp_shards, formats), layout) = (self.of, self.tensors.layout);
        let (num_inputs, num_outputs) = (self.model.width, outputs.len());
        let shape = match layout {
            WeightLayout::InOut => [num_inputs, num_outputs],
            WeightLayout::OutIn => [num_outputs, num_inputs],
        };
        let (prefix, init) = (format!("{}.{name}", self.layer), mup::hidden_matrix(self.model));
        let shards = tp_shards.local.clone().map(|shard| {
            let runs = outputs.of_shard(tp_shards, shard);
            let (num, bias_shape) = (tp_shards.num, [num_outputs]);
            let piece = match layout {
                WeightLayout::InOut => Piece::cols(&shape, shard, num, runs.clone()),
                WeightLayout::OutIn => Piece::runs(&shape, shard, num, runs.clone()),
            };
            let (weight, bias) = (format!("{prefix}.weight"), format!("{prefix}.bias"));
            let weight = self.params.push_piece(weight, &shape, piece, init);
            let piece = Piece::runs(&bias_shape, shard, num, runs);
            let bias = Some(self.params.push_piece(bias, &bias_shape, piece, Init::Zeros));
            let (num_outputs, frozen) = (num_outputs / num, None);
            Linear { num_inputs, num_outputs, layout, weight, frozen, bias, formats }
        });
        ColumnParallel { shards: shards.collect(), num_shards: tp_shards.num }
    }

    /// Row-parallel layer to the stream, with a replicated bias.
    fn row_parallel(&mut self, name: &str, num_inputs: usize) -> RowParallel {
        let ((tp_shards, formats), layout) = (self.of, self.tensors.layout);
        let (num, num_outputs) = (tp_shards.num, self.model.width);
        let (prefix, init) =
            (format!("{}.{name}", self.layer), mup::residual_projection(self.model));
        let shards = tp_shards.local.clone().map(|shard| {
            let own = tp_shards.range(num_inputs, shard);
            let (shape, piece) = match layout {
                WeightLayout::InOut => {
                    let shape = [num_inputs, num_outputs];
                    (shape, Piece::rows(&shape, shard, num, own))
                }
                WeightLayout::OutIn => {
                    let shape = [num_outputs, num_inputs];
                    (shape, Piece::cols(&shape, shard, num, vec![own]))
                }
            };
            let weight = self.params.push_piece(format!("{prefix}.weight"), &shape, piece, init);
            let (num_inputs, frozen, bias) = (num_inputs / num, None, None);
            Linear { num_inputs, num_outputs, layout, weight, frozen, bias, formats }
        });
        let shards = shards.collect();
        let bias = Some(self.params.push(format!("{prefix}.bias"), &[num_outputs], Init::Zeros));
        RowParallel { shards, bias, adapter: None, post_norm: None, tp_shards: tp_shards.clone() }
    }
}

/// Outputs of a column-parallel layer in the order of its tensor; in memory, one part of all heads
/// follows another.
enum Outputs<'a> {
    /// Parts of these lengths, one after another.
    Parts(&'a [usize]),
    /// Of each head all parts, which have this length over all heads.
    ByHead { parts: usize, len: usize, head_dim: usize },
}

impl Outputs<'_> {
    /// Number of outputs.
    fn len(&self) -> usize {
        match *self {
            Self::Parts(lens) => lens.iter().sum(),
            Self::ByHead { parts, len, .. } => parts * len,
        }
    }

    /// Outputs of a shard, in the order of its memory.
    fn of_shard(&self, tp_shards: &TensorShards, shard: usize) -> Vec<Run> {
        match *self {
            Self::Parts(lens) => {
                let mut start = 0;
                let own = lens.iter().map(|len| {
                    let own = tp_shards.range(*len, shard);
                    let run = start + own.start..start + own.end;
                    start += len;
                    Run::from(run)
                });
                own.collect()
            }
            Self::ByHead { parts, len, head_dim } => {
                let heads = tp_shards.range(len / head_dim, shard);
                let next = heads.len() * parts * head_dim;
                let of_part =
                    |part| heads.clone().map(move |head| (head * parts + part) * head_dim);
                let starts = (0..parts).flat_map(of_part);
                starts.map(|start| Run { range: start..start + head_dim, next }).collect()
            }
        }
    }
}
