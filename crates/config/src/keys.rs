//! The table of keys: the single source for parsing, errors, help and the reference page.
//!
//! One row per key: name, what it accepts, default, field, meaning. Adding a knob is adding a field
//! to the recipe and a row here; nothing else lists the keys. Rows stand in the order in which a
//! recipe is filled, so a default may be derived from any row above it.

use crate::key::{Default, Field, Key, Section, field};
use crate::kind::{Bound, Kind, shortest_f64};
use crate::presets;
use crate::recipe::{Dtype, Family, IsaChoice, LrSchedule, OptimName, Recipe, Source, Tokenizer};
use crate::value::Value;

use Bound::{Closed, Open};
use Default::{Derived, Fixed, Nothing};

/// Every table of a recipe, in reading order.
pub(crate) const SECTIONS: &[Section] = &[
    Section {
        name: "model",
        meaning: "The shape of the transformer.",
        in_identity: true,
        keys: MODEL,
    },
    Section { name: "data", meaning: "The text it learns from.", in_identity: true, keys: DATA },
    Section {
        name: "train",
        meaning: "How long, and in what portions.",
        in_identity: true,
        keys: TRAIN,
    },
    Section {
        name: "optim",
        meaning: "How a gradient becomes a step.",
        in_identity: true,
        keys: OPTIM,
    },
    Section { name: "precision", meaning: "Number formats.", in_identity: true, keys: PRECISION },
    Section {
        name: "numerics",
        meaning: "The promise about bits that do not depend on the layout.",
        in_identity: true,
        keys: NUMERICS,
    },
    Section {
        name: "run",
        meaning: "Where and with how many hands. Never changes a bit of the result.",
        in_identity: false,
        keys: RUN,
    },
];

/// Every key, in the order in which a recipe is filled and printed.
pub(crate) fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// The key with this full name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    all().find(|key| key.name == name)
}

/// Largest global batch; the advice of the batch rules stays below it.
pub(crate) const MAX_BATCH: i64 = 1 << 24;

/// Largest microbatch; times the most leaves it is still below the largest batch.
pub(crate) const MAX_MICROBATCH: i64 = 1 << 16;

/// Largest number of heads.
pub(crate) const MAX_HEADS: i64 = 1024;

/// Largest width.
pub(crate) const MAX_WIDTH: i64 = 1 << 16;

