//! Activation recomputation (Chen et al. 2016).

use std::fmt;

use super::Recipe;
use crate::field::{AUTO, Field, auto_value, field};
use crate::value::Value;
use crate::value_type::{Numbered, ValueType};

const EVERY: Numbered = Numbered { prefix: "every-", letter: 'K', min: 1, example: 2 };

/// Activations that the backward pass recomputes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Recompute {
    /// None: all activations are stored.
    None,
    /// Attention and activation functions.
    Selective,
    /// Whole layers, from their inputs.
    Full,
    /// Every K-th layer; K is at least 1.
    Every(usize),
}

impl Recompute {
    /// Names without a number; the fourth form is `every-K`.
    pub const NAMES: &'static [&'static str] = &["none", "selective", "full"];

    /// The setting with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "none" => Some(Self::None),
            "selective" => Some(Self::Selective),
            "full" => Some(Self::Full),
            _ => EVERY.number(name).map(Self::Every),
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Selective => f.write_str("selective"),
            Self::Full => f.write_str("full"),
            Self::Every(distance) => write!(f, "every-{distance}"),
        }
    }
}

field!(
    Recompute: ValueType::ChoiceOrNumbered(Self::NAMES, EVERY),
    blank Self::None,
    to |recompute| Value::Text(recompute.to_string()),
    from |v| Self::from_name(v.as_text()).expect("the value type accepted it")
);

/// Names that the key accepts without a number.
const NAMES_OR_AUTO: &[&str] = &["none", "selective", "full", AUTO];

/// Recomputation, or `auto`.
pub(super) const OR_AUTO: ValueType = ValueType::ChoiceOrNumbered(NAMES_OR_AUTO, EVERY);

/// Value of the key.
pub(super) fn get(recipe: &Recipe) -> Value {
    auto_value(&recipe.parallel.recompute, recipe.parallel.recompute_is_auto)
}

/// Sets the key; `auto` is no recomputation until it is chosen.
pub(super) fn set(recipe: &mut Recipe, value: &Value) {
    let is_auto = value.as_text() == AUTO;
    let recompute = if is_auto { Recompute::None } else { Recompute::from_value(value) };
    (recipe.parallel.recompute, recipe.parallel.recompute_is_auto) = (recompute, is_auto);
}
