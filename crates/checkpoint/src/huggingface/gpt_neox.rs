//! The configuration of GPT-NeoX.
//!
//! Version 4 of `transformers` writes the rotary settings under the names of GPT-NeoX and under
//! common ones, version 5 in the group of the angles; they must agree.

use lockstep_config::{Family, GeluApproximate, GptNeox, LlamaVariant, Model, Recipe};
use serde_json::{Value, json};

use super::architecture::GPT_NEOX;
use super::reader::Reader;
use super::rope::{self, PARTIAL};

const ROTARY_PCT: &str = "rotary_pct";
const ROTARY_BASE: &str = "rotary_emb_base";
const ACTIVATION: &str = "hidden_act";

/// Activations by their names in `transformers`, the written one first.
const ACTIVATIONS: [(GeluApproximate, &[&str]); 2] = [
    (GeluApproximate::None, &["gelu", "gelu_python"]),
    (GeluApproximate::Tanh, &["gelu_new", "gelu_pytorch_tanh", "gelu_fast"]),
];

/// Reads the model.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Model> {
    let (width, heads) = (reader.size("hidden_size"), reader.size("num_attention_heads"));
    let (layers, vocab) = (reader.size("num_hidden_layers"), reader.size("vocab_size"));
    let (ffn, context) = (reader.size("intermediate_size"), reader.size("max_position_embeddings"));
    let norm_eps = reader.number("layer_norm_eps", GPT_NEOX.norm_eps);
    let tied = reader.flag("tie_word_embeddings", GPT_NEOX.tied);
    let dropout = reader.number("hidden_dropout", 0.0);
    reader.require_equal(
        "attention_dropout",
        (dropout, 0.0),
        "hidden_dropout, and there is one rate for all",
    );
    let parallel_residual = reader.flag("use_parallel_residual", true);
    let gelu_approximate = activation(reader);
    let common = reader.number(PARTIAL, 0.25);
    let rotary_pct = reader.number(ROTARY_PCT, common.unwrap_or(0.25));
    reader.require_equal(PARTIAL, (rotary_pct, rotary_pct.unwrap_or(0.25)), ROTARY_PCT);
    let angles = rope::read(reader, context, ROTARY_BASE, true)?;
    Some(Model {
        family: Family::GptNeox,
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
        rope_theta: angles.theta,
        variant: LlamaVariant { rope: angles.scaling, ..LlamaVariant::PLAIN },
        gpt_neox: GptNeox {
            rotary_pct: angles.partial.or(rotary_pct)?,
            parallel_residual: parallel_residual?,
            gelu_approximate: gelu_approximate?,
        },
        ..Recipe::default().model
    })
}

fn activation(reader: &mut Reader<'_>) -> Option<GeluApproximate> {
    let Some(value) = reader.value(ACTIVATION) else { return Some(GeluApproximate::None) };
    let is_its = |names: &&[&str]| value.as_str().is_some_and(|name| names.contains(&name));
    let found = ACTIVATIONS.iter().find(|(_, names)| is_its(names));
    if found.is_none() {
        reader.refuse(ACTIVATION, "is not supported; only \"gelu\" and \"gelu_new\" are");
    }
    found.map(|(approximate, _)| *approximate)
}

/// The options of a model; those of the angles' scaling are apart.
pub(super) fn options(model: &Model, dropout: f64, norm_eps: f64) -> Value {
    let GptNeox { rotary_pct, parallel_residual, gelu_approximate } = model.gpt_neox;
    let named = ACTIVATIONS.iter().find(|(approximate, _)| *approximate == gelu_approximate);
    json!({
        "architectures": [GPT_NEOX.classes[0]],
        "model_type": GPT_NEOX.model_type,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.context,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.ffn,
        ACTIVATION: named.map(|(_, names)| names[0]),
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "attention_bias": true,
        "layer_norm_eps": norm_eps,
        ROTARY_PCT: rotary_pct,
        ROTARY_BASE: model.rope_theta,
        "use_parallel_residual": parallel_residual,
        "initializer_range": 0.02,
        "tie_word_embeddings": model.tied,
    })
}
