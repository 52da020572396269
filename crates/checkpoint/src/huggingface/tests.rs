//! Hugging Face folders, valid and invalid.

use lockstep_config::{
    Blame, Family, LlamaVariant, Model, ModelType, Recipe, RopeScaling, RopeScalingKind,
};
use lockstep_platform::ScratchDir;
use serde_json::json;

use super::*;
use crate::weights::{FILE_NAME, NamedTensor, WeightsFile};
use crate::{ElementType, weights};

mod files;

const TABLE: [f32; 4] = [1.0, -2.5, 0.0, 3e-3];

/// A folder with a Llama of two tensors, which is stored but does not run.
struct Fixture {
    world: World,
    scratch: ScratchDir,
}

impl Fixture {
    fn new() -> Self {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "huggingface").unwrap();
        let fixture = Self { world, scratch };
        fixture.configure(&llama());
        fixture.store(FILE_NAME, &["model.embed_tokens.weight", "lm_head.weight"]);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        self.world.files().write_atomic(&self.path(name), bytes).unwrap();
    }

    fn configure(&self, config: &Value) {
        self.write(CONFIG, config.to_string().as_bytes());
    }

    /// Stores a table under each of these names.
    fn store(&self, file: &str, names: &[&str]) {
        let tensor = |name: &&'static str| NamedTensor { name, shape: &[2, 2], data: &TABLE };
        let names: Vec<&'static str> = names.iter().map(|name| &*name.to_string().leak()).collect();
        let tensors: Vec<_> = names.iter().map(tensor).collect();
        weights::save(&self.world, &self.path(file), &tensors, &BTreeMap::new()).unwrap();
    }

    fn open(&self) -> Result<Folder, CheckpointError> {
        Folder::open(&self.world, self.scratch.path())
    }

    /// The lines that opening gives, without the path of the folder.
    #[track_caller]
    fn refusals(&self) -> Vec<String> {
        let error = self.open().err().expect("it is refused");
        assert_eq!(error.blame(), Blame::User, "{error}");
        let root = format!("{}/", self.scratch.path().display());
        let text = error.to_string();
        text.lines().map(|line| line.replace(&root, "")).collect()
    }

    #[track_caller]
    fn refused(&self, line: &str) {
        assert_eq!(self.refusals(), [line]);
    }
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 2, "hidden_size": 2, "num_hidden_layers": 1,
        "num_attention_heads": 1, "intermediate_size": 4, "max_position_embeddings": 8,
    })
}

fn gpt2() -> Value {
    json!({
        "model_type": "gpt2", "vocab_size": 300, "n_embd": 12, "n_layer": 2, "n_head": 3,
        "n_positions": 8,
    })
}

fn with(mut config: Value, key: &str, value: Value) -> Value {
    config.as_object_mut().unwrap().insert(key.to_owned(), value);
    config
}

fn parse(config: &Value) -> Result<Config, CheckpointError> {
    Config::parse(Path::new(CONFIG), config.to_string().as_bytes())
}

#[track_caller]
fn refusal(config: &Value) -> String {
    let error = parse(config).unwrap_err();
    assert_eq!(error.blame(), Blame::User);
    error.to_string()
}

#[test]
fn omitted_options_have_the_defaults_of_transformers() {
    let model = parse(&gpt2()).unwrap().model;
    let expected = Model {
        family: Family::Gpt2,
        layers: 2,
        width: 12,
        heads: 3,
        kv_heads: 3,
        ffn: 48,
        vocab: 300,
        context: 8,
        tied: true,
        dropout: 0.1,
        norm_eps: 1e-5,
        ..Recipe::default().model
    };
    assert_eq!(model, expected);
    let model = parse(&llama()).unwrap().model;
    assert_eq!((model.kv_heads, model.tied), (1, false));
    assert_eq!((model.dropout.to_bits(), model.norm_eps.to_bits()), (0, 1e-6_f32.to_bits()));
    assert_eq!(model.rope_theta.to_bits(), 10_000_f64.to_bits());
}

fn gpt_neox() -> Value {
    json!({
        "model_type": "gpt_neox", "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 8,
    })
}

