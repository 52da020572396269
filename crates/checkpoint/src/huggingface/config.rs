//! `config.json`: the model configuration of Hugging Face, read and written.
//!
//! Omitted options have the defaults of `transformers`; sizes are required. Every option that the
//! engine computes differently is refused by name and value, all of them at once.

use std::path::Path;

use lockstep_config::{Family, Model, Recipe};
use serde_json::{Map, Value, json};

use super::{Architecture, options};
use crate::error::quoted;
use crate::{CheckpointError, ElementType};

/// A parsed `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    architecture: Architecture,
    /// Model architecture; its context is the maximum of the folder.
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
        let architecture = match options.get("model_type").and_then(Value::as_str) {
            Some("gpt2") => Architecture::Gpt2,
            Some("llama") => Architecture::Llama,
            Some(other) => {
                let other = quoted(other);
                let reason = format!("model_type = \"{other}\" is not supported; gpt2, llama are");
                return Err(foreign(reason));
            }
            None => return Err(foreign("it has no model_type; gpt2 and llama are known".into())),
        };
        let mut reader = Reader { path, options: &options, lines: Vec::new() };
        reader.refuse_unsupported(architecture);
        let model = match architecture {
            Architecture::Gpt2 => gpt2(&mut reader),
            Architecture::Llama => llama(&mut reader),
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
        let architecture = if model.family == Family::Gpt2 {
            Architecture::Gpt2
        } else if model.family == Family::Llama {
            Architecture::Llama
        } else {
            return Err(CheckpointError::NoCounterpart { family: model.family.name() });
        };
        Ok(Self { architecture, model, special_tokens })
    }

    /// Architecture of the model.
    pub(super) const fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The text of the file, for weights stored in this format.
    pub fn to_json(&self, format: ElementType) -> String {
        let mut options = match self.architecture {
            Architecture::Gpt2 => gpt2_options(&self.model),
            Architecture::Llama => llama_options(&self.model),
        };
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
        // Equal texts parse to equal numbers, so the comparison is exact.
        if reader.number(other, 0.1).map(f64::to_bits) != dropout.map(f64::to_bits) {
            reader.refuse(
                other,
                "is not resid_pdrop, and there is one rate for all; make them equal",
            );
        }
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

fn llama(reader: &mut Reader<'_>) -> Option<Model> {
    let (width, heads) = (reader.size("hidden_size"), reader.size("num_attention_heads"));
    let kv_heads = reader.optional_size("num_key_value_heads").or(heads);
    if let (Some(width), Some(heads), Some(head_dim)) =
        (width, heads, reader.optional_size("head_dim"))
        && head_dim.checked_mul(heads) != Some(width)
    {
        let usual = width / heads.max(1);
        let rule = format!("is not hidden_size / num_attention_heads = {usual}; only that works");
        reader.refuse("head_dim", &rule);
    }
    let rope_theta = rope_theta(reader);
    let (layers, vocab) = (reader.size("num_hidden_layers"), reader.size("vocab_size"));
    let (ffn, context) = (reader.size("intermediate_size"), reader.size("max_position_embeddings"));
    let norm_eps = reader.number("rms_norm_eps", 1e-6);
    let tied = reader.flag("tie_word_embeddings", false);
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
        rope_theta: rope_theta?,
        ..Recipe::default().model
    })
}

const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// Base of the rotary angles: a top-level option, or one of an option group.
fn rope_theta(reader: &mut Reader<'_>) -> Option<f64> {
    let mut theta = reader.number("rope_theta", DEFAULT_ROPE_THETA)?;
    for group in ["rope_scaling", "rope_parameters"] {
        let Some(value) = reader.value(group) else { continue };
        let plain = value.as_object().is_some_and(|members| {
            members.iter().all(|(key, value)| match key.as_str() {
                "rope_type" | "type" => value.as_str() == Some("default"),
                "rope_theta" => value.is_number(),
                "partial_rotary_factor" => value.as_f64() == Some(1.0),
                _ => false,
            })
        });
        if !plain {
            reader.refuse(group, "is not supported; only angles that are not scaled are");
            return None;
        }
        theta = value.get("rope_theta").and_then(Value::as_f64).unwrap_or(theta);
    }
    Some(theta)
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

fn llama_options(model: &Model) -> Map<String, Value> {
    object(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
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
        "attention_bias": false,
        "mlp_bias": false,
        "attention_dropout": 0.0,
        "tie_word_embeddings": model.tied,
    }))
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

