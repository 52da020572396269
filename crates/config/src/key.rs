//! A row of the key table, with access to its field of the recipe.
//!
//! A row is constant data plus a getter and a setter. Parsing, printing and help loop over the
//! rows. `topic!` makes rows and tables from the declaration of a topic.

use crate::error::Origin;
use crate::field::{AUTO, from_unit, to_unit};
use crate::topics::Recipe;
use crate::value::{RawValue, Value};
use crate::value_type::{Bound, ValueType};

/// A key of the recipe.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) value_type: ValueType,
    pub(crate) default: Default,
    pub(crate) applies: Applies,
    /// Value of a count that has no effect, if it differs from the default.
    pub(crate) inactive: Option<i64>,
    get: fn(&Recipe) -> Option<Value>,
    set: fn(&mut Recipe, &Value),
    counts: Counts,
    /// Value in the recipe's identity, where other keys have a say in it.
    in_effect: Option<fn(&Recipe) -> Value>,
}

/// Value of a key that no source sets.
#[derive(Clone, Copy)]
pub(crate) enum Default {
    /// A value as written in a recipe.
    Fixed(&'static str),
    /// Derived from keys further up in the table; `text` is the formula.
    Derived { text: &'static str, from: fn(&Recipe) -> Value },
    /// No value.
    Nothing,
}

/// Condition under which a key has an effect.
#[derive(Clone, Copy)]
pub(crate) enum Applies {
    Always,
    /// Only if another key has one of these values.
    When {
        key: &'static str,
        is: &'static [&'static str],
    },
}

/// Condition under which a key is part of the recipe's identity, in a table that is.
#[derive(Clone, Copy)]
enum Counts {
    UnlessDefault,
    When(fn(&Recipe) -> bool),
}

/// A table of the recipe file.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    /// Whether the bits of the result may depend on the table, so that the hash includes it.
    pub(crate) in_identity: bool,
    /// Condition under which its keys have an effect.
    pub(crate) applies: Applies,
    pub(crate) keys: &'static [Key],
}

/// An accepted value with its origin.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

impl Key {
    /// A key that always applies. `text` is a doc comment, whose lines begin with a space.
    pub(crate) const fn new(
        name: &'static str,
        text: &'static str,
        value_type: ValueType,
        default: Default,
        get: fn(&Recipe) -> Option<Value>,
        set: fn(&mut Recipe, &Value),
    ) -> Self {
        let (meaning, applies) = (text.trim_ascii_start(), Applies::Always);
        let counts = Counts::When(|_| true);
        let (inactive, in_effect) = (None, None);
        Self { name, meaning, value_type, default, applies, inactive, get, set, counts, in_effect }
    }

    /// Replaces the value type.
    pub(crate) const fn of(mut self, value_type: ValueType) -> Self {
        self.value_type = value_type;
        self
    }

    /// Bounds an integer.
    pub(crate) const fn integer(self, min: i64, max: i64) -> Self {
        self.of(self.value_type.integer(min, max))
    }

    /// Bounds a number.
    pub(crate) const fn float(self, low: Bound, high: Bound) -> Self {
        self.of(self.value_type.float(low, high))
    }

    /// Refuses an empty text.
    pub(crate) const fn not_empty(self) -> Self {
        self.of(self.value_type.not_empty())
    }

    /// Limits the number of entries of a list.
    pub(crate) const fn at_most(self, max: usize) -> Self {
        self.of(self.value_type.at_most(max))
    }

    /// A list of values of this type.
    pub(crate) const fn list_of(self, of: &'static ValueType, max: usize) -> Self {
        self.of(ValueType::List { of, max })
    }

    /// Accepts a number of this type, or `auto`.
    pub(crate) const fn or_auto(self, value_type: &'static ValueType) -> Self {
        self.of(ValueType::OrName(value_type, &[AUTO]))
    }

    /// Replaces getter and setter, for a key of several fields.
    pub(crate) const fn access(
        mut self,
        get: fn(&Recipe) -> Option<Value>,
        set: fn(&mut Recipe, &Value),
    ) -> Self {
        (self.get, self.set) = (get, set);
        self
    }

