//! Keys of the model. A small problem has few of them.

use super::{MAX_HEADS, MAX_WIDTH, float, float_f32, integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Bound, Kind, shortest_f64};
use crate::presets;
use crate::recipe::{Activation, Family, Recipe};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

pub(super) const MODEL: &[Key] = &[
    Key::new(
        "model.preset",
        Kind::Choice(presets::NAMES),
        Nothing,
        Field { get: |_| None, set: |_, _| {} },
        "Takes the defaults of the other model keys from the model table of this preset.",
    ),
    Key::new(
        "model.from",
        Kind::Text { may_be_empty: false },
        Nothing,
        Field {
            // Where it is absent it is no part of the recipe's identity.
            get: |r| (!r.from.is_empty()).then(|| Value::Text(r.from.clone())),
            set: |r, v| v.as_text().clone_into(&mut r.from),
        },
        "Folder of a model to start from, one of Hugging Face or of a finished run; the other \
         model keys follow from it (context may be less, dropout may differ).",
    ),
    Key::new(
        "model.partial",
        Kind::Bool,
        Nothing,
        Field {
            get: |r| r.partial.then_some(Value::Bool(true)),
            set: |r, v| r.partial = v.as_bool(),
        },
        "Takes only those weights of model.from that this model has too, by name and shape; the \
         others begin afresh, and the model keys are the recipe's own.",
    ),
    Key::new(
        "model.family",
        Kind::Choice(Family::NAMES),
        Fixed("\"llama\""),
        field!(model.family: choice Family),
        "Architecture of the blocks: gpt2 has LayerNorm, learned positions, GELU and biases; \
         llama has RMSNorm, rotary positions, SwiGLU and no biases. Small problems: mlp classifies \
         drawn digits; quadratic, ridge and logistic are convex and their optimum is known.",
    ),
    Key::new(
        "model.layers",
        integer(1, 1024),
        Fixed("4"),
        field!(model.layers: integer usize),
        "Number of transformer blocks, or of hidden layers of an mlp.",
    )
    .only_when("model.family", LAYERED),
    Key::new(
        "model.width",
        integer(1, MAX_WIDTH),
        Fixed("192"),
        field!(model.width: integer usize),
        "Length of the vector that each token carries through the blocks, or of a hidden layer.",
    )
    .only_when("model.family", LAYERED),
    Key::new(
        "model.heads",
        integer(1, MAX_HEADS),
        Fixed("6"),
        field!(model.heads: integer usize),
        "Number of query heads; divides model.width into heads of at most 256, even for llama.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.kv_heads",
        integer(1, MAX_HEADS),
        Derived { text: "= model.heads", from: |r| integer_value(r.model.heads) },
        field!(model.kv_heads: integer usize),
        "Number of key and value heads; divides model.heads, and fewer of them is grouped-query \
         attention (llama only).",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.ffn",
        integer(1, 1 << 20),
        Derived {
            text: "= 4 model.width (gpt2), 8/3 model.width rounded up to a multiple of 64 (llama)",
            from: usual_ffn,
        },
        field!(model.ffn: integer usize),
        "Length of the hidden vector of the feed-forward part.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.vocab",
        integer(2, 1 << 20),
        Fixed("256"),
        field!(model.vocab: integer usize),
        "Number of different tokens; at least as many as the tokenizer makes.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.context",
        integer(2, 1 << 20),
        Fixed("256"),
        field!(model.context: integer usize),
        "Tokens in one training sequence, which is also how far attention looks back.",
    )
    .only_when("model.family", Family::OF_TEXT)
    .else_count(1),
    Key::new(
        "model.tied",
        Kind::Bool,
        Fixed("false"),
        field!(model.tied: bool),
        "Whether the output projection is the embedding table itself.",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.dropout",
        float_f32(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(model.dropout: f32),
        "Share of activations dropped while training (attention, residual, embedding).",
    )
    .only_when("model.family", Family::OF_TEXT),
    Key::new(
        "model.norm_eps",
        float_f32(Closed(1e-12), Closed(1.0)),
        Fixed("1e-5"),
        field!(model.norm_eps: f32),
        "Added to the variance in every normalisation.",
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
        Kind::Choice(Activation::NAMES),
        Fixed("\"relu\""),
        field!(model.problem.activation: choice Activation),
        "What lies between the linear layers.",
    )
    .only_when("model.family", &["mlp"]),
];

/// The families that have layers of a width.
const LAYERED: &[&str] = &["gpt2", "llama", "mlp"];

/// The customary size: GPT-2 widens four times; SwiGLU has a third matrix, so Llama takes two
/// thirds of that for about the same number of parameters, rounded for the kernels.
fn usual_ffn(recipe: &Recipe) -> Value {
    integer_value(match recipe.model.family {
        Family::Llama => (8 * recipe.model.width).div_ceil(3).next_multiple_of(64),
        _ => 4 * recipe.model.width,
    })
}
