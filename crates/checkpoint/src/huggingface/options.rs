//! Known options of a `config.json` and their treatment.
//!
//! An option is read into the model, or must have the value that the engine computes with, or
//! cannot change the result. An option in none of these lists is refused, since a new version of
//! `transformers` may have given it a meaning that changes the result unnoticed (decision record
//! `docs/decisions/0011-foreign-options.md`).

use super::Architecture;

/// An option with the only supported values, as JSON. Absent and `null` are supported too.
pub(super) struct Fixed {
    pub(super) key: &'static str,
    pub(super) values: &'static [&'static str],
}

const fn fixed(key: &'static str, values: &'static [&'static str]) -> Fixed {
    Fixed { key, values }
}

/// Options that are read into the model.
pub(super) const fn read(architecture: Architecture) -> &'static [&'static str] {
    match architecture {
        Architecture::Gpt2 => &[
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
        Architecture::Llama => &[
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
        ],
    }
}

/// Options of an architecture with a required value.
pub(super) const fn fixed_of(architecture: Architecture) -> &'static [Fixed] {
    match architecture {
        Architecture::Gpt2 => FIXED_GPT2,
        Architecture::Llama => FIXED_LLAMA,
    }
}

const FIXED_GPT2: &[Fixed] = &[
    // Both are GELU in its tanh form.
    fixed("activation_function", &["\"gelu_new\"", "\"gelu_pytorch_tanh\""]),
    fixed("scale_attn_weights", &["true"]),
    fixed("scale_attn_by_inverse_layer_idx", &["false"]),
    fixed("reorder_and_upcast_attn", &["false"]),
];

const FIXED_LLAMA: &[Fixed] = &[
    // Synonyms.
    fixed("hidden_act", &["\"silu\"", "\"swish\""]),
    fixed("attention_bias", &["false"]),
    fixed("mlp_bias", &["false"]),
    fixed("attention_dropout", &["0.0", "0"]),
    fixed("partial_rotary_factor", &["1.0", "1"]),
    fixed("rope_interleaved", &["false"]),
    fixed("sliding_window", &[]),
    fixed("use_sliding_window", &["false"]),
    fixed("layer_types", &[]),
];

/// Options of all architectures with a required value.
pub(super) const FIXED: &[Fixed] = &[
    fixed("quantization_config", &[]),
    // Custom code.
    fixed("auto_map", &[]),
    fixed("is_encoder_decoder", &["false"]),
    fixed("add_cross_attention", &["false"]),
    fixed("cross_attention_hidden_size", &[]),
    fixed("pruned_heads", &["{}"]),
];

/// Options that cannot change the logits: generation, initialisation, returned outputs, metadata.
pub(super) const WITHOUT_INFLUENCE: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "n_special",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
];

/// Options of the vocabulary, kept on export.
pub(super) const SPECIAL_TOKENS: &[&str] = &["bos_token_id", "eos_token_id", "pad_token_id"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_option_is_in_one_list_only() {
        for architecture in [Architecture::Gpt2, Architecture::Llama] {
            let fixed = fixed_of(architecture).iter().chain(FIXED).map(|fixed| fixed.key);
            let all = read(architecture).iter().copied().chain(fixed);
            let all: Vec<_> = all.chain(WITHOUT_INFLUENCE.iter().copied()).collect();
            let different: BTreeSet<_> = all.iter().collect();
            assert_eq!(different.len(), all.len());
        }
        assert!(WITHOUT_INFLUENCE.is_sorted());
    }

    #[test]
    fn the_value_that_works_is_json() {
        for architecture in [Architecture::Gpt2, Architecture::Llama] {
            for fixed in fixed_of(architecture).iter().chain(FIXED) {
                for value in fixed.values {
                    assert!(serde_json::from_str::<serde_json::Value>(value).is_ok(), "{value}");
                }
            }
        }
    }
}
