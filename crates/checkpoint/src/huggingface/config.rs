//! `config.json`: the model configuration of Hugging Face, read and written.
//!
//! Omitted options have the defaults of `transformers`; sizes are required. Every option that the
//! engine computes differently is refused by name and value, all of them at once.

use std::path::Path;

use lockstep_config::{Family, LlamaVariant, Model, Recipe};
use serde_json::{Map, Value, json};

use super::architecture::{
    self, ATTENTION_SOFT_CAP, Architecture, BLOOM, FINAL_SOFT_CAP, GEMMA2, GPT_NEOX, GPT2,
    QUERY_SCALAR, QWEN2, QWEN3, SLIDING_WINDOW,
};
use super::options::LAYER_TYPES;
use super::reader::Reader;
use super::{bloom, gpt_neox, names, options, rope};
use crate::error::quoted;
use crate::{CheckpointError, ElementType};

/// A parsed `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    architecture: &'static Architecture,
    /// Model architecture; its context is the number of positions that the folder declares.
    pub model: Model,
    /// Ids of the begin, end and padding tokens, as written.
    pub special_tokens: Map<String, Value>,
}

impl Config {
    /// Reads the text of a file; `path` is for messages.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self, CheckpointError> {
        let foreign = |reason: String| CheckpointError::Foreign { path: path.to_owned(), reason };
        let options: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| {
            foreign(quoted(&format!("not the configuration of a model: {error}")))
        })?;
        let known = architecture::ALL.map(|architecture| architecture.model_type).join(", ");
        let Some(model_type) = options.get("model_type").and_then(Value::as_str) else {
            return Err(foreign(format!("it has no model_type; {known} are known")));
        };
        let named = |architecture: &&&Architecture| architecture.model_type == model_type;
        let Some(&architecture) = architecture::ALL.iter().find(named) else {
            let other = quoted(model_type);
            let reason = format!("model_type = \"{other}\" is not supported; {known} are");
            return Err(foreign(reason));
        };
        let mut reader = Reader { path, options: &options, lines: Vec::new() };
        reader.refuse_unsupported(architecture);
        let model = match architecture.model_type {
            "gpt2" => gpt2(&mut reader),
            "gpt_neox" => gpt_neox::read(&mut reader),
            "bloom" => bloom::read(&mut reader),
            _ => llama(architecture, &mut reader),
        };
        let special_tokens = special_tokens(&options);
        match model {
            Some(model) if reader.lines.is_empty() => {
                Ok(Self { architecture, model, special_tokens })
            }
            _ => Err(CheckpointError::Options { lines: reader.lines }),
        }
    }

    /// The configuration of a model, if the format can express it.
    pub fn new(model: Model, special_tokens: Map<String, Value>) -> Result<Self, CheckpointError> {
        let architecture = match (model.family, model.variant.model_type()) {
            (Family::Gpt2, _) => &GPT2,
            (Family::GptNeox, _) => &GPT_NEOX,
            (Family::Bloom, _) if model.ffn == 4 * model.width => &BLOOM,
            (Family::Bloom, _) => {
                let line = "model.ffn is not 4 model.width, which bloom has in transformers";
                return Err(CheckpointError::Options { lines: vec![line.to_owned()] });
            }
            (Family::Llama, Some(model_type)) => Architecture::of(model_type),
            (Family::Llama, None) => {
                let line = "model.qkv_bias, model.qk_norm and model.sliding_window together \
                            cannot be a Hugging Face folder; no model_type has more than one";
                return Err(CheckpointError::Options { lines: vec![line.to_owned()] });
            }
            (family, _) => return Err(CheckpointError::NoCounterpart { family: family.name() }),
        };
        Ok(Self { architecture, model, special_tokens })
    }

    /// Architecture of the model.
    pub(super) const fn architecture(&self) -> &'static Architecture {
        self.architecture
    }

    /// Engine name of a stored tensor; none for a buffer.
    pub(crate) fn name_of(&self, stored: &str) -> Option<String> {
        names::name_of(self.architecture, stored)
    }

    /// The text of the file, for weights stored in this format.
    pub fn to_json(&self, format: ElementType) -> String {
        let Model { dropout, norm_eps, variant, .. } = &self.model;
        let mut options = match self.model.family {
            Family::Gpt2 => gpt2_options(&self.model),
            Family::GptNeox | Family::Bloom => {
                let (dropout, norm_eps) = (shortest(*dropout), shortest(*norm_eps));
                object(if self.model.family == Family::Bloom {
                    bloom::options(&self.model, dropout, norm_eps)
                } else {
                    gpt_neox::options(&self.model, dropout, norm_eps)
                })
            }
            _ => llama_options(self.architecture, &self.model),
        };
        if let Some(group) = rope::group(&variant.rope) {
            options.insert("rope_scaling".to_owned(), group);
        }
        for key in options::SPECIAL_TOKENS {
            // Without a value `transformers` would assume the default vocabulary.
            let value = self.special_tokens.get(*key).cloned().unwrap_or(Value::Null);
            options.insert((*key).to_owned(), value);
        }
        options.insert("torch_dtype".to_owned(), format.torch_name().into());
        options.insert("use_cache".to_owned(), true.into());
        let text = serde_json::to_string_pretty(&options).expect("a map by text is JSON");
        text + "\n"
    }
}