#[test]
fn gpt_neox_is_read_as_both_versions_write_it() {
    let model = parse(&gpt_neox()).unwrap().model;
    let expected = Model {
        family: Family::GptNeox,
        layers: 2,
        width: 16,
        heads: 2,
        kv_heads: 2,
        ffn: 24,
        vocab: 300,
        context: 8,
        norm_eps: 1e-5,
        ..Recipe::default().model
    };
    assert_eq!(model, expected);
    let old = with(with(gpt_neox(), "rotary_pct", json!(0.5)), "rotary_emb_base", json!(500));
    let common =
        with(with(old.clone(), "partial_rotary_factor", json!(0.5)), "rope_theta", json!(500));
    let group = json!({"partial_rotary_factor": 0.5, "rope_theta": 500.0, "rope_type": "default"});
    for config in [old, common, with(gpt_neox(), "rope_parameters", group)] {
        let model = parse(&config).unwrap().model;
        assert_eq!((model.rotary_dims(), model.rope_theta as usize), (4, 500), "{config}");
    }
    let mut other = with(gpt_neox(), "use_parallel_residual", json!(false));
    other = with(with(other, "hidden_dropout", json!(0.5)), "attention_dropout", json!(0.5));
    other = with(with(other, "hidden_act", json!("gelu_fast")), "tie_word_embeddings", json!(true));
    let linear = json!({"type": "linear", "factor": 2.0});
    for source in [gpt_neox(), other.clone(), with(other, "rope_scaling", linear)] {
        let config = parse(&source).unwrap();
        let written = Config::new(config.model.clone(), config.special_tokens.clone()).unwrap();
        let written: Value = serde_json::from_str(&written.to_json(ElementType::F32)).unwrap();
        assert_eq!(parse(&written).unwrap().model, config.model);
    }
    let pct = with(with(gpt_neox(), "rotary_pct", json!(0.5)), "partial_rotary_factor", json!(1.0));
    for (config, line) in [
        (
            with(gpt_neox(), "hidden_act", json!("relu")),
            "hidden_act = \"relu\" is not supported; only",
        ),
        (
            with(gpt_neox(), "attention_bias", json!(false)),
            "attention_bias = false is not supported",
        ),
        (
            with(gpt_neox(), "attention_dropout", json!(0.1)),
            "attention_dropout = 0.1 is not hidden_",
        ),
        (pct, "partial_rotary_factor = 1.0 is not rotary_pct; make them equal"),
    ] {
        assert!(
            refusal(&config).starts_with(&format!("config.json: {line}")),
            "{}",
            refusal(&config)
        );
    }
}

fn bloom() -> Value {
    json!({
        "model_type": "bloom", "vocab_size": 300, "hidden_size": 18, "n_layer": 2, "n_head": 3,
        "seq_length": 8,
    })
}

#[test]
fn bloom_is_read_under_both_names_of_its_sizes() {
    let model = parse(&bloom()).unwrap().model;
    let expected = Model {
        family: Family::Bloom,
        layers: 2,
        width: 18,
        heads: 3,
        kv_heads: 3,
        ffn: 72,
        vocab: 300,
        context: 8,
        tied: true,
        norm_eps: 1e-5,
        ..Recipe::default().model
    };
    assert_eq!(model, expected);
    let common = json!({
        "model_type": "bloom", "vocab_size": 300, "n_embed": 18, "num_hidden_layers": 2,
        "num_attention_heads": 3, "n_inner": null, "offset_alibi": 100, "skip_bias_add": true,
    });
    assert_eq!(parse(&common).unwrap().model, Model { context: 2048, ..expected });
    let other = with(with(bloom(), "hidden_dropout", json!(0.1)), "attention_dropout", json!(0.1));
    for source in [bloom(), with(other, "tie_word_embeddings", json!(false))] {
        let config = parse(&source).unwrap();
        let written = Config::new(config.model.clone(), config.special_tokens.clone()).unwrap();
        let written: Value = serde_json::from_str(&written.to_json(ElementType::F32)).unwrap();
        assert_eq!(parse(&written).unwrap().model, config.model);
    }
    let line = refusal(&with(bloom(), "apply_residual_connection_post_layernorm", json!(true)));
    let rule = "is not supported; only false is";
    assert!(line.ends_with(&format!("connection_post_layernorm = true {rule}")), "{line}");
    assert!(refusal(&with(bloom(), "n_inner", json!(40))).contains("n_inner = 40 is not four"));
    let mut odd = parse(&bloom()).unwrap().model;
    odd.ffn = 40;
    let line = Config::new(odd, Map::new()).unwrap_err().to_string();
    assert!(line.starts_with("model.ffn is not 4 model.width"), "{line}");
}

