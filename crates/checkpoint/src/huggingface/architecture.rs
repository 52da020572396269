//! Supported architectures as data: names, options and defaults of each `model_type`.
//!
//! GPT-2, GPT-NeoX and BLOOM have readers and writers of their own. The others are Llama with a few
//! differences, each of which is a key of the model, so they share one reader and one writer.

use lockstep_config::ModelType;

use super::options::{Fixed, LAYER_TYPES, fixed};

/// One `model_type` of `transformers`.
#[derive(Debug, PartialEq)]
pub(super) struct Architecture {
    pub(super) model_type: &'static str,
    /// Type that a recipe names, where it does not follow from other keys.
    pub(super) named: Option<ModelType>,
    /// Class of the language model, then that of the model without its head.
    pub(super) classes: [&'static str; 2],
    /// Prefix of the tensor names, which the class without a head omits.
    pub(super) prefix: &'static str,
    /// Names of the token embedding and of the output projection.
    pub(super) ends: [&'static str; 2],
    /// Options that are read into the model.
    pub(super) read: &'static [&'static str],
    /// Options with a required value.
    pub(super) fixed: &'static [Fixed],
    /// Options that are written as `false`.
    pub(super) switched_off: &'static [&'static str],
    /// Options without influence on this architecture, beside those of all.
    pub(super) ignored: &'static [&'static str],
    /// Key and value heads of a file that omits the option; none for as many as query heads.
    pub(super) kv_heads: Option<usize>,
    /// Head size of a file that omits the option; none for the width over the heads.
    pub(super) head_dim: Option<usize>,
    /// Epsilon of the norms of a file that omits the option.
    pub(super) norm_eps: f64,
    /// Whether the head of a file that omits the option is tied.
    pub(super) tied: bool,
    /// Window of a file that omits the option, where the architecture has one.
    pub(super) sliding_window: Option<usize>,
}

/// Every supported architecture.
pub(super) const ALL: [&Architecture; 10] =
    [&GPT2, &LLAMA, &MISTRAL, &QWEN2, &QWEN3, &OLMO2, &PHI3, &GEMMA2, &GPT_NEOX, &BLOOM];

/// Name of the output projection, which has no prefix.
const LM_HEAD: &str = "lm_head.weight";

impl Architecture {
    /// The architecture of a model of the Llama family.
    pub(super) const fn of(model_type: ModelType) -> &'static Self {
        match model_type {
            ModelType::Llama => &LLAMA,
            ModelType::Mistral => &MISTRAL,
            ModelType::Qwen2 => &QWEN2,
            ModelType::Qwen3 => &QWEN3,
            ModelType::Olmo2 => &OLMO2,
            ModelType::Phi3 => &PHI3,
            ModelType::Gemma2 => &GEMMA2,
        }
    }

    /// Whether this option is read into the model.
    pub(super) fn reads(&self, option: &str) -> bool {
        self.read.contains(&option)
    }
}

pub(super) static GPT2: Architecture = Architecture {
    model_type: "gpt2",
    named: None,
    classes: ["GPT2LMHeadModel", "GPT2Model"],
    prefix: "transformer.",
    ends: ["transformer.wte.weight", LM_HEAD],
    read: &[
        "vocab_size",
        "n_positions",
        "n_ctx",
        "n_embd",
        "n_layer",
        "n_head",
        "n_inner",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "layer_norm_epsilon",
        "tie_word_embeddings",
    ],
    fixed: &[
        // Both are GELU in its tanh form.
        fixed("activation_function", &["\"gelu_new\"", "\"gelu_pytorch_tanh\""]),
        fixed("scale_attn_weights", &["true"]),
        fixed("scale_attn_by_inverse_layer_idx", &["false"]),
        fixed("reorder_and_upcast_attn", &["false"]),
    ],
    switched_off: &[],
    ignored: &[],
    kv_heads: None,
    head_dim: None,
    norm_eps: 1e-5,
    tied: true,
    sliding_window: None,
};

pub(super) static GPT_NEOX: Architecture = Architecture {
    model_type: "gpt_neox",
    named: None,
    classes: ["GPTNeoXForCausalLM", "GPTNeoXModel"],
    prefix: "gpt_neox.",
    ends: ["gpt_neox.embed_in.weight", "embed_out.weight"],
    read: &[
        "vocab_size",
        "max_position_embeddings",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "hidden_dropout",
        "attention_dropout",
        "layer_norm_eps",
        "rotary_pct",
        "partial_rotary_factor",
        "rotary_emb_base",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "use_parallel_residual",
        "tie_word_embeddings",
    ],
    fixed: &[fixed("attention_bias", &["true"])],
    switched_off: &[],
    ignored: &["classifier_dropout"],
    kv_heads: None,
    head_dim: None,
    norm_eps: 1e-5,
    tied: false,
    sliding_window: None,
};