fn gpt2(reader: &mut Reader<'_>) -> Option<Model> {
    let context = reader.size("n_positions");
    if reader.value("n_ctx").is_some() && reader.optional_size("n_ctx") != context {
        reader.refuse("n_ctx", "is not n_positions; make them equal");
    }
    let width = reader.size("n_embd");
    let ffn = reader.optional_size("n_inner").or(width.map(|width| 4 * width));
    let dropout = reader.number("resid_pdrop", 0.1);
    for other in ["embd_pdrop", "attn_pdrop"] {
        let rule = "resid_pdrop, and there is one rate for all";
        reader.require_equal(other, (dropout, 0.1), rule);
    }
    let heads = reader.size("n_head");
    let (layers, vocab) = (reader.size("n_layer"), reader.size("vocab_size"));
    let norm_eps = reader.number("layer_norm_epsilon", 1e-5);
    let tied = reader.flag("tie_word_embeddings", true);
    Some(Model {
        family: Family::Gpt2,
        layers: layers?,
        width: width?,
        heads: heads?,
        kv_heads: heads?,
        ffn: ffn?,
        vocab: vocab?,
        context: context?,
        tied: tied?,
        dropout: dropout? as f32,
        norm_eps: norm_eps? as f32,
        ..Recipe::default().model
    })
}

fn llama(architecture: &Architecture, reader: &mut Reader<'_>) -> Option<Model> {
    let (width, heads) = (reader.size("hidden_size"), reader.size("num_attention_heads"));
    let kv_heads = match reader.options.get("num_key_value_heads") {
        None => architecture.kv_heads.or(heads),
        Some(_) => reader.optional_size("num_key_value_heads").or(heads),
    };
    let head_dim = reader.optional_size("head_dim").or(architecture.head_dim);
    // The usual size follows from the width, as in a recipe.
    let is_usual = |head_dim: &usize| head_dim.checked_mul(heads.unwrap_or(0)) == width;
    let head_size = head_dim.filter(|head_dim| !is_usual(head_dim));
    let (layers, vocab) = (reader.size("num_hidden_layers"), reader.size("vocab_size"));
    let (ffn, context) = (reader.size("intermediate_size"), reader.size("max_position_embeddings"));
    let sliding_window = match reader.options.get(SLIDING_WINDOW) {
        _ if !architecture.reads(SLIDING_WINDOW) => None,
        None => architecture.sliding_window,
        Some(_) => reader.optional_size(SLIDING_WINDOW),
    };
    let angles = rope::read(reader, context, "rope_theta", false);
    let norm_eps = reader.number("rms_norm_eps", architecture.norm_eps);
    let tied = reader.flag("tie_word_embeddings", architecture.tied);
    let gemma = gemma(architecture, reader, layers);
    let rope::Angles { theta: rope_theta, scaling: rope, .. } = angles?;
    let (query_scalar, [attention_soft_cap, final_soft_cap]) = gemma;
    Some(Model {
        family: Family::Llama,
        layers: layers?,
        width: width?,
        heads: heads?,
        kv_heads: kv_heads?,
        ffn: ffn?,
        vocab: vocab?,
        context: context?,
        tied: tied?,
        norm_eps: norm_eps? as f32,
        rope_theta,
        variant: LlamaVariant {
            head_size,
            qkv_bias: *architecture == QWEN2,
            qk_norm: *architecture == QWEN3,
            sliding_window,
            model_type: architecture.named,
            query_scalar,
            attention_soft_cap,
            final_soft_cap,
            rope,
        },
        ..Recipe::default().model
    })
}

