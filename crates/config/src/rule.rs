//! Rules between keys: divisibility, compatibility and required combinations.
//!
//! A rule lists its keys, checks the filled recipe and returns at most one error, about its first
//! key. Its fix satisfies the related rules too, so that following it does not cause the next
//! error. A rule about a key whose value was already refused is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::Deref;

use crate::error::{ConfigError, Origin, alternatives};
use crate::key::{Key, Setting};
use crate::topics::Recipe;
use crate::topics::limits::MAX_BATCH;
use crate::value::quoted;
use crate::value_type::ValueType;

/// A rule between keys.
pub(crate) struct Rule {
    keys: &'static [&'static str],
    check: Check,
}

enum Check {
    One(fn(&RuleContext<'_>) -> Option<ConfigError>),
    Conflict(&'static str, fn(&mut Conflict, &Recipe)),
    Each(fn(&RuleContext<'_>) -> Vec<ConfigError>),
}

impl Rule {
    pub(crate) const fn new(
        keys: &'static [&'static str],
        check: fn(&RuleContext<'_>) -> Option<ConfigError>,
    ) -> Self {
        Self { keys, check: Check::One(check) }
    }

    /// A key that is incompatible with values of other keys; `inactive` is its neutral value. The
    /// first conflict is reported.
    pub(crate) const fn conflict(
        key: &'static [&'static str; 1],
        inactive: &'static str,
        conflicts: fn(&mut Conflict, &Recipe),
    ) -> Self {
        Self { keys: key, check: Check::Conflict(inactive, conflicts) }
    }

    /// A rule about each entry of a list.
    pub(crate) const fn each(
        keys: &'static [&'static str],
        check: fn(&RuleContext<'_>) -> Vec<ConfigError>,
    ) -> Self {
        Self { keys, check: Check::Each(check) }
    }
}

/// Rules of a topic, in the order in which their errors are reported.
pub(crate) struct Rules {
    list: &'static [Rule],
    keys: &'static [&'static str],
    applies: fn(&Recipe) -> bool,
    first_ends: bool,
}

impl Rules {
    pub(crate) const fn new(rules: &'static [Rule]) -> Self {
        Self { list: rules, keys: &[], applies: |_| true, first_ends: false }
    }

    /// Restricts the rules to recipes for which `applies` holds, with valid values of `keys`.
    pub(crate) const fn when(
        mut self,
        keys: &'static [&'static str],
        applies: fn(&Recipe) -> bool,
    ) -> Self {
        (self.keys, self.applies) = (keys, applies);
        self
    }

    /// Skips the other rules if the first one is broken.
    pub(crate) const fn first_ends(mut self) -> Self {
        self.first_ends = true;
        self
    }

    /// Every broken rule.
    pub(crate) fn broken(&self, context: &RuleContext<'_>) -> Vec<ConfigError> {
        if !context.all_valid(self.keys) || !(self.applies)(context.recipe) {
            return Vec::new();
        }
        let mut errors = Vec::new();
        for (index, rule) in self.list.iter().enumerate() {
            errors.extend(context.check(rule));
            if index == 0 && self.first_ends && !errors.is_empty() {
                break;
            }
        }
        errors
    }
}

/// The recipe with the sources of its values.
#[derive(Clone, Copy)]
pub(crate) struct RuleContext<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) settings: &'a BTreeMap<&'static str, Setting>,
    /// Keys with an invalid value in some source.
    pub(crate) invalid: &'a BTreeSet<&'static str>,
    /// Finds a key by its full name.
    pub(crate) find: fn(&str) -> Option<&'static Key>,
    /// Keys of the rule.
    pub(crate) keys: &'static [&'static str],
}

impl Deref for RuleContext<'_> {
    type Target = Recipe;

    fn deref(&self) -> &Recipe {
        self.recipe
    }
}

