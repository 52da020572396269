//! The GPT-2 family: LayerNorm, learned positions, GELU, biases everywhere.
//!
//! Names and shapes are those of `GPT2LMHeadModel` in Hugging Face checkpoints, whose matrices are
//! stored with a row per input ("Conv1D"); `c_attn` computes queries, keys and values at once.

use crate::attention::{Attention, Scores};
use crate::column_parallel::ColumnParallel;
use crate::dropout::Dropout;
use crate::feed_forward::{Activation, FeedForward};
use crate::formats::Formats;
use crate::init;
use crate::layer::Layer;
use crate::linear::{Linear, WeightLayout};
use crate::lora::ColumnAdapters;
use crate::norm::{Norm, NormKind};
use crate::norm_linear::NormLinear;
use crate::param::{Init, ParamList, Piece};
use crate::row_parallel::RowParallel;
use crate::tensor_shards::TensorShards;
use lockstep_config::Model;
use std::ops::Range;

/// Name of the embedding table.
pub(crate) const TOKEN_TABLE: &str = "transformer.wte.weight";
/// Name of the table of positions.
pub(crate) const POSITION_TABLE: &str = "transformer.wpe.weight";
/// Prefix of the last normalisation.
pub(crate) const FINAL_NORM: &str = "transformer.ln_f";

/// Layer number `index`.
pub(crate) fn layer(model: &Model, of: (&TensorShards, Formats), index: usize) -> Layer {
    let (tp_shards, _) = of;
    let name = format!("transformer.h.{index}");
    let dropout = Dropout { rate: model.dropout, adapter_rate: 0.0, block: index as u64 + 1 };
    let residual = init::residual_projection(model.layers);
    let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
    let (width, q_len, kv_len) = (model.width, heads * head_dim, kv_heads * head_dim);
    let mut params = ParamList::default();
    let list = &mut params;
    let attention = Attention {
        heads: heads / tp_shards.num,
        kv_heads: kv_heads / tp_shards.num,
        head_dim,
        norm_linear: NormLinear {
            norm: norm(model, &format!("{name}.ln_1"), list),
            product: column_parallel(
                &format!("{name}.attn.c_attn"),
                width,
                &[q_len, kv_len, kv_len],
                of,
                list,
            ),
            adapters: ColumnAdapters::none(of.1),
            tp_shards: tp_shards.clone(),
        },
        head_norms: None,
        rope: None,
        scores: Scores::default(),
        out: row_parallel(&format!("{name}.attn.c_proj"), q_len, width, residual, of, list),
        dropout,
    };
    let feed_forward = FeedForward {
        norm_linear: NormLinear {
            norm: norm(model, &format!("{name}.ln_2"), list),
            product: column_parallel(&format!("{name}.mlp.c_fc"), width, &[model.ffn], of, list),
            adapters: ColumnAdapters::none(of.1),
            tp_shards: tp_shards.clone(),
        },
        activation: Activation::Gelu,
        down: row_parallel(&format!("{name}.mlp.c_proj"), model.ffn, width, residual, of, list),
        dropout,
    };
    let (params, is_frozen) = (params.finish(), false);
    Layer { name, width, params, attention, feed_forward, is_frozen }
}

/// A normalisation: a weight and a bias.
pub(crate) fn norm(model: &Model, prefix: &str, params: &mut ParamList) -> Norm {
    let weight = params.push(format!("{prefix}.weight"), &[model.width], Init::Ones);
    let bias = params.push(format!("{prefix}.bias"), &[model.width], Init::Zeros);
    let at = weight.start..bias.end;
    Norm { kind: NormKind::Layer, width: model.width, eps: model.norm_eps, at }
}

/// Column-parallel layer whose outputs are several ranges of columns; a shard has its part of each.
fn column_parallel(
    prefix: &str,
    num_inputs: usize,
    outputs: &[usize],
    (tp_shards, formats): (&TensorShards, Formats),
    params: &mut ParamList,
) -> ColumnParallel {
    let num_outputs = outputs.iter().sum();
    let (shape, bias_shape) = ([num_inputs, num_outputs], [num_outputs]);
    let shards = tp_shards.local.clone().map(|shard| {
        let mut start = 0;
        let cols: Vec<Range<usize>> = outputs
            .iter()
            .map(|len| {
                let own = tp_shards.range(*len, shard);
                let cols = start + own.start..start + own.end;
                start += len;
                cols
            })
            .collect();
        let piece = Piece::cols(&shape, shard, tp_shards.num, cols.clone());
        let weight = params.push_piece(format!("{prefix}.weight"), &shape, piece, init::MATRIX);
        let piece = Piece::cols(&bias_shape, shard, tp_shards.num, cols);
        let bias = params.push_piece(format!("{prefix}.bias"), &bias_shape, piece, Init::Zeros);
        let bias = Some(bias);
        let num_outputs = num_outputs / tp_shards.num;
        Linear { num_inputs, num_outputs, layout: WeightLayout::InOut, weight, bias, formats }
    });
    ColumnParallel { shards: shards.collect(), num_shards: tp_shards.num }
}

/// Row-parallel layer with a replicated bias.
fn row_parallel(
    prefix: &str,
    num_inputs: usize,
    num_outputs: usize,
    init: Init,
    (tp_shards, formats): (&TensorShards, Formats),
    params: &mut ParamList,
) -> RowParallel {
    let shape = [num_inputs, num_outputs];
    let shards = tp_shards.local.clone().map(|shard| {
        let piece = Piece::rows(&shape, shard, tp_shards.num, tp_shards.range(num_inputs, shard));
        let weight = params.push_piece(format!("{prefix}.weight"), &shape, piece, init);
        let num_inputs = num_inputs / tp_shards.num;
        Linear { num_inputs, num_outputs, layout: WeightLayout::InOut, weight, bias: None, formats }
    });
    let shards = shards.collect();
    let bias = Some(params.push(format!("{prefix}.bias"), &[num_outputs], Init::Zeros));
    RowParallel { shards, bias, adapter: None, post_norm: None, tp_shards: tp_shards.clone() }
}
