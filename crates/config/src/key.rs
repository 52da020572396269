//! A row of the key table, with access to its field of the recipe.
//!
//! A row is constant data plus a getter and a setter. Parsing, printing and help loop over the
//! rows.

use crate::recipe::Recipe;
use crate::value::Value;
use crate::value_type::ValueType;

/// A key of the recipe.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) value_type: ValueType,
    pub(crate) default: Default,
    pub(crate) applies: Applies,
    /// Value of a count that has no effect, if it differs from the default.
    pub(crate) inactive: Option<i64>,
    pub(crate) field: Field,
    /// Whether the value is part of the recipe's identity, in a section that is.
    pub(crate) counts_when: fn(&Recipe) -> bool,
}

/// Value of a key that no source sets.
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

/// Access to the field of a key.
pub(crate) struct Field {
    /// None for a key that only selects the defaults of other keys.
    pub(crate) get: fn(&Recipe) -> Option<Value>,
    pub(crate) set: fn(&mut Recipe, &Value),
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

impl Key {
    /// A key that always applies.
    pub(crate) const fn new(
        name: &'static str,
        value_type: ValueType,
        default: Default,
        field: Field,
        meaning: &'static str,
    ) -> Self {
        let applies = Applies::Always;
        Self {
            name,
            meaning,
            value_type,
            default,
            applies,
            inactive: None,
            field,
            counts_when: |_| true,
        }
    }

    /// Includes the key in the recipe's identity only if `counts_when` holds. A value that changes
    /// no bit, or that was the only one before the key existed, thus changes no recorded hash.
    pub(crate) const fn in_identity_when(mut self, counts_when: fn(&Recipe) -> bool) -> Self {
        self.counts_when = counts_when;
        self
    }

    /// Restricts the effect of this key to recipes in which `key` has one of the values `is`.
    pub(crate) const fn only_when(
        mut self,
        key: &'static str,
        is: &'static [&'static str],
    ) -> Self {
        self.applies = Applies::When { key, is };
        self
    }

    /// Sets the value of a count that has no effect.
    pub(crate) const fn inactive_count(mut self, inactive: i64) -> Self {
        self.inactive = Some(inactive);
        self
    }

    /// Name within its table, such as `layers`.
    pub(crate) fn leaf(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, leaf)| leaf)
    }

    /// Value of this key in a recipe.
    pub(crate) fn get(&self, recipe: &Recipe) -> Option<Value> {
        (self.field.get)(recipe)
    }
}

/// Getter and setter of a field of the recipe, by the type of the field. The row's value type has
/// accepted the value, so a value of another type is a bug in the table.
macro_rules! field {
    ($($path:ident).+: f64) => {
        Field {
            get: |r| Some(Value::Float(r.$($path).+)),
            set: |r, v| r.$($path).+ = v.as_float(),
        }
    };
    ($($path:ident).+: f32) => {
        Field {
            get: |r| Some(Value::Float(shortest_f64(r.$($path).+))),
            set: |r, v| r.$($path).+ = v.as_float() as f32,
        }
    };
    ($($path:ident).+: bool) => {
        Field {
            get: |r| Some(Value::Bool(r.$($path).+)),
            set: |r, v| r.$($path).+ = v.as_bool(),
        }
    };
    ($($path:ident).+: String) => {
        Field {
            get: |r| Some(Value::Text(r.$($path).+.clone())),
            set: |r, v| v.as_text().clone_into(&mut r.$($path).+),
        }
    };
    ($($path:ident).+: integer $type:ty) => {
        Field {
            get: |r| Some(Value::Integer(i64::try_from(r.$($path).+).unwrap_or(i64::MAX))),
            set: |r, v| r.$($path).+ = v.as_integer() as $type,
        }
    };
    ($($path:ident).+: choice $type:ty) => {
        Field {
            get: |r| Some(Value::Text(r.$($path).+.name().to_owned())),
            set: |r, v| {
                r.$($path).+ = <$type>::from_name(v.as_text()).expect("the value type accepted it");
            },
        }
    };
}
pub(crate) use field;
