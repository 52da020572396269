//! Tensors of a model under the names of GGUF, which follow llama.cpp.
//!
//! Some differ in more than their name. Llama's rotary positions turn neighbouring elements there
//! instead of the halves of a head, so the rows of queries and keys are interleaved. GPT-2's
//! matrices, stored with a row per input, are transposed. Queries, keys and values of GPT-NeoX and
//! BLOOM, which alternate head by head, become one after the other. Gemma's norms include the one
//! that its weights are added to.

use super::block::TensorType;
use super::format::Description;
use crate::ElementType;
use lockstep_config::{Family, Model, ModelType};
use std::collections::BTreeMap;

/// A tensor to write.
pub(super) struct Source {
    /// Our name of it.
    pub(super) name: String,
    pub(super) change: Change,
    pub(super) description: Description,
}

/// Change of the elements' order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Rows and columns are exchanged.
    Transpose,
    /// The rows of each of so many heads are interleaved.
    Interleave {
        heads: usize,
    },
    /// Queries, keys and values of each of so many heads become all queries, all keys, all values.
    Ungroup {
        heads: usize,
    },
    /// One is added to each element.
    AddOne,
}

impl Change {
    /// The elements of a matrix of this shape in their new order.
    pub(super) fn apply(self, data: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        let columns = shape.last().copied().unwrap_or(1);
        let rows = data.len() / columns.max(1);
        match self {
            Self::None => data,
            Self::Transpose => {
                (0..data.len()).map(|i| data[i % rows * columns + i / rows]).collect()
            }
            Self::Interleave { heads } => {
                // A bias is a matrix of one column.
                let columns = if shape.len() == 1 { 1 } else { columns };
                let head_rows = data.len() / columns / heads;
                let row = |new: usize| {
                    let (head, within) = (new / head_rows, new % head_rows);
                    head * head_rows + within % 2 * (head_rows / 2) + within / 2
                };
                let rows = (0..heads * head_rows).map(row);
                rows.flat_map(|row| &data[row * columns..][..columns]).copied().collect()
            }
            Self::Ungroup { heads } => {
                let columns = if shape.len() == 1 { 1 } else { columns };
                let head_len = data.len() / heads / 3;
                assert!(head_len.is_multiple_of(columns), "whole rows of each head");
                let parts = (0..3).flat_map(|part| (0..heads).map(move |head| 3 * head + part));
                parts.flat_map(|at| &data[at * head_len..][..head_len]).copied().collect()
            }
            Self::AddOne => data.into_iter().map(|x| x + 1.0).collect(),
        }
    }
}

/// GGUF's name of a part of a layer, by ours.
const LLAMA_PARTS: [(&str, &str); 16] = [
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.q_proj.bias", "attn_q.bias"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.k_proj.bias", "attn_k.bias"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.v_proj.bias", "attn_v.bias"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    // Phi-3.
    ("self_attn.qkv_proj.weight", "attn_qkv.weight"),
    ("mlp.gate_up_proj.weight", "ffn_up.weight"),
];

/// Parts with another meaning where the output of a block is normalised (OLMo 2, Gemma 2).
const OUTPUT_NORM_PARTS: [(&str, &str); 3] = [
    ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
];

/// Prefixes of the parts of GPT-NeoX and BLOOM, each with a weight and a bias.
const BY_HEAD_PARTS: [(&str, &str); 8] = [
    ("input_layernorm", "attn_norm"),
    ("attention.query_key_value", "attn_qkv"),
    ("attention.dense", "attn_output"),
    ("self_attention.query_key_value", "attn_qkv"),
    ("self_attention.dense", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.dense_4h_to_h", "ffn_down"),
];

const GPT2_PARTS: [(&str, &str); 12] = [
    ("ln_1.weight", "attn_norm.weight"),
    ("ln_1.bias", "attn_norm.bias"),
    ("attn.c_attn.weight", "attn_qkv.weight"),
    ("attn.c_attn.bias", "attn_qkv.bias"),
    ("attn.c_proj.weight", "attn_output.weight"),
    ("attn.c_proj.bias", "attn_output.bias"),
    ("ln_2.weight", "ffn_norm.weight"),
    ("ln_2.bias", "ffn_norm.bias"),
    ("mlp.c_fc.weight", "ffn_up.weight"),
    ("mlp.c_fc.bias", "ffn_up.bias"),
    ("mlp.c_proj.weight", "ffn_down.weight"),
    ("mlp.c_proj.bias", "ffn_down.bias"),
];

const WHOLE: [(&str, &str); 14] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("transformer.wte.weight", "token_embd.weight"),
    ("transformer.wpe.weight", "position_embd.weight"),
    ("transformer.ln_f.weight", "output_norm.weight"),
    ("transformer.ln_f.bias", "output_norm.bias"),
    ("lm_head.weight", "output.weight"),
    ("gpt_neox.embed_in.weight", "token_embd.weight"),
    ("gpt_neox.final_layer_norm.weight", "output_norm.weight"),
    ("gpt_neox.final_layer_norm.bias", "output_norm.bias"),
    ("embed_out.weight", "output.weight"),
    ("transformer.word_embeddings.weight", "token_embd.weight"),
    ("transformer.word_embeddings_layernorm.weight", "token_embd_norm.weight"),
    ("transformer.word_embeddings_layernorm.bias", "token_embd_norm.bias"),
];

