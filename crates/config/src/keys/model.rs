//! Keys of the model architecture; a small problem has few of them.

use super::{MAX_HEADS, MAX_WIDTH, float, float_f32, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::presets;
use crate::recipe::{Activation, Family, Recipe};
use crate::value::Value;
use crate::value_type::{Bound, ValueType, shortest_f64};

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

pub(super) const MODEL: &[Key] = &[
    Key::new(
        "model.preset",
        ValueType::Choice(presets::NAMES),
        Nothing,
        Field { get: |_| None, set: |_, _| {} },
        "Preset whose model table gives the defaults of the other model keys.",
    ),
    Key::new(
        "model.from",
        ValueType::Text { may_be_empty: false },
        Nothing,
        Field {
            // An absent value is not part of the recipe's identity.
            get: |r| (!r.from.is_empty()).then(|| Value::Text(r.from.clone())),
            set: |r, v| v.as_text().clone_into(&mut r.from),
        },
        "Folder of a model to start from, of Hugging Face or of a finished run; the other model \
         keys follow from it (context may be shorter, dropout may differ).",
    ),
    Key::new(
        "model.partial",
        ValueType::Bool,
        Nothing,
        Field {
            get: |r| r.partial.then_some(Value::Bool(true)),
            set: |r, v| r.partial = v.as_bool(),
        },
        "Loads only the weights of model.from that match a parameter by name and shape; the others \
         are initialised, and the model keys are the recipe's own.",
    ),
    Key::new(
        "model.family",
        ValueType::Choice(Family::NAMES),
        Fixed("\"llama\""),
        field!(model.family: choice Family),
        "Architecture: gpt2 has LayerNorm, learned positions, GELU and biases; llama has RMSNorm, \
         rotary positions, SwiGLU and no biases. Small problems: mlp classifies drawn digits; \
         quadratic, ridge and logistic are convex with a known optimum.",
    ),
    Key::new(
        "model.layers",
        integer(1, 1024),
        Fixed("4"),
        field!(model.layers: integer usize),
        "Number of transformer layers, or of hidden layers of an mlp.",
    )
    .only_when("model.family", LAYERED),
    Key::new(
        "model.width",
        integer(1, MAX_WIDTH),
        Fixed("64"),
        field!(model.width: integer usize),
        "Hidden size of the transformer, or width of a hidden layer of an mlp.",
    )
    .only_when("model.family", LAYERED),
    Key::new(
        "model.heads",
        integer(1, MAX_HEADS),
        Fixed("4"),
        field!(model.heads: integer usize),
        "Number of query heads; divides model.width into heads of at most 256, even for llama.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.kv_heads",
        integer(1, MAX_HEADS),
        Derived { text: "= model.heads", from: |r| integer_value(r.model.heads) },
        field!(model.kv_heads: integer usize),
        "Number of key and value heads; divides model.heads, and fewer is grouped-query attention \
         (llama only).",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.ffn",
        integer(1, 1 << 20),
        Derived {
            text: "= 4 model.width (gpt2), 8/3 model.width rounded up to a multiple of 64 (llama)",
            from: default_ffn,
        },
        field!(model.ffn: integer usize),
        "Intermediate size of the feed-forward network.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.vocab",
        integer(2, 1 << 20),
        Fixed("256"),
        field!(model.vocab: integer usize),
        "Vocabulary size; at least that of the tokenizer.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.context",
        integer(2, 1 << 20),
        Fixed("128"),
        field!(model.context: integer usize),
        "Sequence length in tokens.",
    )
    .only_when("model.family", Family::OF_TEXT)
    .inactive_count(1),
    Key::new(
        "model.max_positions",
        integer(2, i32::MAX as i64),
        Nothing,
        Field {
            get: |r| r.max_positions.map(integer_value),
            set: |r, v| r.max_positions = Some(v.as_integer() as usize),
        },
        "Maximum number of positions that an exported model declares, at least model.context; that \
         of model.from survives training with a shorter context. Otherwise it is model.context.",
    )
    .only_when("model.family", &["llama"])
    .in_identity_when(|_| false),
    Key::new(
        "model.tied",
        ValueType::Bool,
        Fixed("false"),
        field!(model.tied: bool),
        "Whether the output projection shares the weights of the token embedding.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.dropout",
        float_f32(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(model.dropout: f32),
        "Dropout probability (attention, residual, embedding).",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.norm_eps",
        float_f32(Closed(1e-12), Closed(1.0)),
        Fixed("1e-5"),
        field!(model.norm_eps: f32),
        "Epsilon of the normalisation layers.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.rope_theta",
        float(Closed(1.0), Closed(1e12)),
        Fixed("10000.0"),
        field!(model.rope_theta: f64),
        "Base of the rotary position angles.",
    )
    .only_when("model.family", &["llama"]),
    Key::new(
        "model.activation",
        ValueType::Choice(Activation::NAMES),
        Fixed("\"relu\""),
        field!(model.problem.activation: choice Activation),
        "Activation function between the linear layers.",
    )
    .only_when("model.family", &["mlp"]),
];

/// Families with layers and a width.
const LAYERED: &[&str] = &["gpt2", "llama", "mlp"];

/// Customary size: four times the width for GPT-2; two thirds of that for Llama, whose SwiGLU has a
/// third matrix, rounded up for the kernels.
fn default_ffn(recipe: &Recipe) -> Value {
    integer_value(match recipe.model.family {
        Family::Llama => (8 * recipe.model.width).div_ceil(3).next_multiple_of(64),
        _ => 4 * recipe.model.width,
    })
}