pub(super) static BLOOM: Architecture = Architecture {
    model_type: "bloom",
    named: None,
    classes: ["BloomForCausalLM", "BloomModel"],
    prefix: "transformer.",
    ends: ["transformer.word_embeddings.weight", LM_HEAD],
    read: &[
        "vocab_size",
        "seq_length",
        "hidden_size",
        "n_embed",
        "n_inner",
        "n_layer",
        "num_hidden_layers",
        "n_head",
        "num_attention_heads",
        "hidden_dropout",
        "attention_dropout",
        "layer_norm_epsilon",
        "tie_word_embeddings",
    ],
    fixed: &[fixed("apply_residual_connection_post_layernorm", &["false"])],
    switched_off: &[],
    // Kernels of the program that trained the model, which compute the same.
    ignored: &[
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",
        "unk_token_id",
    ],
    kv_heads: None,
    head_dim: None,
    norm_eps: 1e-5,
    tied: true,
    sliding_window: None,
};

pub(super) static LLAMA: Architecture = Architecture {
    model_type: "llama",
    named: None,
    classes: ["LlamaForCausalLM", "LlamaModel"],
    prefix: "model.",
    ends: ["model.embed_tokens.weight", LM_HEAD],
    read: &LLAMA_READ,
    fixed: &[
        SILU,
        NO_ATTENTION_BIAS,
        NO_MLP_BIAS,
        NO_ATTENTION_DROPOUT,
        WHOLE_ROTARY,
        NOT_INTERLEAVED,
        fixed(SLIDING_WINDOW, &[]),
        NO_SLIDING_WINDOW,
        FULL_ATTENTION,
    ],
    switched_off: &["attention_bias", "mlp_bias"],
    ignored: &[],
    kv_heads: None,
    head_dim: None,
    norm_eps: 1e-6,
    tied: false,
    sliding_window: None,
};

pub(super) static MISTRAL: Architecture = Architecture {
    model_type: "mistral",
    named: Some(ModelType::Mistral),
    classes: ["MistralForCausalLM", "MistralModel"],
    prefix: "model.",
    ends: ["model.embed_tokens.weight", LM_HEAD],
    read: &with::<1, 14>([SLIDING_WINDOW]),
    fixed: &[SILU, NO_ATTENTION_DROPOUT, WHOLE_ROTARY, fixed(LAYER_TYPES, &[])],
    switched_off: &[],
    ignored: &[],
    kv_heads: Some(8),
    head_dim: None,
    norm_eps: 1e-6,
    tied: false,
    sliding_window: Some(4096),
};

/// Number of last tokens that a token attends to, itself included.
pub(super) const SLIDING_WINDOW: &str = "sliding_window";

pub(super) static QWEN2: Architecture = Architecture {
    model_type: "qwen2",
    named: None,
    classes: ["Qwen2ForCausalLM", "Qwen2Model"],
    prefix: "model.",
    ends: ["model.embed_tokens.weight", LM_HEAD],
    read: &LLAMA_READ,
    fixed: &[SILU, NO_ATTENTION_DROPOUT, WHOLE_ROTARY, NO_SLIDING_WINDOW, FULL_ATTENTION],
    switched_off: &["use_sliding_window"],
    ignored: QWEN_IGNORED,
    kv_heads: Some(32),
    head_dim: None,
    norm_eps: 1e-6,
    tied: false,
    sliding_window: None,
};

pub(super) static QWEN3: Architecture = Architecture {
    model_type: "qwen3",
    named: None,
    classes: ["Qwen3ForCausalLM", "Qwen3Model"],
    prefix: "model.",
    ends: ["model.embed_tokens.weight", LM_HEAD],
    read: &LLAMA_READ,
    fixed: &[
        SILU,
        NO_ATTENTION_BIAS,
        NO_ATTENTION_DROPOUT,
        WHOLE_ROTARY,
        NO_SLIDING_WINDOW,
        FULL_ATTENTION,
    ],
    switched_off: &["attention_bias", "use_sliding_window"],
    ignored: QWEN_IGNORED,
    kv_heads: Some(32),
    head_dim: Some(128),
    norm_eps: 1e-6,
    tied: false,
    sliding_window: None,
};

/// Gemma 2's number by whose root scores are divided.
pub(super) const QUERY_SCALAR: &str = "query_pre_attn_scalar";
/// Bounds of Gemma 2's scores and logits.
pub(super) const ATTENTION_SOFT_CAP: &str = "attn_logit_softcapping";
pub(super) const FINAL_SOFT_CAP: &str = "final_logit_softcapping";

pub(super) static OLMO2: Architecture = Architecture {
    model_type: "olmo2",
    named: Some(ModelType::Olmo2),
    classes: ["Olmo2ForCausalLM", "Olmo2Model"],
    prefix: "model.",
    ends: ["model.embed_tokens.weight", LM_HEAD],
    read: &LLAMA_READ,
    fixed: &[
        SILU,
        NO_ATTENTION_BIAS,
        NO_ATTENTION_DROPOUT,
        WHOLE_ROTARY,
        fixed(SLIDING_WINDOW, &[]),
        FULL_ATTENTION,
    ],
    switched_off: &["attention_bias"],
    ignored: &[],
    kv_heads: None,
    head_dim: None,
    norm_eps: 1e-5,
    tied: false,
    sliding_window: None,
};

