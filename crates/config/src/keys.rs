//! The key table: the single source for parsing, errors, help and the reference page.
//!
//! Tables and rows are in the order in which a recipe is filled and printed, so a default may be
//! derived from any row above it.

use crate::key::{Applies, Key, Section};
use crate::topics::{
    Checkpoint, Compress, Data, Emulate, Eval, Federated, Model, Numerics, Offload, Optim,
    Parallel, Precision, Problem, Run, Sync, Telemetry, Train, finetune,
};

/// Every table of a recipe, in reading order.
pub(crate) const SECTIONS: &[Section] = &[
    Model::TABLE,
    Problem::TABLE,
    finetune::TABLE,
    Data::TABLE,
    Train::TABLE,
    Optim::TABLE,
    Precision::TABLE,
    Numerics::TABLE,
    Run::TABLE,
    Parallel::TABLE,
    Sync::TABLE,
    Compress::TABLE,
    Federated::TABLE,
    Offload::TABLE,
    Checkpoint::TABLE,
    Telemetry::TABLE,
    Eval::TABLE,
    Emulate::TABLE,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value_type::ValueType;
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
