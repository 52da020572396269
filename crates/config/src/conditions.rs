//! Conditions of keys: which other key must have which value for a key to have an effect.

use crate::key::{Applies, Key};
use crate::keys;
use crate::topics::Recipe;
use crate::value::Value;

/// A condition that a recipe does not meet.
pub(crate) struct UnmetCondition {
    /// The key that the condition is about.
    pub(crate) other: &'static str,
    /// Its value in the recipe.
    pub(crate) value: Value,
    /// The values that would meet the condition.
    pub(crate) is: &'static [&'static str],
}

/// The first condition of a key or of its table that the recipe does not meet.
pub(crate) fn unmet_condition(key: &Key, recipe: &Recipe) -> Option<UnmetCondition> {
    keys::conditions(key).into_iter().find_map(|condition| unmet(condition, recipe))
}

/// The condition, if the recipe does not meet it.
pub(crate) fn unmet(condition: Applies, recipe: &Recipe) -> Option<UnmetCondition> {
    let Applies::When { key: other, is } = condition else { return None };
    let value = keys::find(other)?.get(recipe)?;
    (!is.contains(&value.as_text())).then_some(UnmetCondition { other, value, is })
}