/// The configuration of another architecture with the sizes of [`llama`].
fn as_type(model_type: &str) -> Value {
    with(with(llama(), "model_type", json!(model_type)), "num_key_value_heads", Value::Null)
}

#[test]
fn descendants_of_llama_have_their_parts_and_defaults() {
    let variant = |config: &Value| parse(config).unwrap().model.variant;
    let qwen2 = parse(&as_type("qwen2")).unwrap().model;
    assert_eq!(qwen2.variant, LlamaVariant { qkv_bias: true, ..LlamaVariant::PLAIN });
    let norms = LlamaVariant { qk_norm: true, ..LlamaVariant::PLAIN };
    let qwen3 = as_type("qwen3");
    assert_eq!(variant(&qwen3), LlamaVariant { head_size: Some(128), ..norms });
    assert_eq!(variant(&with(qwen3, "head_dim", json!(2))), norms);
    let mistral = LlamaVariant {
        model_type: Some(ModelType::Mistral),
        sliding_window: Some(4096),
        ..LlamaVariant::PLAIN
    };
    assert_eq!(variant(&as_type("mistral")), mistral);
    let without = with(as_type("mistral"), "sliding_window", Value::Null);
    assert_eq!(variant(&without), LlamaVariant { sliding_window: None, ..mistral });
    let named = |model_type| LlamaVariant { model_type: Some(model_type), ..LlamaVariant::PLAIN };
    assert_eq!(variant(&as_type("olmo2")), named(ModelType::Olmo2));
    assert_eq!(variant(&as_type("phi3")), named(ModelType::Phi3));
    let mut gemma2 = as_type("gemma2");
    let options = gemma2.as_object_mut().unwrap();
    for key in ["hidden_act", "rms_norm_eps", "tie_word_embeddings"] {
        options.remove(key);
    }
    let expected = LlamaVariant {
        head_size: Some(256),
        sliding_window: Some(4096),
        query_scalar: Some(256),
        attention_soft_cap: Some(50.0),
        final_soft_cap: Some(30.0),
        ..named(ModelType::Gemma2)
    };
    let model = parse(&gemma2).unwrap().model;
    assert_eq!((model.variant, model.tied), (expected, true));
    let uncapped = with(gemma2.clone(), "attn_logit_softcapping", Value::Null);
    assert_eq!(variant(&uncapped), LlamaVariant { attention_soft_cap: None, ..expected });
    let line = refusal(&with(gemma2, "layer_types", json!(["full_attention"])));
    assert!(line.contains("only sliding_attention and full_attention in turn are"), "{line}");
    // Null is as many as query heads; an absent option has a number of its own.
    for (model_type, kv_heads) in [("llama", 1), ("mistral", 8), ("qwen2", 32), ("qwen3", 32)] {
        assert_eq!(parse(&as_type(model_type)).unwrap().model.kv_heads, 1, "{model_type}");
        let absent = with(llama(), "model_type", json!(model_type));
        assert_eq!(parse(&absent).unwrap().model.kv_heads, kv_heads, "{model_type}");
    }
}

#[test]
fn descendants_of_llama_are_written_under_their_names() {
    for model_type in ["llama", "mistral", "qwen2", "qwen3", "olmo2", "phi3", "gemma2"] {
        let source = parse(&as_type(model_type)).unwrap();
        let rewritten = Config::new(source.model.clone(), source.special_tokens.clone()).unwrap();
        assert_eq!(rewritten, source);
        let text = rewritten.to_json(ElementType::F32);
        let written: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(written["model_type"], json!(model_type));
        assert_eq!(parse(&written).unwrap().model, source.model);
    }
    let mut model = parse(&as_type("qwen2")).unwrap().model;
    model.variant.qk_norm = true;
    let line = Config::new(model, Map::new()).unwrap_err().to_string();
    assert!(line.starts_with("model.qkv_bias, model.qk_norm and"), "{line}");
}