pub(super) static PHI3: Architecture = Architecture {
    model_type: "phi3",
    named: Some(ModelType::Phi3),
    classes: ["Phi3ForCausalLM", "Phi3Model"],
    prefix: "model.",
    ends: ["model.embed_tokens.weight", LM_HEAD],
    read: &with::<1, 14>([SLIDING_WINDOW]),
    fixed: &[
        SILU,
        NO_ATTENTION_BIAS,
        NO_ATTENTION_DROPOUT,
        WHOLE_ROTARY,
        fixed("resid_pdrop", &["0.0", "0"]),
        fixed("embd_pdrop", &["0.0", "0"]),
        fixed(LAYER_TYPES, &[]),
    ],
    switched_off: &[],
    // Only scaled angles, which are refused, read the positions before their scaling.
    ignored: &["original_max_position_embeddings"],
    kv_heads: None,
    head_dim: None,
    norm_eps: 1e-5,
    tied: false,
    sliding_window: None,
};

pub(super) static GEMMA2: Architecture = Architecture {
    model_type: "gemma2",
    named: Some(ModelType::Gemma2),
    classes: ["Gemma2ForCausalLM", "Gemma2Model"],
    prefix: "model.",
    ends: ["model.embed_tokens.weight", LM_HEAD],
    read: &with::<5, 18>([
        SLIDING_WINDOW,
        QUERY_SCALAR,
        ATTENTION_SOFT_CAP,
        FINAL_SOFT_CAP,
        LAYER_TYPES,
    ]),
    fixed: &[
        fixed("hidden_activation", &["\"gelu_pytorch_tanh\""]),
        NO_ATTENTION_BIAS,
        NO_ATTENTION_DROPOUT,
        WHOLE_ROTARY,
        fixed("use_bidirectional_attention", &["false"]),
    ],
    switched_off: &["attention_bias"],
    // Replaced by the other option for activations.
    ignored: &["hidden_act", "cache_implementation"],
    kv_heads: Some(4),
    head_dim: Some(256),
    norm_eps: 1e-6,
    tied: true,
    sliding_window: Some(4096),
};

/// Options of sliding windows, which have no influence without them.
const QWEN_IGNORED: &[&str] = &["max_window_layers", SLIDING_WINDOW, "use_mrope"];

const LLAMA_READ: [&str; 13] = [
    "vocab_size",
    "max_position_embeddings",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
];

/// The options of Llama and others.
const fn with<const N: usize, const ALL: usize>(others: [&'static str; N]) -> [&'static str; ALL] {
    assert!(ALL == N + LLAMA_READ.len(), "room for all options");
    let mut options = [""; ALL];
    let mut index = 0;
    while index < ALL {
        options[index] = if index < N { others[index] } else { LLAMA_READ[index - N] };
        index += 1;
    }
    options
}

// Synonyms.
const SILU: Fixed = fixed("hidden_act", &["\"silu\"", "\"swish\""]);
const NO_ATTENTION_BIAS: Fixed = fixed("attention_bias", &["false"]);
const NO_MLP_BIAS: Fixed = fixed("mlp_bias", &["false"]);
const NO_ATTENTION_DROPOUT: Fixed = fixed("attention_dropout", &["0.0", "0"]);
const WHOLE_ROTARY: Fixed = fixed("partial_rotary_factor", &["1.0", "1"]);
const NOT_INTERLEAVED: Fixed = fixed("rope_interleaved", &["false"]);
// One per layer.
const FULL_ATTENTION: Fixed = fixed(LAYER_TYPES, &["\"full_attention\""]);
const NO_SLIDING_WINDOW: Fixed = fixed("use_sliding_window", &["false"]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huggingface::options::{FIXED, WITHOUT_INFLUENCE};
    use std::collections::BTreeSet;

    #[test]
    fn an_option_is_in_one_list_only() {
        for architecture in ALL {
            let fixed = architecture.fixed.iter().chain(FIXED).map(|fixed| fixed.key);
            let own = architecture.read.iter().chain(architecture.ignored).copied();
            let all: Vec<_> = own.chain(fixed).chain(WITHOUT_INFLUENCE.iter().copied()).collect();
            let different: BTreeSet<_> = all.iter().collect();
            assert_eq!(different.len(), all.len(), "{}", architecture.model_type);
        }
        assert!(WITHOUT_INFLUENCE.is_sorted());
    }

    #[test]
    fn the_value_that_works_is_json() {
        for fixed in ALL.iter().flat_map(|architecture| architecture.fixed).chain(FIXED) {
            for value in fixed.values {
                assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{value}");
            }
        }
    }
}
