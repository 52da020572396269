//! Known options of a `config.json` and their treatment.
//!
//! An option is read into the model, or must have the value that the engine computes with, or
//! cannot change the result. An option in none of these lists is refused, since a new version of
//! `transformers` may have given it a meaning that changes the result unnoticed (decision record
//! `docs/decisions/0011-foreign-options.md`).

/// An option with the only supported values, as JSON. Absent and `null` are supported too.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) key: &'static str,
    pub(super) values: &'static [&'static str],
}

pub(super) const fn fixed(key: &'static str, values: &'static [&'static str]) -> Fixed {
    Fixed { key, values }
}

/// Kind of attention of every layer, a list.
pub(super) const LAYER_TYPES: &str = "layer_types";

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
