//! The key reference, generated from the key table.

use serde::Serialize;

use crate::key::{Applies, Default as KeyDefault, Key};
use crate::keys::{self, SECTIONS};
use crate::presets::presets;

/// Documentation of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyDoc {
    /// Full name, such as `model.layers`.
    pub name: &'static str,
    /// Meaning in a sentence.
    pub meaning: String,
    /// Default as written, the formula of a derived default, or `none`.
    pub default: &'static str,
    /// Allowed values.
    pub allowed: String,
}

/// Every key, in reading order.
pub fn describe_keys() -> Vec<KeyDoc> {
    keys::all().map(describe_key).collect()
}

/// One key.
pub(crate) fn describe_key(key: &'static Key) -> KeyDoc {
    describe(key, &keys::conditions(key))
}

fn describe(key: &'static Key, conditions: &[Applies]) -> KeyDoc {
    let default = match key.default {
        KeyDefault::Fixed(text) | KeyDefault::Derived { text, .. } => text,
        KeyDefault::Nothing => NO_DEFAULT,
    };
    let meaning = meaning(key.meaning, conditions);
    KeyDoc { name: key.name, meaning, default, allowed: key.value_type.allowed() }
}

/// Meaning of a key or table with its narrowest condition, which comes last.
fn meaning(meaning: &str, conditions: &[Applies]) -> String {
    let narrowest = conditions.iter().rev().find_map(|condition| match condition {
        Applies::Always => None,
        Applies::When { key, is } => {
            Some(format!("{meaning} Only with {key} = {}.", is.join(" or ")))
        }
    });
    narrowest.unwrap_or_else(|| meaning.to_owned())
}

/// Text for a key without default.
const NO_DEFAULT: &str = "none";

const INTRODUCTION: &str = "\
# Recipe keys

This page is generated from the key table in `crates/config`; edit that table instead.

A recipe is one TOML file. Values come from the defaults, then a preset, then the file, then each
`--set key=value`; later ones win. `lockstep config` prints the resolved recipe.
";

/// The reference page of all keys and presets, as Markdown.
pub fn reference_markdown() -> String {
    let mut parts = vec![INTRODUCTION.to_owned()];
    for section in SECTIONS {
        let meaning = meaning(section.meaning, &[section.applies]);
        parts.push(format!("\n## `{}`\n\n{meaning}\n\n", section.name));
        parts.push("| key | meaning | default | allowed |\n|---|---|---|---|\n".to_owned());
        for key in section.keys {
            let KeyDoc { name, meaning, default, allowed } = describe(key, &[key.applies]);
            let default =
                if default == NO_DEFAULT { default.to_owned() } else { format!("`{default}`") };
            parts.push(format!("| `{name}` | {meaning} | {default} | {allowed} |\n"));
        }
    }
    parts.push("\n## Presets\n\n| preset | purpose |\n|---|---|\n".to_owned());
    for (name, purpose) in presets() {
        parts.push(format!("| `{name}` | {purpose} |\n"));
    }
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doc(name: &str) -> KeyDoc {
        describe_keys().into_iter().find(|doc| doc.name == name).unwrap()
    }

    #[test]
    fn every_key_is_described() {
        assert_eq!(describe_keys().len(), keys::all().count());
        assert_eq!(
            doc("model.kv_heads").default,
            "= model.heads",
            "a derived default says how it is derived"
        );
        assert_eq!(doc("model.preset").default, "none");
        assert_eq!(doc("optim.lr").allowed, "number above 0 and at most 1000");
        assert_eq!(
            doc("optim.momentum").meaning,
            "Momentum factor. Only with optim.name = momentum or nesterov or lars or muon."
        );
    }

    #[test]
    fn the_page_has_a_row_of_four_cells_for_each_key_and_a_row_for_each_preset() {
        let page = reference_markdown();
        for doc in describe_keys() {
            let opening = format!("| `{}` |", doc.name);
            let row = page.lines().find(|line| line.starts_with(&opening)).unwrap();
            assert_eq!(row.matches('|').count(), 5, "{row}");
        }
        for (name, purpose) in presets() {
            assert!(page.contains(&format!("| `{name}` | {purpose} |\n")));
        }
        assert!(page.ends_with("|\n"));
    }
}
