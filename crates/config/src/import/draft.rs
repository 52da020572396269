//! A recipe in the making: settings with their places in the source, and settings without a
//! counterpart.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::key::Key;
use crate::keys::{self, SECTIONS};
use crate::resolve::resolve;
use crate::sources::Sources;
use crate::value::one_line;

/// Result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The recipe as TOML; it resolves.
    pub toml: String,
    /// Settings of the source that the recipe does not have.
    pub unmapped: Vec<Unmapped>,
}

/// A setting of the source without a counterpart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unmapped {
    /// Its place, such as `zero_optimization.sub_group_size`.
    pub path: String,
    /// Its value on one line; empty where the source has none.
    pub value: String,
    /// Why the recipe does not have it, and what to do instead.
    pub reason: String,
}

/// Error of a source that cannot be read at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The text is not JSON.
    #[error("line {line}: not valid JSON ({reason}); a DeepSpeed configuration is one JSON object")]
    NotJson {
        /// Line, counted from 1.
        line: usize,
        /// Message of the parser.
        reason: String,
    },
    /// The text is JSON, but no object.
    #[error("is {found} where a JSON object is needed; try {{\"train_batch_size\": 16}}")]
    NotAnObject {
        /// Type of the value.
        found: &'static str,
    },
    /// The number of workers is out of range.
    #[error("{workers} workers are out of range; try a number from 1 to {max}")]
    Workers {
        /// The number.
        workers: usize,
        /// The largest.
        max: i64,
    },
}

/// Settings so far.
#[derive(Debug, Default)]
pub(super) struct Draft {
    settings: BTreeMap<&'static str, Setting>,
    unmapped: Vec<Unmapped>,
}

#[derive(Debug)]
struct Setting {
    /// Value as TOML.
    value: String,
    /// Place in the source, or the reason of a value that the source does not have.
    from: String,
}

impl Draft {
    /// Sets a key to a value in TOML.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass literals and numbers")]
    pub(super) fn set(&mut self, key: &'static str, value: impl ToString, from: &str) {
        debug_assert!(keys::find(key).is_some(), "{key}");
        self.settings.insert(key, Setting { value: value.to_string(), from: from.to_owned() });
    }

    /// Lists a setting without a counterpart.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass literals and numbers")]
    pub(super) fn list(&mut self, path: &str, value: impl ToString, reason: impl Into<String>) {
        let (path, value) = (path.to_owned(), one_line(&value.to_string()));
        self.unmapped.push(Unmapped { path, value, reason: reason.into() });
    }

    /// Removes a setting; its value and its place in the source.
    pub(super) fn remove(&mut self, key: &str) -> Option<(String, String)> {
        self.settings.remove(key).map(|Setting { value, from }| (value, from))
    }

    /// Whether a key is set.
    pub(super) fn has(&self, key: &str) -> bool {
        self.settings.contains_key(key)
    }

    /// The recipe. A setting that a rule refuses is left out and listed.
    pub(super) fn finish(mut self, head: &str) -> Imported {
        while let Some((key, reason)) = self.refused() {
            let Some(Setting { value, from }) = self.settings.remove(key) else { break };
            self.list(&from, value, reason);
        }
        Imported { toml: self.to_toml(head), unmapped: self.unmapped }
    }

    /// A setting that a rule refuses, with the message.
    fn refused(&self) -> Option<(&'static str, String)> {
        let sets = self.settings.iter().map(|(key, setting)| format!("{key}={}", setting.value));
        let sources = Sources { sets: sets.collect(), ..Sources::default() };
        let error = resolve(&sources).err()?.into_iter().next()?;
        let message = error.to_string();
        let named = self.settings.keys().copied().find(|key| *key == error.key);
        // A rule may blame a key that the source does not have; then one that it names goes.
        let mentioned = || self.settings.keys().copied().rev().find(|key| message.contains(key));
        let any = || self.settings.keys().copied().next_back();
        let key = named.or_else(mentioned).or_else(any)?;
        Some((key, format!("left out: {message}")))
    }

    fn to_toml(&self, head: &str) -> String {
        let mut text = format!("# {head}\n");
        for section in SECTIONS {
            let line = |key: &'static Key| {
                let Setting { value, from } = self.settings.get(key.name)?;
                Some(format!("{} = {value}  # {}\n", key.leaf(), one_line(from)))
            };
            let lines: Vec<String> = section.keys.iter().filter_map(line).collect();
            if !lines.is_empty() {
                let _ = write!(text, "\n[{}]\n{}", section.name, lines.concat());
            }
        }
        text
    }
}
