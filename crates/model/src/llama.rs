//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.
//!
//! Names and shapes are those of `LlamaForCausalLM` in Hugging Face checkpoints. q, k and v are
//! three tensors in a file and one product here, because they lie one after the other; so are gate
//! and up.

use crate::attention::Attention;
use crate::column::Column;
use crate::dropout::Dropout;
use crate::entry::Entry;
use crate::feed_forward::{Activation, FeedForward};
use crate::init;
use crate::layer::Layer;
use crate::linear::{Linear, WeightLayout};
use crate::norm::{Norm, NormKind};
use crate::param::{Init, ParamList, Piece};
use crate::row::Row;
use crate::slices::Slices;
use lockstep_config::Model;
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::rope;
use std::sync::Arc;

/// Name of the embedding table.
pub(crate) const TOKEN_TABLE: &str = "model.embed_tokens.weight";
/// Prefix of the last normalisation.
pub(crate) const FINAL_NORM: &str = "model.norm";

/// The angles of all positions, shared by all layers.
pub(crate) fn rope_table(model: &Model) -> Arc<rope::Table> {
    Arc::new(rope::Table::new(model.head_dim(), model.context, model.rope_theta))
}

/// Layer number `index`.
pub(crate) fn layer(
    model: &Model,
    of: (&Slices, Precision),
    index: usize,
    rope: &Arc<rope::Table>,
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
    of: (&Slices, Precision),
    layer: &str,
    params: &mut ParamList,
    rope: Arc<rope::Table>,
    dropout: Dropout,
) -> Attention {
    let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
    let residual = init::residual_projection(model.layers);
    let norm = norm(model, &format!("{layer}.input_layernorm"), params);
    let outputs = [("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)];
    let prefix = format!("{layer}.self_attn");
    let qkv = column(&prefix, &outputs, model.width, of, params);
    let out = row(&prefix, "o", heads * head_dim, model.width, residual, of, params);
    let cut = of.0.clone();
    let (heads, kv_heads) = (heads / cut.num, kv_heads / cut.num);
    let entry = Entry { norm, product: qkv, cut };
    Attention { heads, kv_heads, head_dim, entry, rope: Some(rope), out, dropout }
}

fn feed_forward(
    model: &Model,
    of: (&Slices, Precision),
    layer: &str,
    params: &mut ParamList,
    dropout: Dropout,
) -> FeedForward {
    let residual = init::residual_projection(model.layers);
    let norm = norm(model, &format!("{layer}.post_attention_layernorm"), params);
    let outputs = [("gate", model.ffn), ("up", model.ffn)];
    let prefix = format!("{layer}.mlp");
    let up = column(&prefix, &outputs, model.width, of, params);
    let down = row(&prefix, "down", model.ffn, model.width, residual, of, params);
    let entry = Entry { norm, product: up, cut: of.0.clone() };
    FeedForward { entry, activation: Activation::SwiGlu, down, dropout }
}

/// The tensors `{prefix}.{name}_proj.weight`, each with so many outputs; a slice has its part of
/// each, one behind the other, and multiplies with all of them at once.
fn column(
    prefix: &str,
    outputs: &[(&str, usize)],
    num_inputs: usize,
    (cut, precision): (&Slices, Precision),
    params: &mut ParamList,
) -> Column {
    let num_outputs = outputs.iter().map(|&(_, num_outputs)| num_outputs).sum::<usize>() / cut.num;
    let slices = cut.held.clone().map(|slice| {
        let ranges = outputs.iter().map(|&(name, num_outputs)| {
            let shape = [num_outputs, num_inputs];
            let piece = Piece::rows(&shape, slice, cut.num, cut.of(num_outputs, slice));
            params.push_piece(format!("{prefix}.{name}_proj.weight"), &shape, piece, init::MATRIX)
        });
        let weight = ranges.reduce(|all, next| all.start..next.end).expect("at least one tensor");
        Linear {
            num_inputs,
            num_outputs,
            layout: WeightLayout::OutIn,
            weight,
            bias: None,
            precision,
        }
    });
    Column { slices: slices.collect(), num_slices: cut.num }
}

/// The tensor `{prefix}.{name}_proj.weight`, whose inputs are cut.
fn row(
    prefix: &str,
    name: &str,
    num_inputs: usize,
    num_outputs: usize,
    init: Init,
    (cut, precision): (&Slices, Precision),
    params: &mut ParamList,
) -> Row {
    let shape = [num_outputs, num_inputs];
    let slices = cut.held.clone().map(|slice| {
        let cols = cut.of(num_inputs, slice);
        let piece = Piece::cols(&shape, slice, cut.num, vec![cols]);
        let weight = params.push_piece(format!("{prefix}.{name}_proj.weight"), &shape, piece, init);
        let num_inputs = num_inputs / cut.num;
        Linear {
            num_inputs,
            num_outputs,
            layout: WeightLayout::OutIn,
            weight,
            bias: None,
            precision,
        }
    });
    Row { slices: slices.collect(), bias: None, cut: cut.clone() }
}
