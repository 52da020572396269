//! Reading of options: absent, valid or refused, all refusals at once.

use std::path::Path;

use serde_json::{Map, Value};

use super::architecture::Architecture;
use super::options;
use crate::error::quoted;

/// Options of a file, and the errors found.
pub(super) struct Reader<'a> {
    pub(super) path: &'a Path,
    pub(super) options: &'a Map<String, Value>,
    pub(super) lines: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Value of an option; none for `null`.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.options.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn refuse(&mut self, key: &str, rule: &str) {
        let value = self.value(key).map_or("null".to_owned(), ToString::to_string);
        let (path, key, value) = (self.path.display(), quoted(key), quoted(&value));
        self.lines.push(format!("{path}: {key} = {value} {rule}"));
    }

    /// Refuses options that change the computation, and unknown ones.
    pub(super) fn refuse_unsupported(&mut self, architecture: &Architecture) {
        for fixed in options::FIXED.iter().chain(architecture.fixed) {
            let Some(value) = self.value(fixed.key) else { continue };
            let suits = |value: &Value| fixed.values.contains(&value.to_string().as_str());
            let list = value.as_array().filter(|_| fixed.key == options::LAYER_TYPES);
            if !list.map_or_else(|| suits(value), |list| list.iter().all(suits)) {
                let advice = match fixed.values.first() {
                    Some(value) => format!("only {value} is"),
                    None => "only a model without it is".to_owned(),
                };
                self.refuse(fixed.key, &format!("is not supported; {advice}"));
            }
        }
        self.refuse_other_heads(architecture);
        let known = |key: &str| {
            let fixed = options::FIXED.iter().chain(architecture.fixed);
            architecture.read.contains(&key)
                || architecture.ignored.contains(&key)
                || options::WITHOUT_INFLUENCE.contains(&key)
                || fixed.into_iter().any(|fixed| fixed.key == key)
        };
        for (key, _) in self.options.iter().filter(|(_, value)| !value.is_null()) {
            if !known(key) {
                let rule = "is not known here; remove it if it cannot change what is computed";
                self.refuse(key, rule);
            }
        }
    }

    /// Refuses other heads: a classifier has the same family and most tensors.
    fn refuse_other_heads(&mut self, architecture: &Architecture) {
        let known = architecture.classes;
        let Some(value) = self.value("architectures") else { return };
        let suits = |name: &Value| name.as_str().is_some_and(|name| known.contains(&name));
        if !value.as_array().is_some_and(|names| names.iter().all(suits)) {
            let rule = format!("is not supported; only {} is", known[0]);
            self.refuse("architectures", &rule);
        }
    }

    pub(super) fn size(&mut self, key: &str) -> Option<usize> {
        if self.value(key).is_none() {
            let path = self.path.display();
            self.lines.push(format!("{path}: it has no {key}"));
        }
        self.optional_size(key)
    }

    pub(super) fn optional_size(&mut self, key: &str) -> Option<usize> {
        let value = self.value(key)?;
        // Larger sizes do not fit into memory; the model keys have stricter limits.
        let size = value.as_u64().filter(|size| (1..1 << 31).contains(size));
        if size.is_none() {
            self.refuse(key, "is not a size; a whole number from 1 is");
        }
        size.map(|size| size as usize)
    }

    pub(super) fn number(&mut self, key: &str, default: f64) -> Option<f64> {
        let Some(value) = self.value(key) else { return Some(default) };
        if !value.is_number() {
            self.refuse(key, "is not a number");
        }
        value.as_f64()
    }

    /// Refuses a number that is not the other one, which `rule` describes.
    pub(super) fn require_equal(&mut self, key: &str, other: (Option<f64>, f64), rule: &str) {
        // Equal texts parse to equal numbers, so the comparison is exact.
        if self.number(key, other.1).map(f64::to_bits) != other.0.map(f64::to_bits) {
            self.refuse(key, &format!("is not {rule}; make them equal"));
        }
    }

    pub(super) fn flag(&mut self, key: &str, default: bool) -> Option<bool> {
        let Some(value) = self.value(key) else { return Some(default) };
        if !value.is_boolean() {
            self.refuse(key, "is not true or false");
        }
        value.as_bool()
    }
}
