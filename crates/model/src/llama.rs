//! The Llama family: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.
//!
//! Names and shapes are those of `LlamaForCausalLM` in Hugging Face checkpoints. q, k and v are
//! three tensors in a file and one product here, because they lie one after the other; so are gate
//! and up.

use crate::attention::Attention;
use crate::dropout::Dropout;
use crate::feed_forward::{Activation, FeedForward};
use crate::init;
use crate::layer::Layer;
use crate::linear::{Linear, WeightLayout};
use crate::norm::{Norm, NormKind};
use crate::param::{Init, ParamList};
use lockstep_config::Model;
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
pub(crate) fn layer(model: &Model, index: usize, rope: &Arc<rope::Table>) -> Layer {
    let name = format!("model.layers.{index}");
    let dropout = Dropout { rate: model.dropout, block: index as u64 + 1 };
    let mut params = ParamList::default();
    let attention = attention(model, &name, &mut params, Arc::clone(rope), dropout);
    let feed_forward = feed_forward(model, &name, &mut params, dropout);
    Layer { name, width: model.width, params: params.finish(), attention, feed_forward }
}

/// A normalisation: one weight.
pub(crate) fn norm(model: &Model, prefix: &str, params: &mut ParamList) -> Norm {
    let at = params.push(format!("{prefix}.weight"), &[model.width], Init::Ones);
    Norm { kind: NormKind::Rms, width: model.width, eps: model.norm_eps, at }
}

fn attention(
    model: &Model,
    layer: &str,
    params: &mut ParamList,
    rope: Arc<rope::Table>,
    dropout: Dropout,
) -> Attention {
    let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
    let residual = init::residual_projection(model.layers);
    let norm = norm(model, &format!("{layer}.input_layernorm"), params);
    let outputs = [("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)];
    let qkv = linear(&format!("{layer}.self_attn"), &outputs, model.width, init::MATRIX, params);
    let outputs = [("o", model.width)];
    let out = linear(&format!("{layer}.self_attn"), &outputs, heads * head_dim, residual, params);
    Attention { heads, kv_heads, head_dim, norm, qkv, rope: Some(rope), out, dropout }
}

fn feed_forward(
    model: &Model,
    layer: &str,
    params: &mut ParamList,
    dropout: Dropout,
) -> FeedForward {
    let residual = init::residual_projection(model.layers);
    let norm = norm(model, &format!("{layer}.post_attention_layernorm"), params);
    let outputs = [("gate", model.ffn), ("up", model.ffn)];
    let up = linear(&format!("{layer}.mlp"), &outputs, model.width, init::MATRIX, params);
    let outputs = [("down", model.width)];
    let down = linear(&format!("{layer}.mlp"), &outputs, model.ffn, residual, params);
    FeedForward { norm, up, activation: Activation::SwiGlu, down, dropout }
}

/// One product over the tensors `{prefix}.{name}_proj.weight`, each with so many outputs.
fn linear(
    prefix: &str,
    outputs: &[(&str, usize)],
    num_inputs: usize,
    init: Init,
    params: &mut ParamList,
) -> Linear {
    let ranges = outputs.iter().map(|&(name, num_outputs)| {
        params.push(format!("{prefix}.{name}_proj.weight"), &[num_outputs, num_inputs], init)
    });
    let weight = ranges.reduce(|all, next| all.start..next.end).expect("at least one tensor");
    let num_outputs = outputs.iter().map(|&(_, num_outputs)| num_outputs).sum();
    Linear { num_inputs, num_outputs, layout: WeightLayout::OutIn, weight, bias: None }
}
