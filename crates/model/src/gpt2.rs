//! The GPT-2 family: LayerNorm, learned positions, GELU, biases everywhere.
//!
//! Names and shapes are those of `GPT2LMHeadModel` in Hugging Face checkpoints, whose matrices are
//! stored with a row per input ("Conv1D"); `c_attn` makes queries, keys and values at once.

use crate::attention::Attention;
use crate::dropout::Dropout;
use crate::feed_forward::{Activation, FeedForward};
use crate::init;
use crate::layer::Layer;
use crate::linear::{Linear, WeightLayout};
use crate::norm::{Norm, NormKind};
use crate::param::{Init, ParamList};
use lockstep_config::Model;

/// Name of the embedding table.
pub(crate) const TOKEN_TABLE: &str = "transformer.wte.weight";
/// Name of the table of positions.
pub(crate) const POSITION_TABLE: &str = "transformer.wpe.weight";
/// Prefix of the last normalisation.
pub(crate) const FINAL_NORM: &str = "transformer.ln_f";

/// Layer number `index`.
pub(crate) fn layer(model: &Model, index: usize) -> Layer {
    let name = format!("transformer.h.{index}");
    let dropout = Dropout { rate: model.dropout, block: index as u64 + 1 };
    let residual = init::residual_projection(model.layers);
    let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
    let (width, q_len) = (model.width, heads * head_dim);
    let qkv_len = (heads + 2 * kv_heads) * head_dim;
    let mut params = ParamList::default();
    let list = &mut params;
    let attention = Attention {
        heads,
        kv_heads,
        head_dim,
        norm: norm(model, &format!("{name}.ln_1"), list),
        qkv: linear(&format!("{name}.attn.c_attn"), width, qkv_len, init::MATRIX, list),
        rope: None,
        out: linear(&format!("{name}.attn.c_proj"), q_len, width, residual, list),
        dropout,
    };
    let feed_forward = FeedForward {
        norm: norm(model, &format!("{name}.ln_2"), list),
        up: linear(&format!("{name}.mlp.c_fc"), width, model.ffn, init::MATRIX, list),
        activation: Activation::Gelu,
        down: linear(&format!("{name}.mlp.c_proj"), model.ffn, width, residual, list),
        dropout,
    };
    Layer { name, width, params: params.finish(), attention, feed_forward }
}

/// A normalisation: a weight and a bias.
pub(crate) fn norm(model: &Model, prefix: &str, params: &mut ParamList) -> Norm {
    let weight = params.push(format!("{prefix}.weight"), &[model.width], Init::Ones);
    let bias = params.push(format!("{prefix}.bias"), &[model.width], Init::Zeros);
    let at = weight.start..bias.end;
    Norm { kind: NormKind::Layer, width: model.width, eps: model.norm_eps, at }
}

fn linear(
    prefix: &str,
    num_inputs: usize,
    num_outputs: usize,
    init: Init,
    params: &mut ParamList,
) -> Linear {
    let weight = params.push(format!("{prefix}.weight"), &[num_inputs, num_outputs], init);
    let bias = Some(params.push(format!("{prefix}.bias"), &[num_outputs], Init::Zeros));
    Linear { num_inputs, num_outputs, layout: WeightLayout::InOut, weight, bias }
}
