//! Differences of the models that descend from Llama: Llama 3, Qwen2, Qwen3 and Mistral are one
//! architecture with other values of these keys.

use super::RopeScaling;
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};

/// Largest head size that the attention kernel supports.
pub(super) const MAX_HEAD_DIM: i64 = 256;

topic! {
    /// Differences from the plain Llama.
    #[derive(Copy)]
    pub struct LlamaVariant at model.variant, among "model" {
        /// Size of a head, where it is not model.width / model.heads: an even number.
        head_size as head_dim: Option<usize> = none, integer(2, MAX_HEAD_DIM),
            when("model.family", &["llama"]);

        /// Whether the projections to queries, keys and values have biases (Qwen2).
        qkv_bias: bool = false, when("model.family", &["llama"]), in_identity_unless_default();

        /// Whether every head of queries and keys is normalised before its rotation, with a weight
        /// for queries and one for keys (Qwen3).
        qk_norm: bool = false, when("model.family", &["llama"]), in_identity_unless_default();

        /// Number of last tokens that a token attends to, for an export (Mistral): at least
        /// model.context, so that the window changes nothing.
        sliding_window: Option<usize> = none, integer(1, i32::MAX as i64),
            when("model.family", &["llama"]), in_identity_when(|_| false);

        /// Hugging Face's model_type of an export, where it does not follow from model.qkv_bias
        /// (qwen2), model.qk_norm (qwen3) or model.sliding_window (mistral).
        model_type: Option<ModelType> = none, when("model.family", &["llama"]),
            in_identity_when(|_| false);

        /// Scaling of the rotary angles.
        part rope: RopeScaling;
    }
}

choices! {
    /// Models of the Llama family in Hugging Face's library.
    ModelType {
        /// Llama.
        Llama = "llama",
        /// Mistral: Llama with a sliding window.
        Mistral = "mistral",
        /// Qwen2 and 2.5: Llama with biases on queries, keys and values.
        Qwen2 = "qwen2",
        /// Qwen3: Llama with normalised queries and keys.
        Qwen3 = "qwen3",
    }
}

impl LlamaVariant {
    /// The plain Llama.
    pub const PLAIN: Self = Self {
        head_size: None,
        qkv_bias: false,
        qk_norm: false,
        sliding_window: None,
        model_type: None,
        rope: RopeScaling::NONE,
    };

    /// Hugging Face's name of such a model; none where no model there has these parts.
    pub const fn model_type(&self) -> Option<ModelType> {
        let has_window = self.sliding_window.is_some();
        match (self.qkv_bias, self.qk_norm, has_window, self.model_type) {
            (true, false, false, None | Some(ModelType::Qwen2)) => Some(ModelType::Qwen2),
            (false, true, false, None | Some(ModelType::Qwen3)) => Some(ModelType::Qwen3),
            (false, false, false, None | Some(ModelType::Llama)) => Some(ModelType::Llama),
            (false, false, true, None) | (false, false, _, Some(ModelType::Mistral)) => {
                Some(ModelType::Mistral)
            }
            _ => None,
        }
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["model.head_dim"], |c| {
        let odd = c.model.variant.head_size.filter(|head_dim| !head_dim.is_multiple_of(2));
        let works = odd.map_or(0, |head_dim| head_dim - 1);
        c.refuse(odd.is_some(), "is odd, and rotary positions turn pairs of elements", works)
    }),
    Rule::new(&["model.context", "model.sliding_window"], |c| {
        let window = c.model.variant.sliding_window.filter(|window| *window < c.model.context);
        let window = window.unwrap_or(0);
        let rule = format!("exceeds model.sliding_window = {window}, and attention has no window");
        c.refuse(window > 0, rule, window)
    }),
    Rule::new(
        &["model.model_type", "model.qkv_bias", "model.qk_norm", "model.sliding_window"],
        |c| {
            let variant = &c.model.variant;
            let plain = LlamaVariant { model_type: None, ..*variant };
            let fails = variant.model_type.is_some() && variant.model_type().is_none();
            let works = plain.model_type().map_or("without it", ModelType::name);
            let rule = "does not fit model.qkv_bias, model.qk_norm and model.sliding_window";
            c.refuse(fails, rule, works)
        },
    ),
]);
