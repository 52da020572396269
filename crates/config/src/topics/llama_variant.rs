//! Differences of the models that descend from Llama: Llama 3, Qwen2, Qwen3, Mistral, OLMo 2, Phi-3
//! and Gemma 2 are one architecture with other values of these keys.

use super::{Recipe, RopeScaling};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value_type::Bound::{Closed, Open};

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

        /// Number of last tokens that a token attends to, itself included (Mistral, Phi-3); in
        /// Gemma 2 that of the first and every second layer after it.
        sliding_window: Option<usize> = none, integer(1, i32::MAX as i64),
            when("model.family", &["llama"]), in_identity_when(has_shorter_window);

        /// Hugging Face's model_type, where it does not follow from model.qkv_bias (qwen2),
        /// model.qk_norm (qwen3) or model.sliding_window (mistral). olmo2, phi3 and gemma2 have
        /// parts or tensors of their own.
        model_type: Option<ModelType> = none, when("model.family", &["llama"]),
            in_identity_when(has_own_parts);

        /// Head size by whose square root scores are divided, where it is not model.head_dim
        /// (Gemma 2's query_pre_attn_scalar).
        query_scalar: Option<usize> = none, integer(1, 1 << 20),
            when("model.family", &["llama"]), in_identity_unless_default();

        /// Bound of attention's scores, which a tanh approaches (Gemma 2).
        attention_soft_cap: Option<f64> = none, float(Open(0.0), Closed(1e6)),
            when("model.family", &["llama"]), in_identity_unless_default();

        /// Bound of the logits, which a tanh approaches (Gemma 2).
        final_soft_cap: Option<f64> = none, float(Open(0.0), Closed(1e6)),
            when("model.family", &["llama"]), in_identity_unless_default();

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
        /// OLMo 2: Llama with norms behind attention and feed-forward, and over queries and keys.
        Olmo2 = "olmo2",
        /// Phi-3: Llama with fused tensors, and a sliding window.
        Phi3 = "phi3",
        /// Gemma 2: Llama with GeGLU, norms before and behind both halves, a scaled embedding, and
        /// a window in every second layer.
        Gemma2 = "gemma2",
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
        query_scalar: None,
        attention_soft_cap: None,
        final_soft_cap: None,
        rope: RopeScaling::NONE,
    };

    /// Hugging Face's name of such a model; none where no model there has these parts.
    pub const fn model_type(&self) -> Option<ModelType> {
        let has_window = self.sliding_window.is_some();
        match (self.qkv_bias, self.qk_norm, has_window, self.model_type) {
            (true, false, false, None | Some(ModelType::Qwen2)) => Some(ModelType::Qwen2),
            (false, true, false, None | Some(ModelType::Qwen3)) => Some(ModelType::Qwen3),
            (false, false, false, None | Some(ModelType::Llama)) => Some(ModelType::Llama),
            (false, false, true, None) => Some(ModelType::Mistral),
            (false, false, false, Some(ModelType::Olmo2)) => Some(ModelType::Olmo2),
            (
                false,
                false,
                _,
                own @ Some(ModelType::Mistral | ModelType::Phi3 | ModelType::Gemma2),
            ) => own,
            _ => None,
        }
    }

    /// Reason why the kernels of accelerators cannot compute a model with this context, if any.
    pub(super) fn cpu_only(&self, context: usize) -> Option<&'static str> {
        if self.model_type == Some(ModelType::Gemma2) {
            return Some("CUDA has no kernels for the parts of model.model_type = gemma2");
        }
        self.sliding_window.is_some_and(|window| window < context).then_some(
            "CUDA has no kernel for a model.sliding_window below model.context; a shorter context \
             has none",
        )
    }

    /// Whether scores or logits differ in a way that only Gemma 2 has.
    const fn has_caps(&self) -> bool {
        let caps = self.attention_soft_cap.is_some() || self.final_soft_cap.is_some();
        caps || self.query_scalar.is_some()
    }
}

/// Whether a token attends to fewer tokens than the context has.
fn has_shorter_window(recipe: &Recipe) -> bool {
    recipe.model.variant.sliding_window.is_some_and(|window| window < recipe.model.context)
}

/// Whether the type of the model changes its parts or the names of its tensors.
fn has_own_parts(recipe: &Recipe) -> bool {
    use ModelType::{Gemma2, Olmo2, Phi3};
    matches!(recipe.model.variant.model_type, Some(Olmo2 | Phi3 | Gemma2))
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["model.head_dim"], |c| {
        let odd = c.model.variant.head_size.filter(|head_dim| !head_dim.is_multiple_of(2));
        let works = odd.map_or(0, |head_dim| head_dim - 1);
        c.refuse(odd.is_some(), "is odd, and rotary positions turn pairs of elements", works)
    }),
    Rule::new(&["model.model_type", "numerics.invariant_tensor_up_to", "parallel.tensor"], |c| {
        let shards = c.numerics.invariant_tensor_up_to.max(c.parallel.tensor);
        let is_whole = c.model.variant.model_type == Some(ModelType::Olmo2);
        let rule = format!(
            "normalises all queries together, and {shards} tensor-parallel shards have a part each"
        );
        c.refuse(is_whole && shards > 1, rule, "without parallel.tensor")
    }),
    Rule::new(&["model.model_type", "finetune.lora_rank", "finetune.lora_targets"], |c| {
        let is_fused = c.model.variant.model_type == Some(ModelType::Phi3);
        let rule = "has fused tensors, and adapters are of separate ones";
        c.refuse(is_fused && c.model.lora.is_on(), rule, "finetune.lora_rank = 0")
    }),
    Rule::new(
        &[
            "model.model_type",
            "model.query_scalar",
            "model.attention_soft_cap",
            "model.final_soft_cap",
        ],
        |c| {
            let variant = &c.model.variant;
            let is_other = variant.model_type != Some(ModelType::Gemma2);
            let rule =
                "has no model.query_scalar, model.attention_soft_cap or model.final_soft_cap";
            c.refuse(is_other && variant.has_caps(), rule, "gemma2")
        },
    ),
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
