//! Values of JSON fields, and the reasons that many fields share.

use serde_json::Value;

/// Global batch.
pub(super) const TRAIN_BATCH: &str = "train_batch_size";

/// Micro-batch size.
pub(super) const MICRO_BATCH: &str = "train_micro_batch_size_per_gpu";

/// Gradient accumulation.
pub(super) const ACCUMULATION: &str = "gradient_accumulation_steps";

/// Origin of a value that the file leaves to DeepSpeed.
pub(super) const DEFAULT: &str = "default of DeepSpeed";

/// Reason for a value that the Hugging Face Trainer fills in, with the key to set.
pub(super) fn auto_reason(field: &str) -> String {
    let key = match field {
        TRAIN_BATCH | ACCUMULATION => "train.batch",
        MICRO_BATCH => "train.microbatch",
        "gradient_clipping" => "optim.clip",
        "lr" | "warmup_max_lr" => "optim.lr",
        "betas" => "optim.beta1 and optim.beta2",
        "eps" => "optim.eps",
        "weight_decay" => "optim.weight_decay",
        "warmup_num_steps" => "optim.warmup_steps",
        "total_num_steps" => "train.steps",
        "stage" => "parallel.zero",
        "reduce_bucket_size" => "parallel.bucket_bytes",
        "overlap_comm" => "parallel.overlap",
        _ => return "filled in by the Trainer; nothing to set here".to_owned(),
    };
    format!("filled in by the Trainer; set {key}")
}

/// A whole number, also one that is written as a float, such as 5e8.
pub(super) fn whole(value: &Value) -> Option<u64> {
    let of_float = |number: f64| {
        let is_whole = number.fract() == 0.0 && (0.0..=9.0e15).contains(&number);
        is_whole.then_some(number as u64)
    };
    value.as_u64().or_else(|| value.as_f64().and_then(of_float))
}

/// The quotient, if it is whole and above zero.
pub(super) fn quotient(number: u64, divisor: u64) -> Option<u64> {
    (divisor > 0 && number > 0 && number.is_multiple_of(divisor)).then(|| number / divisor)
}

/// Name of a number format in a recipe.
pub(super) fn number_format(name: &str) -> Option<&'static str> {
    match name.to_lowercase().as_str() {
        "fp32" | "float32" | "float" => Some("f32"),
        "fp16" | "float16" | "half" => Some("fp16"),
        "bf16" | "bfp16" | "bfloat16" => Some("bf16"),
        _ => None,
    }
}

/// Whether the Hugging Face Trainer fills in the value.
pub(super) fn is_auto(value: &Value) -> bool {
    value.as_str() == Some("auto")
}

/// Whether the Hugging Face Trainer fills in a part of the file.
pub(super) fn has_auto(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(has_auto),
        Value::Array(values) => values.iter().any(has_auto),
        other => is_auto(other),
    }
}

/// Type of a JSON value, with its article.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
