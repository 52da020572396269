//! Removal of the multipliers of width transfer (muP), for formats that have none.
//!
//! The multiplier of the logits moves into the last normalisation, whose output the head reads, and
//! that of the scores into queries, or into their normalisation. Tied weights stay tied.

use crate::mup::logit_multiplier;
use crate::{gpt2, llama};
use lockstep_config::{Family, Model, ModelType};

/// Multiplies the elements of a whole tensor so that a model without muP computes the logits of
/// this one; `name` is that of the tensor.
///
/// ```
/// use lockstep_config::{Sources, resolve};
/// use lockstep_model::mup_folding::fold;
///
/// let sets = ["model.width=64", "model.mup_base_width=16"].map(str::to_owned).into();
/// let model = resolve(&Sources { sets, ..Sources::default() })?.model;
/// let (mut norm, mut other) = ([1.0; 64], [1.0; 64]);
/// fold(&model, "model.norm.weight", &mut norm);
/// fold(&model, "model.layers.0.input_layernorm.weight", &mut other);
/// assert_eq!((norm[0], other[0]), (0.25, 1.0));
/// # Ok::<(), lockstep_config::ConfigErrors>(())
/// ```
pub fn fold(model: &Model, name: &str, values: &mut [f32]) {
    if let Some(factor) = logit_multiplier(model).filter(|_| is_final_norm(model, name)) {
        for value in values.iter_mut() {
            *value *= factor;
        }
    }
    if let Some(factor) = model.mup.score_factor(model.head_dim()) {
        scale_queries(model, name, factor as f32, values);
    }
}

/// Whether a tensor is of the normalisation in front of the head.
fn is_final_norm(model: &Model, name: &str) -> bool {
    let prefix = match model.family {
        Family::Llama => llama::FINAL_NORM,
        _ => gpt2::Tensors::of(model).final_norm,
    };
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

/// Multiplies queries, of which a tensor may be a part or which it may normalise.
fn scale_queries(model: &Model, name: &str, factor: f32, values: &mut [f32]) {
    let scale = |values: &mut [f32]| values.iter_mut().for_each(|value| *value *= factor);
    let queries = model.heads * model.head_dim();
    let is = |tensor: &str| name.contains(&format!(".{tensor}."));
    if model.family == Family::Llama {
        let is_normed = model.variant.qk_norm || model.variant.model_type == Some(ModelType::Olmo2);
        if is(if is_normed { "q_norm" } else { "q_proj" }) {
            scale(values);
        } else if is("qkv_proj") {
            // Rows of queries come first.
            scale(&mut values[..queries * model.width]);
        }
        return;
    }
    let (is_weight, head_dim) = (name.ends_with(".weight"), model.head_dim());
    if is("c_attn") {
        // Columns of queries come first; the bias is one row.
        values.chunks_exact_mut(3 * queries).for_each(|row| scale(&mut row[..queries]));
    } else if is("query_key_value") {
        // The rows of a head are its query, its key and its value.
        let row = if is_weight { model.width } else { 1 };
        let heads = values.chunks_exact_mut(3 * head_dim * row);
        heads.for_each(|head| scale(&mut head[..head_dim * row]));
    }
}
