//! The configuration of BLOOM.
//!
//! Its scores are biased by distance, so no option limits its positions; `seq_length` is the length
//! of the sequences that it was trained on.

use lockstep_config::{Family, Model, Recipe};
use serde_json::{Value, json};

use super::architecture::BLOOM;
use super::reader::Reader;

const SEQUENCE_LENGTH: &str = "seq_length";

/// Sequence length of a file that omits the option: that of all published models.
const USUAL_LENGTH: usize = 2048;

/// Reads the model.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Model> {
    let width = first_size(reader, ["n_embed", "hidden_size"]);
    let heads = first_size(reader, ["n_head", "num_attention_heads"]);
    let layers = first_size(reader, ["n_layer", "num_hidden_layers"]);
    let vocab = reader.size("vocab_size");
    let context = match reader.value(SEQUENCE_LENGTH) {
        None => Some(USUAL_LENGTH),
        Some(_) => reader.optional_size(SEQUENCE_LENGTH),
    };
    let ffn = width.map(|width| 4 * width);
    if reader.value("n_inner").is_some() && reader.optional_size("n_inner") != ffn {
        reader.refuse("n_inner", "is not four times the hidden size, which transformers computes");
    }
    let norm_eps = reader.number("layer_norm_epsilon", BLOOM.norm_eps);
    let tied = reader.flag("tie_word_embeddings", BLOOM.tied);
    let dropout = reader.number("hidden_dropout", 0.0);
    let rule = "hidden_dropout, and there is one rate for all";
    reader.require_equal("attention_dropout", (dropout, 0.0), rule);
    Some(Model {
        family: Family::Bloom,
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

/// Size that one of two options has: BLOOM's own, or the common one.
fn first_size(reader: &mut Reader<'_>, [own, common]: [&str; 2]) -> Option<usize> {
    let key = if reader.value(own).is_some() { own } else { common };
    reader.size(key)
}

/// The options of a model.
pub(super) fn options(model: &Model, dropout: f64, norm_eps: f64) -> Value {
    json!({
        "architectures": [BLOOM.classes[0]],
        "model_type": BLOOM.model_type,
        "vocab_size": model.vocab,
        SEQUENCE_LENGTH: model.context,
        "hidden_size": model.width,
        "n_layer": model.layers,
        "n_head": model.heads,
        "hidden_dropout": dropout,
        "attention_dropout": dropout,
        "apply_residual_connection_post_layernorm": false,
        "layer_norm_epsilon": norm_eps,
        "initializer_range": 0.02,
        "tie_word_embeddings": model.tied,
    })
}