impl RuleContext<'_> {
    /// Errors of a rule.
    pub(crate) fn check(&self, rule: &Rule) -> Vec<ConfigError> {
        let context = RuleContext { keys: rule.keys, ..*self };
        match rule.check {
            _ if !self.all_valid(rule.keys) => Vec::new(),
            Check::One(check) => check(&context).into_iter().collect(),
            Check::Conflict(inactive, conflicts) => {
                let mut conflict = Conflict { why: "", found: None };
                conflicts(&mut conflict, self.recipe);
                context.conflict(inactive, conflict).into_iter().collect()
            }
            Check::Each(check) => check(&context),
        }
    }

    /// Whether no source gave any of these keys an invalid value.
    pub(crate) fn all_valid(&self, names: &[&str]) -> bool {
        names.iter().all(|name| !self.invalid.contains(name))
    }

    /// Whether any source, presets included, sets this key.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.settings.contains_key(name)
    }

    pub(crate) fn origin(&self, name: &str) -> Origin {
        self.settings.get(name).map_or(Origin::Default, |setting| setting.origin.clone())
    }

    /// An error about the first key of the rule.
    pub(crate) fn error(&self, rule: impl Into<String>, fix: impl Into<String>) -> ConfigError {
        self.error_about(self.keys, rule, fix)
    }

    /// An error about `names[0]`, reported at the origin of the strongest of `names`, which is the
    /// setting that broke the rule.
    pub(crate) fn error_about(
        &self,
        names: &[&str],
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfigError {
        let mut origin = self.origin(names[0]);
        for other in names.iter().map(|name| self.origin(name)) {
            if other.strength() > origin.strength() {
                origin = other;
            }
        }
        ConfigError::new(names[0], self.text_of(names[0]), rule, fix, origin)
    }

    /// An error about an entry, such as `[0].batch`, of the list that is the rule's first key.
    #[allow(clippy::needless_pass_by_value, reason = "callers pass literals and numbers")]
    pub(crate) fn entry_error(
        &self,
        place: &str,
        value: impl Display,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfigError {
        let error = self.error_about(&self.keys[..1], rule, fix);
        ConfigError { key: format!("{}{place}", error.key), value: value.to_string(), ..error }
    }

    /// An error about the first key of the rule if it is broken; `working` are values that work.
    #[allow(clippy::needless_pass_by_value, reason = "callers pass literals and numbers")]
    pub(crate) fn refuse(
        &self,
        is_broken: bool,
        rule: impl Into<String>,
        working: impl Display,
    ) -> Option<ConfigError> {
        is_broken.then(|| self.error(rule, format!("try {working}")))
    }

    /// The error of a conflict of the rule's first key, whose neutral value is `inactive`.
    fn conflict(&self, inactive: &str, conflict: Conflict) -> Option<ConfigError> {
        let ((key, better, why), about) = (conflict.found?, self.keys[0]);
        let is_name =
            (self.find)(about).is_some_and(|key| matches!(key.value_type, ValueType::Choice(_)));
        let inactive = if is_name { quoted(inactive) } else { inactive.to_owned() };
        let rule = format!("{why}, and {key} = {}", self.text_of(key));
        let fix = format!("try {key} = {better} or {about} = {inactive}");
        self.all_valid(&[key]).then(|| self.error_about(&[about, key], rule, fix))
    }

    /// Value of a key as TOML; empty without one.
    pub(crate) fn text_of(&self, name: &str) -> String {
        (self.find)(name).map_or(String::new(), |key| key.text(self.recipe))
    }
}

/// The first of several conflicts between a key and another one.
pub(crate) struct Conflict {
    why: &'static str,
    found: Option<(&'static str, String, &'static str)>,
}

impl Conflict {
    /// Sets the reason of the conflicts that follow.
    pub(crate) const fn because(&mut self, why: &'static str) -> &mut Self {
        self.why = why;
        self
    }

    /// A conflict with `key`, of which `better` is a compatible value, if `is_broken`.
    #[allow(clippy::needless_pass_by_value, reason = "callers pass literals and numbers")]
    pub(crate) fn with(
        &mut self,
        key: &'static str,
        better: impl Display,
        is_broken: bool,
    ) -> &mut Self {
        if is_broken && self.found.is_none() {
            self.found = Some((key, better.to_string(), self.why));
        }
        self
    }

    /// Conflicts with keys that shard the model.
    pub(crate) fn with_shards(&mut self, recipe: &Recipe) -> &mut Self {
        let parallel = &recipe.parallel;
        self.with("parallel.zero", 0, parallel.zero > 0)
            .with("parallel.pipeline", 1, parallel.pipeline > 1)
            .with("parallel.tensor", 1, parallel.tensor > 1)
    }
}

/// The multiple of `unit` nearest to `value`, at least one unit and within the largest batch.
pub(crate) fn nearest_multiple(value: usize, unit: usize) -> usize {
    let below = value / unit * unit;
    let above = below + unit;
    let take_above = below == 0 || (value - below > above - value && above <= MAX_BATCH as usize);
    if take_above { above } else { below }
}

/// Up to five of the numbers up to `most` that work, around `value`, as a list.
pub(crate) fn working(most: usize, works: impl Fn(usize) -> bool, value: usize) -> String {
    let working: Vec<usize> = (1..=most).filter(|number| works(*number)).collect();
    alternatives(&around(&working, value))
}

/// Five of the ascending `candidates` around `value`: up to four below and one above, filled up to
/// five from either side.
pub(crate) fn around(candidates: &[usize], value: usize) -> Vec<usize> {
    const MOST: usize = 5;
    let below = candidates.iter().filter(|candidate| **candidate < value).count();
    let above = candidates.len() - below;
    let from_below = below.min(MOST - above.min(1)).max(MOST.saturating_sub(above).min(below));
    let first = below - from_below;
    candidates[first..candidates.len().min(first + MOST)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_are_around_the_current_value() {
        let divisors = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96];
        assert_eq!(around(&divisors, 5), [1, 2, 3, 4, 6]);
        assert_eq!(around(&divisors, 20), [6, 8, 12, 16, 24]);
        assert_eq!(around(&divisors, 100), [16, 24, 32, 48, 96]);
        assert_eq!(around(&divisors, 0), [1, 2, 3, 4, 6]);
        assert_eq!(around(&[7], 3), [7]);
        assert_eq!(around(&[7], 9), [7]);
        assert!(around(&[], 9).is_empty());
    }

    #[test]
    fn the_nearest_multiple_is_never_zero_and_never_too_large() {
        assert_eq!(nearest_multiple(1, 16), 16);
        assert_eq!(nearest_multiple(23, 16), 16);
        assert_eq!(nearest_multiple(24, 16), 16);
        assert_eq!(nearest_multiple(25, 16), 32);
        let largest = MAX_BATCH as usize;
        assert!(nearest_multiple(largest, 3 * 64) <= largest);
    }
}