    /// Includes the key in the recipe's identity only if `counts` holds. A value that changes no
    /// bit thus changes no recorded hash.
    pub(crate) const fn in_identity_when(mut self, counts: fn(&Recipe) -> bool) -> Self {
        self.counts = Counts::When(counts);
        self
    }

    /// Includes the key in the recipe's identity only if it differs from its default: a key that
    /// the first recipes did not have thus changes no recorded hash.
    pub(crate) const fn in_identity_unless_default(mut self) -> Self {
        self.counts = Counts::UnlessDefault;
        self
    }

    /// Includes the value in effect in the recipe's identity instead of the one that is set.
    pub(crate) const fn in_identity_as(mut self, in_effect: fn(&Recipe) -> Value) -> Self {
        self.in_effect = Some(in_effect);
        self
    }

    /// Restricts the effect of this key to recipes in which `key` has one of the values `is`.
    pub(crate) const fn when(mut self, key: &'static str, is: &'static [&'static str]) -> Self {
        self.applies = Applies::When { key, is };
        self
    }

    /// Sets the value of a count that has no effect.
    pub(crate) const fn inactive(mut self, inactive: i64) -> Self {
        self.inactive = Some(inactive);
        self
    }

    /// Name within its table, such as `layers`.
    pub(crate) fn leaf(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, leaf)| leaf)
    }

    /// Value of this key in a recipe.
    pub(crate) fn get(&self, recipe: &Recipe) -> Option<Value> {
        (self.get)(recipe).map(|value| to_unit(self.name, value))
    }

    /// Value of this key in a recipe as TOML; empty without one.
    pub(crate) fn text(&self, recipe: &Recipe) -> String {
        self.get(recipe).map_or(String::new(), |value| value.to_string())
    }

    /// Sets the field of this key.
    pub(crate) fn set(&self, recipe: &mut Recipe, value: &Value) {
        (self.set)(recipe, &from_unit(self.name, value));
    }

    /// Default in a recipe.
    pub(crate) fn default_in(&self, recipe: &Recipe) -> Option<Value> {
        match self.default {
            Default::Nothing => None,
            Default::Derived { from, .. } => Some(from(recipe)),
            Default::Fixed(text) => {
                let value = self.value_type.accept(&RawValue::from_argument(text));
                Some(value.unwrap_or_else(|refusal| panic!("{}: {refusal:?}", self.name)))
            }
        }
    }

    /// Value of this key in the recipe's identity, if it is part of it, in a table that is.
    pub(crate) fn identity_value(&self, recipe: &Recipe, set: Value) -> Option<Value> {
        let value = self.in_effect.map_or(set, |in_effect| in_effect(recipe));
        let counts = match self.counts {
            Counts::UnlessDefault => self.default_in(recipe).as_ref() != Some(&value),
            Counts::When(counts) => counts(recipe),
        };
        counts.then_some(value)
    }
}

impl Section {
    /// A table that always applies and is part of the recipe's identity.
    pub(crate) const fn new(name: &'static str, text: &'static str, keys: &'static [Key]) -> Self {
        let (meaning, applies) = (text.trim_ascii_start(), Applies::Always);
        Self { name, meaning, in_identity: true, applies, keys }
    }

    /// Restricts the effect of its keys to recipes in which `key` has one of the values `is`.
    pub(crate) const fn when(mut self, key: &'static str, is: &'static [&'static str]) -> Self {
        self.applies = Applies::When { key, is };
        self
    }

    /// Excludes the table from the recipe's identity, since it never changes a bit of the result.
    pub(crate) const fn layout(mut self) -> Self {
        self.in_identity = false;
        self
    }
}

/// Number of keys in all parts of a table.
pub(crate) const fn count(parts: &[&[Key]]) -> usize {
    let (mut count, mut part) = (0, 0);
    while part < parts.len() {
        count += parts[part].len();
        part += 1;
    }
    count
}

/// The keys of all parts of a table, which are `N`.
pub(crate) const fn join<const N: usize>(parts: &[&[Key]]) -> [Key; N] {
    let mut keys = [parts[0][0]; N];
    let (mut count, mut part) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            keys[count] = parts[part][index];
            (count, index) = (count + 1, index + 1);
        }
        part += 1;
    }
    keys
}