#[test]
fn a_sliding_window_is_kept_and_does_not_limit_the_context() {
    let config = parse(&with(as_type("mistral"), "sliding_window", json!(6))).unwrap();
    assert_eq!((config.model.context, config.model.variant.sliding_window), (8, Some(6)));
    let written: Value = serde_json::from_str(&config.to_json(ElementType::F32)).unwrap();
    assert_eq!(written["sliding_window"], json!(6));
    assert_eq!(written["max_position_embeddings"], json!(8));
    let reread = parse(&written).unwrap();
    assert_eq!(reread.model, config.model);
    for model_type in ["qwen2", "qwen3"] {
        // A window that is switched off has no influence.
        let off = with(as_type(model_type), "sliding_window", json!(2));
        let off = with(off, "use_sliding_window", json!(false));
        let off = with(off, "max_window_layers", json!(1));
        let off = with(off, "layer_types", json!(["full_attention"]));
        assert_eq!(parse(&off).unwrap().model, parse(&as_type(model_type)).unwrap().model);
        for (key, value, advice) in [
            ("use_sliding_window", json!(true), "only false is"),
            ("layer_types", json!(["sliding_attention"]), "only \"full_attention\" is"),
        ] {
            let line = refusal(&with(as_type(model_type), key, value.clone()));
            assert_eq!(line, format!("config.json: {key} = {value} is not supported; {advice}"));
        }
    }
    let biased = refusal(&with(as_type("qwen3"), "attention_bias", json!(true)));
    assert_eq!(biased, "config.json: attention_bias = true is not supported; only false is");
}

#[test]
fn a_configuration_survives_being_written_in_every_format() {
    let special = json!({"bos_token_id": 1, "eos_token_id": [2, 3]});
    let wide = with(llama(), "head_dim", json!(6));
    for source in [gpt2(), with(gpt2(), "n_inner", json!(40)), llama(), wide] {
        for (key, value) in [("tie_word_embeddings", json!(true)), ("eos_token_id", json!([2]))] {
            let mut config = parse(&with(source.clone(), key, value)).unwrap();
            config.special_tokens.extend(special.as_object().unwrap().clone());
            // A file always says what pads, even if it is nothing.
            config.special_tokens.insert("pad_token_id".to_owned(), Value::Null);
            for format in ElementType::ALL {
                let text = config.to_json(format);
                let reread = Config::parse(Path::new(CONFIG), text.as_bytes()).unwrap();
                assert_eq!(reread, config);
            }
        }
    }
}

#[test]
fn the_base_of_the_angles_is_found_where_either_version_writes_it() {
    let theta = |config: &Value| parse(config).unwrap().model.rope_theta;
    let old = with(llama(), "rope_theta", json!(500_000.0));
    let new = json!({"rope_theta": 500_000.0, "rope_type": "default"});
    let new = with(llama(), "rope_parameters", new);
    assert_eq!(theta(&old).to_bits(), 500_000_f64.to_bits());
    assert_eq!(theta(&new).to_bits(), 500_000_f64.to_bits());
    // The group of the older version counts where a file has both, and its base before the other.
    let both = with(new, "rope_scaling", json!({"type": "linear", "factor": 2}));
    let both = with(both, "rope_theta", json!(7.0));
    assert_eq!(theta(&both).to_bits(), 7_f64.to_bits());
}

