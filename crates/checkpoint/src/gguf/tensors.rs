//! Tensors of a model under the names of GGUF, which follow llama.cpp.
//!
//! Two differ in more than their name. Llama's rotary positions turn neighbouring elements there
//! instead of the halves of a head, so the rows of queries and keys are interleaved. GPT-2's
//! matrices, stored with a row per input, are transposed.

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
        }
    }
}

/// GGUF's name of a part of a layer, by ours.
const LLAMA_PARTS: [(&str, &str); 14] = [
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

const WHOLE: [(&str, &str); 7] = [
    ("model.embed_tokens.weight", "token_embd.weight"),
    ("model.norm.weight", "output_norm.weight"),
    ("transformer.wte.weight", "token_embd.weight"),
    ("transformer.wpe.weight", "position_embd.weight"),
    ("transformer.ln_f.weight", "output_norm.weight"),
    ("transformer.ln_f.bias", "output_norm.bias"),
    ("lm_head.weight", "output.weight"),
];

/// GGUF's name of a tensor; none where it has none.
fn name_of(name: &str) -> Option<String> {
    let known = |parts: &[(&str, &str)], name: &str| {
        parts.iter().find(|(ours, _)| *ours == name).map(|(_, theirs)| (*theirs).to_owned())
    };
    let of_layer = |prefix: &str, parts: &[(&str, &str)]| {
        let (layer, part) = name.strip_prefix(prefix)?.split_once('.')?;
        layer.parse::<usize>().ok()?;
        known(parts, part).map(|part| format!("blk.{layer}.{part}"))
    };
    known(&WHOLE, name)
        .or_else(|| of_layer("model.layers.", &LLAMA_PARTS))
        .or_else(|| of_layer("transformer.h.", &GPT2_PARTS))
}

/// Tensors of a file, or the first one that GGUF has no name for. Vectors and position tables, and
/// matrices whose rows are no whole blocks, keep more digits than the others.
pub(super) fn sources(
    model: &Model,
    outlines: &BTreeMap<String, Vec<usize>>,
    tensor_type: TensorType,
) -> Result<Vec<Source>, String> {
    let has_interleaved_rows =
        matches!(model.variant.model_type(), Some(ModelType::Llama | ModelType::Mistral));
    let source = |(name, shape): (&String, &Vec<usize>)| {
        let theirs = name_of(name).ok_or_else(|| name.clone())?;
        let change = match model.family {
            Family::Gpt2 if shape.len() == 2 && name.contains(".h.") => Change::Transpose,
            Family::Llama if has_interleaved_rows && name.contains("q_proj") => {
                Change::Interleave { heads: model.heads }
            }
            Family::Llama if has_interleaved_rows && name.contains("k_proj") => {
                Change::Interleave { heads: model.kv_heads }
            }
            _ => Change::None,
        };
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
    }
}