/// Gemma 2's divisor of scores and bounds of scores and logits; none for other architectures.
fn gemma(
    architecture: &Architecture,
    reader: &mut Reader<'_>,
    layers: Option<usize>,
) -> (Option<usize>, [Option<f64>; 2]) {
    if *architecture != GEMMA2 {
        return (None, [None; 2]);
    }
    if let Some(types) = reader.value(LAYER_TYPES) {
        let usual: Vec<_> = (0..layers.unwrap_or(0)).map(layer_type).collect();
        if *types != json!(usual) {
            let rule = "is not supported; only sliding_attention and full_attention in turn are";
            reader.refuse(LAYER_TYPES, rule);
        }
    }
    let scalar = match reader.value(QUERY_SCALAR) {
        None => Some(256),
        Some(_) => reader.optional_size(QUERY_SCALAR),
    };
    let mut cap = |key: &str, default: f64| {
        let is_absent = !reader.options.contains_key(key);
        let bound = reader.value(key).map_or(is_absent.then_some(default), Value::as_f64);
        if reader.value(key).is_some() && !bound.is_some_and(|bound| bound > 0.0) {
            reader.refuse(key, "is not a number above zero");
        }
        bound
    };
    (scalar, [cap(ATTENTION_SOFT_CAP, 50.0), cap(FINAL_SOFT_CAP, 30.0)])
}

/// Kind of attention of one of Gemma 2's layers.
fn layer_type(index: usize) -> &'static str {
    if index.is_multiple_of(2) { "sliding_attention" } else { "full_attention" }
}

fn gpt2_options(model: &Model) -> Map<String, Value> {
    let n_inner = (model.ffn != 4 * model.width).then_some(model.ffn);
    let dropout = shortest(model.dropout);
    object(json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab,
        "n_positions": model.context,
        "n_embd": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": n_inner,
        "activation_function": "gelu_new",
        "resid_pdrop": dropout,
        "embd_pdrop": dropout,
        "attn_pdrop": dropout,
        "layer_norm_epsilon": shortest(model.norm_eps),
        "initializer_range": 0.02,
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "reorder_and_upcast_attn": false,
        "tie_word_embeddings": model.tied,
    }))
}

fn llama_options(architecture: &Architecture, model: &Model) -> Map<String, Value> {
    let mut options = object(json!({
        "architectures": [architecture.classes[0]],
        "model_type": architecture.model_type,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.context,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim(),
        "intermediate_size": model.ffn,
        "hidden_act": "silu",
        "rms_norm_eps": shortest(model.norm_eps),
        "rope_theta": model.rope_theta,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "tie_word_embeddings": model.tied,
    }));
    if architecture.reads(SLIDING_WINDOW) {
        options.insert(SLIDING_WINDOW.to_owned(), model.variant.sliding_window.into());
    }
    if *architecture == GEMMA2 {
        let LlamaVariant { query_scalar, attention_soft_cap, final_soft_cap, .. } = model.variant;
        let query_scalar = query_scalar.unwrap_or(model.head_dim());
        options.remove("hidden_act");
        options.insert("hidden_activation".to_owned(), "gelu_pytorch_tanh".into());
        options.insert(QUERY_SCALAR.to_owned(), query_scalar.into());
        options.insert(ATTENTION_SOFT_CAP.to_owned(), attention_soft_cap.into());
        options.insert(FINAL_SOFT_CAP.to_owned(), final_soft_cap.into());
    }
    for key in architecture.switched_off {
        options.insert((*key).to_owned(), false.into());
    }
    options
}

/// Ids of the special tokens among the options.
pub(super) fn special_tokens(options: &Map<String, Value>) -> Map<String, Value> {
    let kept = options::SPECIAL_TOKENS.iter().filter_map(|key| options.get_key_value(*key));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("written as an object: {other}"),
    }
}

/// The number with the shortest text of the `f32`: 1e-5, and not 9.999999747378752e-6.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().expect("a finite number")
}