const fn integer(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

const fn float(low: Bound, high: Bound) -> Kind {
    Kind::Float { low, high, single: false }
}

const fn float_f32(low: Bound, high: Bound) -> Kind {
    Kind::Float { low, high, single: true }
}

const MODEL: &[Key] = &[
    Key::new(
        "model.preset",
        Kind::Choice(presets::NAMES),
        Nothing,
        Field { get: |_| None, set: |_, _| {} },
        "Takes the defaults of the other model keys from the model table of this preset.",
    ),
    Key::new(
        "model.family",
        Kind::Choice(Family::NAMES),
        Fixed("\"llama\""),
        field!(model.family: choice Family),
        "Architecture of the blocks: gpt2 has LayerNorm, learned positions, GELU and biases; \
         llama has RMSNorm, rotary positions, SwiGLU and no biases.",
    ),
    Key::new(
        "model.layers",
        integer(1, 1024),
        Fixed("4"),
        field!(model.layers: integer usize),
        "Number of transformer blocks.",
    ),
    Key::new(
        "model.width",
        integer(1, MAX_WIDTH),
        Fixed("192"),
        field!(model.width: integer usize),
        "Length of the vector that each token carries through the blocks.",
    ),
    Key::new(
        "model.heads",
        integer(1, MAX_HEADS),
        Fixed("6"),
        field!(model.heads: integer usize),
        "Number of query heads; divides model.width into heads of at most 256, even for llama.",
    ),
    Key::new(
        "model.kv_heads",
        integer(1, MAX_HEADS),
        Derived { text: "= model.heads", from: |r| integer_value(r.model.heads) },
        field!(model.kv_heads: integer usize),
        "Number of key and value heads; divides model.heads, and fewer of them is grouped-query \
         attention (llama only).",
    ),
    Key::new(
        "model.ffn",
        integer(1, 1 << 20),
        Derived {
            text: "= 4 model.width (gpt2), 8/3 model.width rounded up to a multiple of 64 (llama)",
            from: usual_ffn,
        },
        field!(model.ffn: integer usize),
        "Length of the hidden vector of the feed-forward part.",
    ),
    Key::new(
        "model.vocab",
        integer(2, 1 << 20),
        Fixed("256"),
        field!(model.vocab: integer usize),
        "Number of different tokens; at least as many as the tokenizer makes.",
    ),
    Key::new(
        "model.context",
        integer(2, 1 << 20),
        Fixed("256"),
        field!(model.context: integer usize),
        "Tokens in one training sequence, which is also how far attention looks back.",
    ),
    Key::new(
        "model.tied",
        Kind::Bool,
        Fixed("false"),
        field!(model.tied: bool),
        "Whether the output projection is the embedding table itself.",
    ),
    Key::new(
        "model.dropout",
        float_f32(Closed(0.0), Open(1.0)),
        Fixed("0.0"),
        field!(model.dropout: f32),
        "Share of activations dropped while training (attention, residual, embedding).",
    ),
    Key::new(
        "model.norm_eps",
        float_f32(Closed(1e-12), Closed(1.0)),
        Fixed("1e-5"),
        field!(model.norm_eps: f32),
        "Added to the variance in every normalisation.",
    ),
    Key::new(
        "model.rope_theta",
        float(Closed(1.0), Closed(1e12)),
        Fixed("10000.0"),
        field!(model.rope_theta: f64),
        "Base of the rotary position angles.",
    )
    .only_when("model.family", &["llama"]),
];

const DATA: &[Key] = &[
    Key::new(
        "data.source",
        Kind::Text { may_be_empty: false },
        Fixed("\"bundled\""),
        Field {
            get: |r| Some(Value::Text(r.data.source.to_string())),
            set: |r, v| {
                r.data.source = match v.as_text() {
                    "bundled" => Source::Bundled,
                    path => Source::Path(path.to_owned()),
                };
            },
        },
        "Where the text comes from: bundled, or the path of a text file or of a folder of them.",
    ),
    Key::new(
        "data.tokenizer",
        Kind::Choice(Tokenizer::NAMES),
        Fixed("\"byte\""),
        field!(data.tokenizer: choice Tokenizer),
        "How text becomes tokens; byte makes one token of each of the 256 byte values.",
    ),
    Key::new(
        "data.validation",
        float(Open(0.0), Closed(0.5)),
        Fixed("0.05"),
        field!(data.validation: f64),
        "Fraction of the text held out for validation.",
    ),
];

const TRAIN: &[Key] = &[
    Key::new(
        "train.steps",
        integer(1, 1_000_000_000_000),
        Fixed("600"),
        field!(train.steps: integer u64),
        "Number of optimizer steps.",
    ),
    Key::new(
        "train.batch",
        integer(1, MAX_BATCH),
        Fixed("16"),
        field!(train.batch: integer usize),
        "Sequences per optimizer step over all workers; a multiple of train.microbatch times \
         numerics.invariant_up_to.",
    ),
    Key::new(
        "train.microbatch",
        integer(1, MAX_MICROBATCH),
        Fixed("2"),
        field!(train.microbatch: integer usize),
        "Sequences per lane, the portion that goes through the model at once.",
    ),
    Key::new(
        "train.seed",
        integer(0, i64::MAX),
        Fixed("1"),
        field!(train.seed: integer u64),
        "Decides initial weights, dropout masks and the order of the data.",
    ),
    Key::new(
        "train.eval_every",
        integer(0, 1_000_000_000_000),
        Fixed("100"),
        field!(train.eval_every: integer u64),
        "Steps between two validations; 0 validates only at the end.",
    ),
    Key::new(
        "train.eval_batches",
        integer(1, 1_000_000),
        Fixed("8"),
        field!(train.eval_batches: integer usize),
        "Number of batches in one validation.",
    ),
];

const OPTIM: &[Key] = &[
    Key::new(
        "optim.name",
        Kind::Choice(OptimName::NAMES),
        Fixed("\"adamw\""),
        field!(optim.name: choice OptimName),
        "The update rule.",
    ),
    Key::new(
        "optim.lr",
        float(Open(0.0), Closed(1000.0)),
        Fixed("3e-3"),
        field!(optim.lr: f64),
        "Highest learning rate of the schedule.",
    ),
    Key::new(
        "optim.weight_decay",
        float(Closed(0.0), Closed(1000.0)),
        Fixed("0.1"),
        field!(optim.weight_decay: f64),
        "Pull of the weights towards zero.",
    ),
    Key::new(
        "optim.clip",
        float(Closed(0.0), Closed(1e30)),
        Fixed("1.0"),
        field!(optim.clip: f64),
        "Largest global norm of the gradient; 0 switches clipping off.",
    ),
    Key::new(
        "optim.warmup_steps",
        integer(0, 1_000_000_000_000),
        Derived { text: "= train.steps / 10", from: usual_warmup },
        field!(optim.warmup_steps: integer u64),
        "Steps over which the learning rate rises to optim.lr; at most train.steps.",
    ),
    Key::new(
        "optim.schedule",
        Kind::Choice(LrSchedule::NAMES),
        Fixed("\"cosine\""),
        field!(optim.schedule: choice LrSchedule),
        "Course of the learning rate after the warm-up.",
    ),
    Key::new(
        "optim.final_lr_fraction",
        float(Closed(0.0), Closed(1.0)),
        Fixed("0.1"),
        field!(optim.final_lr_fraction: f64),
        "Learning rate at the last step, as a fraction of optim.lr.",
    )
    .only_when("optim.schedule", &["cosine", "linear"]),
    Key::new(
        "optim.beta1",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(optim.beta1: f64),
        "Decay of the running mean of gradients.",
    )
    .only_when("optim.name", &["adamw"]),
    Key::new(
        "optim.beta2",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.95"),
        field!(optim.beta2: f64),
        "Decay of the running mean of squared gradients.",
    )
    .only_when("optim.name", &["adamw"]),
    Key::new(
        "optim.eps",
        float(Closed(1e-30), Closed(1.0)),
        Fixed("1e-8"),
        field!(optim.eps: f64),
        "Added to the denominator of the update.",
    )
    .only_when("optim.name", &["adamw"]),
    Key::new(
        "optim.momentum",
        float(Closed(0.0), Open(1.0)),
        Fixed("0.9"),
        field!(optim.momentum: f64),
        "Decay of the velocity.",
    )
    .only_when("optim.name", &["momentum"]),
];

const PRECISION: &[Key] = &[Key::new(
    "precision.compute",
    Kind::Choice(Dtype::NAMES),
    Fixed("\"f32\""),
    field!(precision.compute: choice Dtype),
    "Format of activations, weights and gradients.",
)];

const NUMERICS: &[Key] = &[Key::new(
    "numerics.invariant_up_to",
    Kind::PowerOfTwo { max: 64 },
    Fixed("8"),
    field!(numerics.invariant_up_to: integer usize),
    "Number of leaves of the gradient sum: any number of workers up to it gives the same bits.",
)];

const RUN: &[Key] = &[
    Key::new(
        "run.workers",
        Kind::Only { value: 1, why: "several workers are not available in this version" },
        Fixed("1"),
        field!(run.workers: integer usize),
        "Number of workers.",
    ),
    Key::new(
        "run.threads",
        integer(0, 1024),
        Fixed("0"),
        field!(run.threads: integer usize),
        "Threads per worker; 0 takes what the machine has.",
    ),
    Key::new(
        "run.isa",
        Kind::Choice(IsaChoice::NAMES),
        Fixed("\"auto\""),
        field!(run.isa: choice IsaChoice),
        "Instruction set of the kernels; auto takes the widest one, and all give the same bits.",
    ),
    Key::new(
        "run.dir",
        Kind::Text { may_be_empty: true },
        Fixed("\"\""),
        field!(run.dir: String),
        "Folder of the run; empty makes a fresh one under runs.",
    ),
    Key::new(
        "run.save_optimizer",
        Kind::Bool,
        Fixed("true"),
        field!(run.save_optimizer: bool),
        "Whether the final weights are saved with what resuming needs: optimizer, step, cursor.",
    ),
];

/// A count as the value of a key.
pub(crate) fn integer_value(count: usize) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// The customary size: GPT-2 widens four times; SwiGLU has a third matrix, so Llama takes two
/// thirds of that for about the same number of parameters, rounded for the kernels.
fn usual_ffn(recipe: &Recipe) -> Value {
    integer_value(match recipe.model.family {
        Family::Gpt2 => 4 * recipe.model.width,
        Family::Llama => (8 * recipe.model.width).div_ceil(3).next_multiple_of(64),
    })
}

/// A tenth of the run, so that a shortened run needs no second setting.
pub(crate) fn usual_warmup(recipe: &Recipe) -> Value {
    Value::Integer(i64::try_from(recipe.train.steps / 10).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Applies;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_stand_in_their_section() {
        let names: BTreeSet<&str> = all().map(|key| key.name).collect();
        assert_eq!(names.len(), all().count());
        for section in SECTIONS {
            let prefix = format!("{}.", section.name);
            assert!(section.keys.iter().all(|key| key.name.starts_with(&prefix)));
        }
    }

    #[test]
    fn meanings_are_sentences() {
        let sentences = all().map(|key| key.meaning).chain(SECTIONS.iter().map(|s| s.meaning));
        for meaning in sentences {
            assert!(meaning.ends_with('.') && !meaning.contains("  "), "{meaning}");
        }
    }

    #[test]
    fn a_key_depends_only_on_keys_above_it() {
        let names: Vec<&str> = all().map(|key| key.name).collect();
        for (index, key) in all().enumerate() {
            if let Applies::When { key: other, is } = key.applies {
                assert!(names[..index].contains(&other), "{} needs {other} above it", key.name);
                let Some(Key { kind: Kind::Choice(choices), .. }) = find(other) else {
                    panic!("{other} is not a choice");
                };
                assert!(is.iter().all(|name| choices.contains(name)));
            }
        }
    }
}
