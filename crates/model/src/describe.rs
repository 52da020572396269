//! From a recipe's model to a [`Blueprint`].

use crate::block::Block;
use crate::blueprint::Blueprint;
use crate::chunked_head::max_logits;
use crate::column_parallel::ColumnParallel;
use crate::dropout::Dropout;
use crate::embedding::Embedding;
use crate::formats::Formats;
use crate::frozen_weight::BaseFormat;
use crate::head::Head;
use crate::linear::{Linear, WeightLayout};
use crate::logit_transform::LogitTransform;
use crate::lora::ColumnAdapters;
use crate::norm_linear::NormLinear;
use crate::param::{Param, ParamList, Piece};
use crate::teacher::Teacher;
use crate::tensor_shards::TensorShards;
use crate::{gpt2, init, llama, mup, problem};
use lockstep_config::{Dtype, Family, Model};
use lockstep_tensor::gemm::Precision;
use std::sync::Arc;

/// Describes the unsharded model of a recipe, with products in `f32`: for names, shapes and counts.
pub fn describe(model: &Model) -> Blueprint {
    describe_shards(model, &TensorShards::WHOLE, Dtype::F32)
}

/// Describes the local shards of a recipe's model, with products in `compute`, on a CPU.
///
/// # Panics
/// As [`describe_in`].
pub fn describe_shards(model: &Model, shards: &TensorShards, compute: Dtype) -> Blueprint {
    describe_in(model, shards, Formats::on_cpu(precision_of(compute)))
}

/// Describes the local shards of a recipe's model, with numbers in these formats.
///
/// # Panics
/// When the model cannot be sharded so: the number of shards must divide heads, key heads, hidden
/// units and vocabulary of a transformer; a small problem has one shard and computes in `f32`.
pub fn describe_in(model: &Model, shards: &TensorShards, formats: Formats) -> Blueprint {
    let is_problem = model.family.is_problem();
    assert!(!is_problem || shards.num == 1, "a {:?} has one shard", model.family);
    if is_problem {
        let f32_only = Formats::on_cpu(Precision::F32);
        assert_eq!(formats, f32_only, "a {:?} computes in f32", model.family);
        return problem::describe(model);
    }
    transformer(model, shards, formats, None)
}

/// As [`describe_in`], for a language model that learns from a teacher.
///
/// # Panics
/// When the vocabulary is sharded.
pub fn describe_student(
    model: &Model,
    shards: &TensorShards,
    formats: Formats,
    teacher: Teacher,
) -> Blueprint {
    assert_eq!(shards.num, 1, "a student has a whole vocabulary");
    transformer(model, shards, formats, Some(Arc::new(teacher)))
}

/// Precision of the kernels for a recipe's number format.
pub const fn precision_of(compute: Dtype) -> Precision {
    match compute {
        Dtype::F32 => Precision::F32,
        Dtype::Bf16 => Precision::Bf16,
        Dtype::F16 => Precision::F16,
        Dtype::Fp8 => Precision::Fp8,
    }
}

fn transformer(
    model: &Model,
    tp_shards: &TensorShards,
    formats: Formats,
    teacher: Option<Arc<Teacher>>,
) -> Blueprint {
    for len in [model.heads, model.kv_heads, model.ffn, model.vocab] {
        assert!(len.is_multiple_of(tp_shards.num), "{len} in {} shards", tp_shards.num);
    }
    let ends = (tp_shards, formats.unquantised());
    let embedding = embedding(model, ends);
    let head = Head { teacher: teacher.clone(), ..head(model, ends, &embedding.params) };
    let mut blocks: Vec<Box<dyn Block>> = vec![Box::new(embedding)];
    if model.family == Family::Llama {
        let (rope, base) = (llama::rope_angles(model), BaseFormat::of(model));
        for index in 0..model.layers {
            let layer = llama::layer(model, (tp_shards, formats), index, &rope, base.as_ref());
            blocks.push(Box::new(layer));
        }
    } else {
        let rope = gpt2::rope_angles(model);
        for index in 0..model.layers {
            let layer = gpt2::layer(model, (tp_shards, formats), index, rope.as_ref());
            blocks.push(Box::new(layer));
        }
    }
    blocks.push(Box::new(head));
    let Formats { activations, .. } = formats;
    let (vocab, context, shards) = (model.vocab, model.context, tp_shards.clone());
    Blueprint { blocks, vocab, context, shards, activations, teacher }
}

pub(crate) fn embedding(
    model: &Model,
    (tp_shards, formats): (&TensorShards, Formats),
) -> Embedding {
    let mut params = ParamList::default();
    let (name, position_table, norm) = if model.family == Family::Llama {
        (llama::EMBEDDING, None, None)
    } else {
        let tensors = gpt2::Tensors::of(model);
        (tensors.embedding, tensors.position_table, tensors.embedding_norm)
    };
    let shape = [model.vocab, model.width];
    let shards = tp_shards.local.clone().map(|shard| {
        let piece = Piece::rows(&shape, shard, tp_shards.num, tp_shards.range(model.vocab, shard));
        params.push_piece(format!("{name}.weight"), &shape, piece, init::MATRIX)
    });
    let tokens = shards.reduce(|all, next| all.start..next.end).expect("at least one shard");
    let positions = position_table
        .map(|table| params.push(table.to_string(), &[model.context, model.width], init::MATRIX));
    let norm = norm.map(|prefix| gpt2::norm(model, prefix, &mut params));
    // BLOOM has no dropout of the embedding.
    let rate = if norm.is_some() { 0.0 } else { model.dropout };
    Embedding {
        name: name.to_string(),
        width: model.width,
        params: params.finish(),
        tokens,
        first_token: tp_shards.range(model.vocab, tp_shards.local.start).start,
        positions,
        scale: llama::embedding_scale(model),
        norm,
        dropout: Dropout { rate, adapter_rate: 0.0, block: 0 },
        tp_shards: tp_shards.clone(),
        formats,
    }
}

pub(crate) fn head(
    model: &Model,
    (tp_shards, formats): (&TensorShards, Formats),
    token_tables: &[Param],
) -> Head {
    let mut params = ParamList::default();
    let (norm, name) = if model.family == Family::Llama {
        (llama::norm(model, llama::FINAL_NORM, &mut params), llama::HEAD)
    } else {
        let tensors = gpt2::Tensors::of(model);
        (gpt2::norm(model, tensors.final_norm, &mut params), tensors.head)
    };
    let name = name.to_string();
    let shards = token_tables[..tp_shards.num_local()].iter().map(|table| {
        let weight_name = format!("{name}.weight");
        let weight = if model.tied {
            params.push_mirror(weight_name, table)
        } else {
            params.push_piece(weight_name, &table.shape, table.piece.clone(), init::MATRIX)
        };
        Linear {
            num_inputs: model.width,
            num_outputs: model.vocab / tp_shards.num,
            layout: WeightLayout::OutIn,
            weight,
            frozen: None,
            bias: None,
            formats,
        }
    });
    let product = ColumnParallel { shards: shards.collect(), num_shards: tp_shards.num };
    let (adapters, tp_shards) = (ColumnAdapters::none(formats), tp_shards.clone());
    let norm_linear = NormLinear { norm, product, adapters, tp_shards };
    let (params, max_logits) = (params.finish(), max_logits(formats.activations));
    let soft_cap = model.variant.final_soft_cap.map(|cap| cap as f32);
    let transform = LogitTransform { multiplier: mup::logit_multiplier(model), soft_cap };
    let is_frozen = model.lora.is_on();
    Head { name, params, norm_linear, transform, max_logits, is_frozen, teacher: None }
}
