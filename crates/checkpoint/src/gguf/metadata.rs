//! Shape of a model as GGUF's metadata.

use super::block::TensorType;
use super::format::Value;
use lockstep_config::{Family, Model, ModelType, RopeScaling, RopeScalingKind};
use std::f64::consts::TAU;

/// Version of the quantized types.
const QUANTIZATION_VERSION: u32 = 2;

/// GGUF's name of the architecture; none where it has no such model.
pub(super) fn architecture(model: &Model) -> Option<&'static str> {
    match model.family {
        Family::Gpt2 => Some("gpt2"),
        Family::Llama => match model.variant.model_type()? {
            // GGUF's Llama has no window, and llama.cpp ignores that of Phi-3.
            ModelType::Mistral | ModelType::Phi3 if has_window(model) => None,
            ModelType::Llama | ModelType::Mistral => Some("llama"),
            ModelType::Qwen2 => Some("qwen2"),
            ModelType::Qwen3 => Some("qwen3"),
            ModelType::Olmo2 => Some("olmo2"),
            ModelType::Phi3 => Some("phi3"),
            ModelType::Gemma2 => is_plain_gemma2(model).then_some("gemma2"),
        },
        // It has no tied head there.
        Family::GptNeox => (!model.tied).then_some("gptneox"),
        Family::Bloom => Some("bloom"),
        _ => None,
    }
}

/// Whether a Gemma 2 has all that llama.cpp takes for granted: a tied head, both soft caps, a
/// window, and scores that are divided by the root of the head size.
fn is_plain_gemma2(model: &Model) -> bool {
    let variant = &model.variant;
    let has_caps = variant.attention_soft_cap.is_some() && variant.final_soft_cap.is_some();
    let has_scale = variant.query_scalar.is_none_or(|scalar| scalar == model.head_dim());
    model.tied && has_caps && has_scale && variant.sliding_window.is_some()
}

/// Whether a token attends to fewer tokens than the context has.
fn has_window(model: &Model) -> bool {
    model.variant.sliding_window.is_some_and(|window| window < model.context)
}

/// Metadata of a model whose scaled angles GGUF can express.
pub(super) fn metadata(
    model: &Model,
    architecture: &str,
    name: &str,
    tensor_type: TensorType,
) -> Vec<(String, Value)> {
    let number = |value: usize| Value::U32(u32::try_from(value).unwrap_or(u32::MAX));
    let mut all = vec![
        ("general.architecture".to_owned(), Value::Text(architecture.to_owned())),
        ("general.name".to_owned(), Value::Text(name.to_owned())),
        ("general.file_type".to_owned(), Value::U32(tensor_type.file_code())),
    ];
    if tensor_type == TensorType::Q8Zero {
        let version = Value::U32(QUANTIZATION_VERSION);
        all.push(("general.quantization_version".to_owned(), version));
    }
    let mut own = vec![
        ("block_count", number(model.layers)),
        ("context_length", number(model.context)),
        ("embedding_length", number(model.width)),
        ("feed_forward_length", number(model.ffn)),
        ("attention.head_count", number(model.heads)),
        ("attention.head_count_kv", number(model.kv_heads)),
        ("vocab_size", number(model.vocab)),
    ];
    let norm_eps = match model.family {
        Family::Llama => "attention.layer_norm_rms_epsilon",
        _ => "attention.layer_norm_epsilon",
    };
    own.push((norm_eps, Value::F32(model.norm_eps)));
    if model.family == Family::Llama {
        let head_dim = number(model.head_dim());
        own.push(("attention.key_length", head_dim.clone()));
        own.push(("attention.value_length", head_dim));
    }
    if model.family == Family::GptNeox {
        let is_parallel = Value::Bool(model.gpt_neox.parallel_residual);
        own.push(("use_parallel_residual", is_parallel));
    }
    if matches!(model.family, Family::Llama | Family::GptNeox) {
        own.push(("rope.dimension_count", number(model.rotary_dims())));
        own.push(("rope.freq_base", Value::F32(model.rope_theta as f32)));
    }
    if architecture == "gemma2" {
        let cap = |cap: Option<f64>| Value::F32(cap.unwrap_or(0.0) as f32);
        let variant = &model.variant;
        own.push(("attn_logit_softcapping", cap(variant.attention_soft_cap)));
        own.push(("final_logit_softcapping", cap(variant.final_soft_cap)));
        let window = variant.sliding_window.unwrap_or(model.context);
        own.push(("attention.sliding_window", number(window)));
    }
    let RopeScaling { kind, factor, .. } = model.variant.rope;
    if kind == RopeScalingKind::Linear {
        own.push(("rope.scaling.type", Value::Text("linear".to_owned())));
        own.push(("rope.scaling.factor", Value::F32(factor as f32)));
    }
    all.extend(own.into_iter().map(|(key, value)| (format!("{architecture}.{key}"), value)));
    all
}

/// Divisors of the rotary frequencies of each pair, where a tensor of the file holds them; the
/// error names a scaling that GGUF has no exact counterpart for.
pub(super) fn rope_divisors(model: &Model) -> Result<Option<Vec<f32>>, &'static str> {
    let RopeScaling { kind, factor, original_context, low_frequency, high_frequency, .. } =
        model.variant.rope;
    match kind {
        // Dynamic scaling changes nothing within the positions of the model.
        RopeScalingKind::None | RopeScalingKind::Linear | RopeScalingKind::Dynamic => Ok(None),
        RopeScalingKind::Yarn => Err("yarn"),
        RopeScalingKind::Llama3 => {
            let (head_dim, original) = (model.head_dim(), original_context.unwrap_or(0) as f64);
            let divisor = |pair: usize| {
                let exponent = -((2 * pair) as f64) / head_dim as f64;
                let rotations = original * model.rope_theta.powf(exponent) / TAU;
                let kept = (rotations - low_frequency) / (high_frequency - low_frequency);
                let kept = kept.clamp(0.0, 1.0);
                (1.0 / (kept + (1.0 - kept) / factor)) as f32
            };
            Ok(Some((0..head_dim / 2).map(divisor).collect()))
        }
    }
}