#[test]
fn scaled_angles_are_read_with_the_defaults_of_transformers_and_written_back() {
    let rope = |group: &Value, key: &str| {
        let config = parse(&with(llama(), key, group.clone())).unwrap();
        let reread = parse(&serde_json::from_str(&config.to_json(ElementType::F32)).unwrap());
        assert_eq!(reread.unwrap().model, config.model, "{group}");
        config.model.variant.rope
    };
    let linear = RopeScaling { kind: RopeScalingKind::Linear, factor: 2.0, ..RopeScaling::NONE };
    let dynamic = RopeScaling { kind: RopeScalingKind::Dynamic, ..linear };
    let llama3 = RopeScaling {
        kind: RopeScalingKind::Llama3,
        factor: 32.0,
        original_context: Some(8192),
        low_frequency: 1.0,
        high_frequency: 4.5,
        ..RopeScaling::NONE
    };
    let yarn = RopeScaling {
        kind: RopeScalingKind::Yarn,
        factor: 4.0,
        original_context: Some(8),
        ..RopeScaling::NONE
    };
    let chosen = RopeScaling {
        original_context: Some(4),
        attention_factor: Some(1.5),
        beta_fast: 16.0,
        beta_slow: 2.0,
        truncate: false,
        ..yarn
    };
    let magnitudes = |[one, all]: [f64; 2]| (one * 4_f64.ln() + 1.0) / (all * 4_f64.ln() + 1.0);
    let ratio = RopeScaling { attention_factor: Some(magnitudes([0.1, 0.05])), ..yarn };
    for (group, expected) in [
        (json!({"type": "linear", "factor": 2}), linear),
        (json!({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), dynamic),
        (
            json!({"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.5, "original_max_position_embeddings": 8192}),
            llama3,
        ),
        // Without an original length it is that of the model; zero and null are absent.
        (json!({"type": "yarn", "factor": 4.0, "beta_fast": 0, "mscale": null}), yarn),
        (
            json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4,
                "attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2, "truncate": false,
                "mscale": 0.5, "mscale_all_dim": 1.0}),
            chosen,
        ),
        (json!({"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}), ratio),
        (json!({"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.0}), yarn),
        (json!({"rope_type": "default"}), RopeScaling::NONE),
        (json!({}), RopeScaling::NONE),
    ] {
        for key in ["rope_scaling", "rope_parameters"] {
            assert_eq!(rope(&group, key), expected, "{group}");
        }
    }
}

#[test]
fn angles_that_the_engine_lacks_are_refused_with_the_reason() {
    for (group, reason) in [
        (json!({"rope_type": "longrope"}), "of the rope_types default, linear, dynamic, llama3"),
        (json!({"rope_type": 3}), "of the rope_types default, linear, dynamic, llama3"),
        (json!({"rope_type": "linear"}), "it has no factor"),
        (json!({"rope_type": "linear", "factor": "2"}), "factor is not a number"),
        (json!({"rope_type": "linear", "factor": 2, "mrope": 1}), "mrope is not an option of"),
        (json!({"rope_type": "llama3", "factor": 2}), "it has no low_freq_factor"),
        (json!({"rope_type": "yarn", "factor": 2, "truncate": 1}), "truncate is not true or false"),
        (
            json!({"type": "yarn", "factor": 2, "original_max_position_embeddings": 4.5}),
            "original_max_position_embeddings is not a whole number",
        ),
        (json!({"partial_rotary_factor": 0.5}), "only a partial_rotary_factor of 1.0 is"),
        (json!({"rope_theta": "big"}), "rope_theta is not a number"),
    ] {
        let line = refusal(&with(llama(), "rope_scaling", group.clone()));
        let start = format!("config.json: rope_scaling = {group} is not supported: {reason}");
        assert!(line.starts_with(&start), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
    let line = refusal(&with(llama(), "rope_parameters", json!(3)));
    assert_eq!(line, "config.json: rope_parameters = 3 is not a group of options");
}

#[test]
fn a_head_size_of_its_own_is_a_key_and_the_usual_one_is_not() {
    let head_size = |value: Value| {
        let model = parse(&with(llama(), "head_dim", value)).unwrap().model;
        (model.variant.head_size, model.head_dim())
    };
    assert_eq!(head_size(json!(4)), (Some(4), 4));
    assert_eq!(head_size(json!(2)), (None, 2));
    assert_eq!(head_size(Value::Null), (None, 2));
}

#[test]
fn options_that_change_the_result_are_refused_by_name_and_value() {
    for (config, key, value, advice) in [
        (gpt2(), "activation_function", json!("gelu"), "only \"gelu_new\" is"),
        (gpt2(), "scale_attn_weights", json!(false), "only true is"),
        (gpt2(), "scale_attn_by_inverse_layer_idx", json!(true), "only false is"),
        (gpt2(), "reorder_and_upcast_attn", json!(true), "only false is"),
        (gpt2(), "add_cross_attention", json!(true), "only false is"),
        (
            gpt2(),
            "architectures",
            json!(["GPT2ForSequenceClassification"]),
            "only GPT2LMHeadModel is",
        ),
        (gpt2(), "pruned_heads", json!({"0": [1]}), "only {} is"),
        (llama(), "hidden_act", json!("gelu"), "only \"silu\" is"),
        (llama(), "attention_bias", json!(true), "only false is"),
        (llama(), "mlp_bias", json!(true), "only false is"),
        (llama(), "attention_dropout", json!(0.1), "only 0.0 is"),
        (llama(), "sliding_window", json!(4096), "only a model without it is"),
        (llama(), "quantization_config", json!({"bits": 4}), "only a model without it is"),
        (llama(), "auto_map", json!({"AutoModel": "own.Model"}), "only a model without it is"),
        (llama(), "partial_rotary_factor", json!(0.5), "only 1.0 is"),
        (llama(), "is_encoder_decoder", json!(true), "only false is"),
    ] {
        let expected = format!("config.json: {key} = {value} is not supported; {advice}");
        assert_eq!(refusal(&with(config, key, value)), expected);
    }
    for (config, key, value, rule) in [
        (llama(), "head_dim", json!(0), "is not a size"),
        (gpt2(), "attn_pdrop", json!(0.0), "is not resid_pdrop"),
        (gpt2(), "n_ctx", json!(4), "is not n_positions"),
        (gpt2(), "n_layer", json!(-1), "is not a size"),
        (gpt2(), "n_layer", json!(2.5), "is not a size"),
        (gpt2(), "layer_norm_epsilon", json!("small"), "is not a number"),
        (gpt2(), "tie_word_embeddings", json!(1), "is not true or false"),
        (llama(), "logit_softcap", json!(30.0), "is not known here; remove it if"),
    ] {
        let start = format!("config.json: {key} = {value} {rule}");
        let line = refusal(&with(config, key, value));
        assert!(line.starts_with(&start), "{line}");
        assert!(!line.contains('\n'), "{line}");
    }
}

#[test]
fn all_errors_of_a_configuration_are_reported_at_once() {
    let mut config = with(llama(), "mlp_bias", json!(true));
    config = with(config, "novelty", json!([1]));
    config.as_object_mut().unwrap().remove("vocab_size");
    let lines: Vec<String> = refusal(&config).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("mlp_bias = true"));
    assert!(lines[1].contains("novelty = [1]"));
    assert_eq!(lines[2], "config.json: it has no vocab_size");
}

#[test]
fn other_architectures_are_refused_by_name() {
    let line = refusal(&with(llama(), "model_type", json!("mamba")));
    assert_eq!(
        line,
        "config.json: model_type = \"mamba\" is not supported; \
         gpt2, llama, mistral, qwen2, qwen3, olmo2, phi3, gemma2, gpt_neox, bloom are"
    );
    let none = refusal(&json!({"hidden_size": 2}));
    assert_eq!(
        none,
        "config.json: it has no model_type; gpt2, llama, mistral, qwen2, qwen3, olmo2, phi3, \
         gemma2, gpt_neox, bloom are known"
    );
    for text in ["", "[]", "{\"model_type\": ", "\u{feff}{}"] {
        let error = Config::parse(Path::new(CONFIG), text.as_bytes()).unwrap_err();
        let start = "config.json: not the configuration of a model: ";
        assert!(error.to_string().starts_with(start), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
}

#[test]
fn options_without_influence_and_null_are_no_obstacle() {
    let mut config = with(gpt2(), "_name_or_path", json!("somewhere"));
    for key in ["task_specific_params", "summary_type", "transformers_version"] {
        config = with(config, key, json!({"anything": [1, 2]}));
    }
    config = with(config, "novelty", Value::Null);
    config = with(config, "n_ctx", json!(8));
    assert_eq!(parse(&config).unwrap().model, parse(&gpt2()).unwrap().model);
}