/// Options of a file, and the errors found.
struct Reader<'a> {
    path: &'a Path,
    options: &'a Map<String, Value>,
    lines: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Value of an option; none for `null`.
    fn value(&self, key: &str) -> Option<&'a Value> {
        self.options.get(key).filter(|value| !value.is_null())
    }

    fn refuse(&mut self, key: &str, rule: &str) {
        let value = self.value(key).map_or("null".to_owned(), ToString::to_string);
        let (path, key, value) = (self.path.display(), quoted(key), quoted(&value));
        self.lines.push(format!("{path}: {key} = {value} {rule}"));
    }

    /// Refuses options that change the computation, and unknown ones.
    fn refuse_unsupported(&mut self, architecture: Architecture) {
        for fixed in options::FIXED.iter().chain(options::fixed_of(architecture)) {
            let Some(value) = self.value(fixed.key) else { continue };
            if !fixed.values.contains(&value.to_string().as_str()) {
                let advice = match fixed.values.first() {
                    Some(value) => format!("only {value} is"),
                    None => "only a model without it is".to_owned(),
                };
                self.refuse(fixed.key, &format!("is not supported; {advice}"));
            }
        }
        self.refuse_other_heads(architecture);
        let known = |key: &str| {
            let fixed = options::FIXED.iter().chain(options::fixed_of(architecture));
            options::read(architecture).contains(&key)
                || options::WITHOUT_INFLUENCE.contains(&key)
                || fixed.into_iter().any(|fixed| fixed.key == key)
        };
        for (key, _) in self.options.iter().filter(|(_, value)| !value.is_null()) {
            if !known(key) {
                let rule = "is not known here; remove it if it cannot change what is computed";
                self.refuse(key, rule);
            }
        }
    }

    /// Refuses other heads: a classifier has the same family and most tensors.
    fn refuse_other_heads(&mut self, architecture: Architecture) {
        let known: &[&str] = match architecture {
            Architecture::Gpt2 => &["GPT2LMHeadModel", "GPT2Model"],
            Architecture::Llama => &["LlamaForCausalLM", "LlamaModel"],
        };
        let Some(value) = self.value("architectures") else { return };
        let suits = |name: &Value| name.as_str().is_some_and(|name| known.contains(&name));
        if !value.as_array().is_some_and(|names| names.iter().all(suits)) {
            let rule = format!("is not supported; only {} is", known[0]);
            self.refuse("architectures", &rule);
        }
    }

    fn size(&mut self, key: &str) -> Option<usize> {
        if self.value(key).is_none() {
            let path = self.path.display();
            self.lines.push(format!("{path}: it has no {key}"));
        }
        self.optional_size(key)
    }

    fn optional_size(&mut self, key: &str) -> Option<usize> {
        let value = self.value(key)?;
        // Larger sizes do not fit into memory; the model keys have stricter limits.
        let size = value.as_u64().filter(|size| (1..1 << 31).contains(size));
        if size.is_none() {
            self.refuse(key, "is not a size; a whole number from 1 is");
        }
        size.map(|size| size as usize)
    }

    fn number(&mut self, key: &str, default: f64) -> Option<f64> {
        let Some(value) = self.value(key) else { return Some(default) };
        if !value.is_number() {
            self.refuse(key, "is not a number");
        }
        value.as_f64()
    }

    fn flag(&mut self, key: &str, default: bool) -> Option<bool> {
        let Some(value) = self.value(key) else { return Some(default) };
        if !value.is_boolean() {
            self.refuse(key, "is not true or false");
        }
        value.as_bool()
    }
}
