//! One row of the table of keys, and how it reads from and writes into a recipe.
//!
//! A row is constant data plus two small functions for its field. Everything generic (parsing,
//! printing, help) loops over rows; nothing else in the system needs to know which keys exist.

use crate::kind::Kind;
use crate::recipe::Recipe;
use crate::value::Value;

/// One knob.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Default,
    pub(crate) applies: Applies,
    pub(crate) field: Field,
    /// Whether the value counts in the identity of this recipe, where its section does.
    pub(crate) counts: fn(&Recipe) -> bool,
}

/// The value of a key that nobody set.
pub(crate) enum Default {
    /// Written as in a recipe.
    Fixed(&'static str),
    /// Follows from keys further up in the table; `text` says how.
    Derived { text: &'static str, from: fn(&Recipe) -> Value },
    /// No value at all.
    Nothing,
}

/// When a key means anything.
pub(crate) enum Applies {
    Always,
    /// Only while another key has one of these values.
    When {
        key: &'static str,
        is: &'static [&'static str],
    },
}

/// How a key reaches its field.
pub(crate) struct Field {
    /// None for a key that only steers how other keys are filled.
    pub(crate) get: fn(&Recipe) -> Option<Value>,
    pub(crate) set: fn(&mut Recipe, &Value),
}

/// A table of the recipe file.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    /// Whether the bits of the result may depend on it, so that it counts in the recipe's hash.
    pub(crate) in_identity: bool,
    pub(crate) keys: &'static [Key],
}

impl Key {
    /// A key that always applies.
    pub(crate) const fn new(
        name: &'static str,
        kind: Kind,
        default: Default,
        field: Field,
        meaning: &'static str,
    ) -> Self {
        Self { name, meaning, kind, default, applies: Applies::Always, field, counts: |_| true }
    }

    /// The same key, part of the recipe's identity only while `counts` says so: a value that
    /// changes no bit, or the value from before there was a choice, keeps recorded hashes as they
    /// are.
    pub(crate) const fn counting_when(mut self, counts: fn(&Recipe) -> bool) -> Self {
        self.counts = counts;
        self
    }

    /// The same key, meaningful only while `key` has one of the values `is`.
    pub(crate) const fn only_when(
        mut self,
        key: &'static str,
        is: &'static [&'static str],
    ) -> Self {
        self.applies = Applies::When { key, is };
        self
    }

    /// The name inside its table, such as `layers`.
    pub(crate) fn leaf(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, leaf)| leaf)
    }

    /// The value of this key in a recipe.
    pub(crate) fn get(&self, recipe: &Recipe) -> Option<Value> {
        (self.field.get)(recipe)
    }
}

/// Ties a row to its field of the recipe, by the type of the field. The kind of the row has
/// accepted the value before, so a value of another type is a bug in the table.
macro_rules! field {
    ($section:ident.$field:ident: f64) => {
        Field {
            get: |r| Some(Value::Float(r.$section.$field)),
            set: |r, v| r.$section.$field = v.as_float(),
        }
    };
    ($section:ident.$field:ident: f32) => {
        Field {
            get: |r| Some(Value::Float(shortest_f64(r.$section.$field))),
            set: |r, v| r.$section.$field = v.as_float() as f32,
        }
    };
    ($section:ident.$field:ident: bool) => {
        Field {
            get: |r| Some(Value::Bool(r.$section.$field)),
            set: |r, v| r.$section.$field = v.as_bool(),
        }
    };
    ($section:ident.$field:ident: String) => {
        Field {
            get: |r| Some(Value::Text(r.$section.$field.clone())),
            set: |r, v| v.as_text().clone_into(&mut r.$section.$field),
        }
    };
    ($section:ident.$field:ident: integer $type:ty) => {
        Field {
            get: |r| Some(Value::Integer(i64::try_from(r.$section.$field).unwrap_or(i64::MAX))),
            set: |r, v| r.$section.$field = v.as_integer() as $type,
        }
    };
    ($section:ident.$field:ident: choice $type:ty) => {
        Field {
            get: |r| Some(Value::Text(r.$section.$field.name().to_owned())),
            set: |r, v| {
                r.$section.$field = <$type>::from_name(v.as_text()).expect("the kind accepted it");
            },
        }
    };
}
pub(crate) use field;