/// GGUF's name of a tensor of this model; none where it has none.
fn name_of(model: &Model, name: &str) -> Option<String> {
    let find = |parts: &[(&str, &'static str)], name: &str| {
        parts.iter().find(|(ours, _)| *ours == name).map(|(_, theirs)| *theirs)
    };
    if let Some(theirs) = find(&WHOLE, name) {
        return Some(theirs.to_owned());
    }
    let prefixes = ["model.layers.", "transformer.h.", "gpt_neox.layers."];
    let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    let (layer, part) = rest.split_once('.')?;
    layer.parse::<usize>().ok()?;
    let theirs = match model.family {
        Family::Gpt2 => find(&GPT2_PARTS, part)?.to_owned(),
        Family::GptNeox | Family::Bloom => {
            let (prefix, kind) = part.rsplit_once('.')?;
            format!("{}.{kind}", find(&BY_HEAD_PARTS, prefix)?)
        }
        _ => {
            let own: &[_] = if has_output_norms(model) { &OUTPUT_NORM_PARTS } else { &[] };
            find(own, part).or_else(|| find(&LLAMA_PARTS, part))?.to_owned()
        }
    };
    Some(format!("blk.{layer}.{theirs}"))
}

fn has_output_norms(model: &Model) -> bool {
    matches!(model.variant.model_type(), Some(ModelType::Olmo2 | ModelType::Gemma2))
}

/// Change of a tensor's elements.
fn change_of(model: &Model, name: &str, shape: &[usize]) -> Change {
    let model_type = model.variant.model_type();
    let is_interleaved = matches!(model_type, Some(ModelType::Llama | ModelType::Mistral));
    match model.family {
        Family::Gpt2 if shape.len() == 2 && name.contains(".h.") => Change::Transpose,
        Family::Llama if is_interleaved && name.contains("q_proj") => {
            Change::Interleave { heads: model.heads }
        }
        Family::Llama if is_interleaved && name.contains("k_proj") => {
            Change::Interleave { heads: model.kv_heads }
        }
        Family::Llama if model_type == Some(ModelType::Gemma2) && name.contains("norm") => {
            Change::AddOne
        }
        Family::GptNeox | Family::Bloom if name.contains("query_key_value") => {
            Change::Ungroup { heads: model.heads }
        }
        _ => Change::None,
    }
}

/// Tensors of a file, or the first one that GGUF has no name for. Vectors and position tables, and
/// matrices whose rows are no whole blocks, keep more digits than the others.
pub(super) fn sources(
    model: &Model,
    outlines: &BTreeMap<String, Vec<usize>>,
    tensor_type: TensorType,
) -> Result<Vec<Source>, String> {
    let source = |(name, shape): (&String, &Vec<usize>)| {
        let theirs = name_of(model, name).ok_or_else(|| name.clone())?;
        let change = change_of(model, name, shape);
        let mut shape = shape.clone();
        if change == Change::Transpose {
            shape.reverse();
        }
        let is_matrix = shape.len() == 2 && theirs != "position_embd.weight";
        let columns = shape.last().copied().unwrap_or(0);
        let tensor_type = match tensor_type {
            _ if !is_matrix => TensorType::Floats(ElementType::F32),
            blocks if !blocks.takes_rows_of(columns) => TensorType::Floats(ElementType::F16),
            fits => fits,
        };
        let description = Description { name: theirs, tensor_type, shape };
        Ok(Source { name: name.clone(), change, description })
    };
    outlines.iter().map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_heads_are_interleaved_and_matrices_transposed() {
        let rows: Vec<f32> = (0..16).map(|x| x as f32).collect();
        // Two heads of four rows: halves (0, 1) and (2, 3) become 0 2 1 3.
        let found = Change::Interleave { heads: 2 }.apply(rows.clone(), &[8, 2]);
        let expected = [0, 2, 1, 3, 4, 6, 5, 7].map(|row| [2 * row, 2 * row + 1]);
        assert_eq!(found, expected.concat().iter().map(|x| *x as f32).collect::<Vec<_>>());
        let bias = Change::Interleave { heads: 4 }.apply(rows[..16].to_vec(), &[16]);
        assert_eq!(bias[..8], [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        let turned = Change::Transpose.apply(rows[..6].to_vec(), &[2, 3]);
        assert_eq!(turned, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        // Two heads of queries, keys and values with two elements each.
        let found = Change::Ungroup { heads: 2 }.apply(rows[..12].to_vec(), &[12]);
        let expected = [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0];
        assert_eq!(found, expected);
        assert_eq!(Change::Ungroup { heads: 2 }.apply(rows[..12].to_vec(), &[6, 2]), expected);
        assert_eq!(Change::AddOne.apply(rows[..2].to_vec(), &[2]), [1.0, 2.0]);
    }
}
