//! The table of keys: the single source for parsing, errors, help and the reference page.
//!
//! One row per key: name, what it accepts, default, field, meaning. Adding a knob is adding a field
//! to the recipe and a row here; nothing else lists the keys. Rows stand in the order in which a
//! recipe is filled, so a default may be derived from any row above it.
//!
//! - `model`: the model; `data`: its text
//! - `problem`: what a small problem has instead of a text
//! - `training`: portions, update rule, the promise about bits; `precision`: number formats
//! - `sync`: when workers agree; `compress`: in how few bytes
//! - `layout`: workers and what they share; `offload`: what lies on a disk; `checkpoint`: when a
//!   run is saved; `emulate`: worse hardware than there is

mod model;
mod problem;

mod data;

mod precision;
mod training;

mod checkpoint;
mod compress;
mod emulate;
mod federated;
mod layout;
mod loose;
mod offload;
mod rows;
mod served;
mod sync;

use crate::key::{Applies, Key, Section};
use crate::kind::{Bound, Kind};
use crate::recipe::{Family, Recipe};
use crate::value::Value;

use checkpoint::CHECKPOINT;
use compress::COMPRESS;
use data::DATA;
use emulate::EMULATE;
use federated::FEDERATED;
use layout::{PARALLEL, RUN};
use model::MODEL;
use offload::OFFLOAD;
use precision::PRECISION;
use problem::PROBLEM;
use sync::SYNC;
use training::{NUMERICS, OPTIM, TRAIN};

/// Every table of a recipe, in reading order.
pub(crate) const SECTIONS: &[Section] = &[
    Section {
        name: "model",
        meaning: "The shape of the transformer.",
        in_identity: true,
        applies: Applies::Always,
        keys: MODEL,
    },
    Section {
        name: "problem",
        meaning: "What a small problem learns from, made on the spot, instead of text.",
        in_identity: true,
        applies: Applies::When { key: "model.family", is: Family::OF_PROBLEMS },
        keys: PROBLEM,
    },
    Section {
        name: "data",
        meaning: "The text it learns from.",
        in_identity: true,
        applies: Applies::When { key: "model.family", is: Family::OF_TEXT },
        keys: DATA,
    },
    Section {
        name: "train",
        meaning: "How long, and in what portions.",
        in_identity: true,
        applies: Applies::Always,
        keys: TRAIN,
    },
    Section {
        name: "optim",
        meaning: "How a gradient becomes a step.",
        in_identity: true,
        applies: Applies::Always,
        keys: OPTIM,
    },
    Section {
        name: "precision",
        meaning: "Number formats.",
        in_identity: true,
        applies: Applies::Always,
        keys: PRECISION,
    },
    Section {
        name: "numerics",
        meaning: "The promise about bits that do not depend on the layout.",
        in_identity: true,
        applies: Applies::Always,
        keys: NUMERICS,
    },
    Section {
        name: "run",
        meaning: "Where and with how many hands. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: RUN,
    },
    Section {
        name: "parallel",
        meaning: "How the work is divided among the workers. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: PARALLEL,
    },
    Section {
        name: "sync",
        meaning: "When workers agree on the weights.",
        in_identity: true,
        applies: Applies::Always,
        keys: SYNC,
    },
    Section {
        name: "compress",
        meaning: "In how few bytes gradients travel.",
        in_identity: true,
        applies: Applies::Always,
        keys: COMPRESS,
    },
    Section {
        name: "federated",
        meaning: "Clients that keep their data, and a coordinator.",
        in_identity: true,
        applies: Applies::When { key: "sync.mode", is: &["federated"] },
        keys: FEDERATED,
    },
    Section {
        name: "offload",
        meaning: "What lies on a disk instead of in memory. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: OFFLOAD,
    },
    Section {
        name: "checkpoint",
        meaning: "When the run is saved, and where. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: CHECKPOINT,
    },
    Section {
        name: "emulate",
        meaning: "Worse hardware than there is, to try things. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: EMULATE,
    },
];

/// Every key, in the order in which a recipe is filled and printed.
pub(crate) fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// When a key means anything: its own condition, and that of its table.
pub(crate) fn conditions(key: &Key) -> [Applies; 2] {
    let is_its = |section: &&Section| key.name.split('.').next() == Some(section.name);
    let table = SECTIONS.iter().find(is_its).map_or(Applies::Always, |section| section.applies);
    [table, key.applies]
}

/// The key with this full name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    all().find(|key| key.name == name)
}

/// Largest global batch; the advice of the batch rules stays below it.
pub(crate) const MAX_BATCH: i64 = 1 << 24;

/// Largest microbatch; times the most leaves it is still below the largest batch.
pub(crate) const MAX_MICROBATCH: i64 = 1 << 16;

/// Most groups of parameters.
pub(crate) const MAX_GROUPS: usize = 32;

/// Largest number of heads.
pub(crate) const MAX_HEADS: i64 = 1024;

/// Largest width.
pub(crate) const MAX_WIDTH: i64 = 1 << 16;

/// Most workers; as many as the most leaves.
pub(crate) const MAX_WORKERS: i64 = 64;

/// The most slices that layers are cut into.
pub(crate) const MAX_SLICES: i64 = 64;

const fn integer(min: i64, max: i64) -> Kind {
    Kind::Integer { min, max }
}

const fn float(low: Bound, high: Bound) -> Kind {
    Kind::Float { low, high, single: false }
}

const fn float_f32(low: Bound, high: Bound) -> Kind {
    Kind::Float { low, high, single: true }
}

/// A count as the value of a key.
pub(crate) fn integer_value(count: usize) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// A tenth of the run, so that a shortened run needs no second setting.
pub(crate) fn usual_warmup(recipe: &Recipe) -> Value {
    Value::Integer(i64::try_from(recipe.train.steps / 10).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
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
            for condition in conditions(key) {
                let Applies::When { key: other, is } = condition else { continue };
                assert!(names[..index].contains(&other), "{} needs {other} above it", key.name);
                let Some(Key { kind: Kind::Choice(choices), .. }) = find(other) else {
                    panic!("{other} is not a choice");
                };
                assert!(is.iter().all(|name| choices.contains(name)));
            }
        }
    }
}
