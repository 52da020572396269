//! The GPT-2 family: LayerNorm, learned positions, GELU, biases everywhere.
//!
//! Names and shapes are those of `GPT2LMHeadModel` in Hugging Face checkpoints, whose matrices are
//! stored with a row per input ("Conv1D"); `c_attn` makes queries, keys and values at once.

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
use std::ops::Range;

/// Name of the embedding table.
pub(crate) const TOKEN_TABLE: &str = "transformer.wte.weight";
/// Name of the table of positions.
pub(crate) const POSITION_TABLE: &str = "transformer.wpe.weight";
/// Prefix of the last normalisation.
pub(crate) const FINAL_NORM: &str = "transformer.ln_f";

/// Layer number `index`.
pub(crate) fn layer(model: &Model, of: (&Slices, Precision), index: usize) -> Layer {
    let (cut, _) = of;
    let name = format!("transformer.h.{index}");
    let dropout = Dropout { rate: model.dropout, block: index as u64 + 1 };
    let residual = init::residual_projection(model.layers);
    let (heads, kv_heads, head_dim) = (model.heads, model.kv_heads, model.head_dim());
    let (width, q_len, kv_len) = (model.width, heads * head_dim, kv_heads * head_dim);
    let mut params = ParamList::default();
    let list = &mut params;
    let attention = Attention {
        heads: heads / cut.num,
        kv_heads: kv_heads / cut.num,
        head_dim,
        entry: Entry {
            norm: norm(model, &format!("{name}.ln_1"), list),
            product: column(
                &format!("{name}.attn.c_attn"),
                width,
                &[q_len, kv_len, kv_len],
                of,
                list,
            ),
            cut: cut.clone(),
        },
        rope: None,
        out: row(&format!("{name}.attn.c_proj"), q_len, width, residual, of, list),
        dropout,
    };
    let feed_forward = FeedForward {
        entry: Entry {
            norm: norm(model, &format!("{name}.ln_2"), list),
            product: column(&format!("{name}.mlp.c_fc"), width, &[model.ffn], of, list),
            cut: cut.clone(),
        },
        activation: Activation::Gelu,
        down: row(&format!("{name}.mlp.c_proj"), model.ffn, width, residual, of, list),
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

/// A layer whose outputs are several runs of columns; a slice has its part of each.
fn column(
    prefix: &str,
    num_inputs: usize,
    outputs: &[usize],
    (cut, precision): (&Slices, Precision),
    params: &mut ParamList,
) -> Column {
    let num_outputs = outputs.iter().sum();
    let (shape, bias_shape) = ([num_inputs, num_outputs], [num_outputs]);
    let slices = cut.held.clone().map(|slice| {
        let mut start = 0;
        let cols: Vec<Range<usize>> = outputs
            .iter()
            .map(|len| {
                let own = cut.of(*len, slice);
                let cols = start + own.start..start + own.end;
                start += len;
                cols
            })
            .collect();
        let piece = Piece::cols(&shape, slice, cut.num, cols.clone());
        let weight = params.push_piece(format!("{prefix}.weight"), &shape, piece, init::MATRIX);
        let piece = Piece::cols(&bias_shape, slice, cut.num, cols);
        let bias = params.push_piece(format!("{prefix}.bias"), &bias_shape, piece, Init::Zeros);
        let bias = Some(bias);
        let num_outputs = num_outputs / cut.num;
        Linear { num_inputs, num_outputs, layout: WeightLayout::InOut, weight, bias, precision }
    });
    Column { slices: slices.collect(), num_slices: cut.num }
}

/// A layer whose inputs are cut; its bias is not.
fn row(
    prefix: &str,
    num_inputs: usize,
    num_outputs: usize,
    init: Init,
    (cut, precision): (&Slices, Precision),
    params: &mut ParamList,
) -> Row {
    let shape = [num_inputs, num_outputs];
    let slices = cut.held.clone().map(|slice| {
        let piece = Piece::rows(&shape, slice, cut.num, cut.of(num_inputs, slice));
        let weight = params.push_piece(format!("{prefix}.weight"), &shape, piece, init);
        let num_inputs = num_inputs / cut.num;
        Linear {
            num_inputs,
            num_outputs,
            layout: WeightLayout::InOut,
            weight,
            bias: None,
            precision,
        }
    });
    let slices = slices.collect();
    let bias = Some(params.push(format!("{prefix}.bias"), &[num_outputs], Init::Zeros));
    Row { slices, bias, cut: cut.clone() }
}
