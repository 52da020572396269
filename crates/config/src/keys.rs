//! The key table: the single source for parsing, errors, help and the reference page.
//!
//! One row per key: name, value type, default, field, meaning. A new key is a field of the recipe
//! and a row here; no other place lists the keys. Rows are in the order in which a recipe is
//! filled, so a default may be derived from any row above it.
//!
//! - `model`, `data`, `problem`: the model, its training data, synthetic problems
//! - `training`, `precision`: batches, optimizer, layout invariance; number formats
//! - `sync`, `gossip`, `parameter_server`, `robust_aggregation`, `embedding_rows`, `federated`:
//!   synchronization modes
//! - `compress`: gradient compression
//! - `layout`: workers and parallelism; `offload`, `checkpoint`, `emulate`

mod model;
mod problem;

mod data;

mod precision;
mod training;

mod checkpoint;
mod compress;
mod embedding_rows;
mod emulate;
mod federated;
mod gossip;
mod layout;
mod offload;
mod parameter_server;
mod robust_aggregation;
mod sync;

use crate::key::{Applies, Key, Section};
use crate::recipe::{Family, Recipe};
use crate::value::Value;
use crate::value_type::{Bound, ValueType};

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
        meaning: "Architecture of the model.",
        in_identity: true,
        applies: Applies::Always,
        keys: MODEL,
    },
    Section {
        name: "problem",
        meaning: "Synthetic data of the small problems.",
        in_identity: true,
        applies: Applies::When { key: "model.family", is: Family::OF_PROBLEMS },
        keys: PROBLEM,
    },
    Section {
        name: "data",
        meaning: "Training data.",
        in_identity: true,
        applies: Applies::When { key: "model.family", is: Family::OF_TEXT },
        keys: DATA,
    },
    Section {
        name: "train",
        meaning: "Steps, batches and validation.",
        in_identity: true,
        applies: Applies::Always,
        keys: TRAIN,
    },
    Section {
        name: "optim",
        meaning: "Optimizer and learning-rate schedule.",
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
        meaning: "Layout invariance: results whose bits do not depend on the layout.",
        in_identity: true,
        applies: Applies::Always,
        keys: NUMERICS,
    },
    Section {
        name: "run",
        meaning: "Workers, threads and transport. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: RUN,
    },
    Section {
        name: "parallel",
        meaning: "Parallelism. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: PARALLEL,
    },
    Section {
        name: "sync",
        meaning: "Synchronization of the workers.",
        in_identity: true,
        applies: Applies::Always,
        keys: SYNC,
    },
    Section {
        name: "compress",
        meaning: "Gradient compression.",
        in_identity: true,
        applies: Applies::Always,
        keys: COMPRESS,
    },
    Section {
        name: "federated",
        meaning: "Federated learning.",
        in_identity: true,
        applies: Applies::When { key: "sync.mode", is: &["federated"] },
        keys: FEDERATED,
    },
    Section {
        name: "offload",
        meaning: "Offload to disk. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: OFFLOAD,
    },
    Section {
        name: "checkpoint",
        meaning: "Checkpoints. Never change a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: CHECKPOINT,
    },
    Section {
        name: "emulate",
        meaning: "Emulation of slower links and workers. Never changes a bit of the result.",
        in_identity: false,
        applies: Applies::Always,
        keys: EMULATE,
    },
];

/// Every key, in the order in which a recipe is filled and printed.
pub(crate) fn all() -> impl Iterator<Item = &'static Key> {
    SECTIONS.iter().flat_map(|section| section.keys)
}

/// The conditions under which a key has an effect: that of its table and its own.
pub(crate) fn conditions(key: &Key) -> [Applies; 2] {
    let is_its = |section: &&Section| key.name.split('.').next() == Some(section.name);
    let table = SECTIONS.iter().find(is_its).map_or(Applies::Always, |section| section.applies);
    [table, key.applies]
}

/// The key with this full name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    all().find(|key| key.name == name)
}

/// Largest global batch; the fixes that the batch rules suggest stay below it.
pub(crate) const MAX_BATCH: i64 = 1 << 24;

/// Largest micro-batch; times the largest number of leaves it is below the largest batch.
pub(crate) const MAX_MICROBATCH: i64 = 1 << 16;

/// Largest number of parameter groups.
pub(crate) const MAX_GROUPS: usize = 32;

/// Largest number of heads.
pub(crate) const MAX_HEADS: i64 = 1024;

/// Largest width.
pub(crate) const MAX_WIDTH: i64 = 1 << 16;

/// Largest number of workers; equal to the largest number of leaves.
pub(crate) const MAX_WORKERS: i64 = 64;

/// Largest number of tensor shards of a layer.
pub(crate) const MAX_TENSOR_SHARDS: i64 = 64;

const fn integer(min: i64, max: i64) -> ValueType {
    ValueType::Integer { min, max }
}

const fn float(low: Bound, high: Bound) -> ValueType {
    ValueType::Float { low, high, single: false }
}

const fn float_f32(low: Bound, high: Bound) -> ValueType {
    ValueType::Float { low, high, single: true }
}

/// A count as the value of a key.
pub(crate) fn integer_value(count: usize) -> Value {
    Value::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}

/// A tenth of the run, so that a shortened run needs no second setting.
pub(crate) fn default_warmup(recipe: &Recipe) -> Value {
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
                let Some(Key { value_type: ValueType::Choice(choices), .. }) = find(other) else {
                    panic!("{other} is not a choice");
                };
                assert!(is.iter().all(|name| choices.contains(name)));
            }
        }
    }
}
