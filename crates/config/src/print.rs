//! A recipe as text: as a TOML file, and as the identity that is hashed.
//!
//! Both texts are TOML, made from the key table. The identity leaves out every table that cannot
//! change a bit of the result and sorts by name, so that equivalent recipes have equal hashes.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::conditions::{UnmetCondition, unmet, unmet_condition};
use crate::key::{Default as KeyDefault, Key, Section};
use crate::keys::SECTIONS;
use crate::renamed_keys::first_name;
use crate::topics::{Lora, Model, Recipe};
use crate::value::Value;

impl Recipe {
    /// Every key with its resolved value, grouped by table; resolving this text gives an equal
    /// recipe. A key without effect is a comment, and so is a derived value, so that a copy of this
    /// text with another width derives its own feed-forward size.
    pub fn to_toml(&self) -> String {
        let tables: Vec<String> = self.tables().map(|section| self.table_text(section)).collect();
        tables.join("\n")
    }

    /// Tables with an effect in this recipe: a language model has no `problem`, a problem no
    /// `data`.
    fn tables(&self) -> impl Iterator<Item = &'static Section> + '_ {
        SECTIONS.iter().filter(|section| unmet(section.applies, self).is_none())
    }

    fn table_text(&self, section: &Section) -> String {
        let mut lines = vec![format!("[{}]\n", section.name)];
        for key in section.keys {
            let Some(value) = key.get(self) else { continue };
            let leaf = key.leaf();
            lines.push(match (unmet_condition(key, self), self.derivation(key, &value)) {
                (Some(UnmetCondition { other, value, .. }), _) => {
                    format!("# {leaf} is not a setting of {other} = {value}\n")
                }
                (None, Some(how)) => format!("# {leaf} = {value}  # {how}\n"),
                (None, None) => format!("{leaf} = {value}\n"),
            });
        }
        lines.concat()
    }

    /// The formula of a derived value; none if the value is explicit.
    fn derivation(&self, key: &Key, value: &Value) -> Option<&'static str> {
        match key.default {
            KeyDefault::Derived { text, from } => (from(self) == *value).then_some(text),
            KeyDefault::Fixed(_) | KeyDefault::Nothing => None,
        }
    }

    /// All settings on which the bits of the result depend: one `key = value` per line, sorted,
    /// without layout tables (`run.*`, `parallel.*`, `emulate.*`) and keys without effect. The
    /// tensor-parallel degree counts as `numerics.invariant_tensor_up_to` if it is larger, because
    /// both then give the bits of as many tensor shards.
    pub fn identity_text(&self) -> String {
        self.identity_lines(|name| name)
    }

    /// The lines of the identity, sorted, with the name that `name_of` gives each key.
    fn identity_lines(&self, name_of: fn(&'static str) -> &'static str) -> String {
        let mut lines: Vec<String> = self
            .tables()
            .filter(|section| section.in_identity)
            .flat_map(|section| effective(section.keys, self))
            .filter_map(|(key, value)| Some((key, key.identity_value(self, value)?)))
            .map(|(key, value)| format!("{} = {value}\n", name_of(key.name)))
            .collect();
        lines.sort();
        lines.concat()
    }

    /// Hash of the identity in 64 hexadecimal digits: BLAKE3 of [`Self::identity_text`] with the
    /// first name of every renamed key, so that a rename changes no recorded hash.
    pub fn hash(&self) -> String {
        blake3::hash(self.identity_lines(first_name).as_bytes()).to_hex().to_string()
    }
}

impl Model {
    /// Every key of the model with its value, derived ones included, for [`crate::ModelFolder`];
    /// those of its adapters, where it has some.
    pub fn to_toml(&self) -> String {
        let adapters = if self.lora.is_on() { self.lora.to_toml() } else { String::new() };
        table_of("model", self.clone()) + &adapters
    }
}

impl Lora {
    /// Every key of the adapters with its value, for [`crate::AdapterFolder`].
    pub fn to_toml(&self) -> String {
        lines_of(Self::KEYS, Model { lora: *self, ..Recipe::default().model })
    }
}

/// The keys of a table with their values, in a recipe with this model.
fn table_of(name: &str, model: Model) -> String {
    let section = SECTIONS.iter().find(|section| section.name == name).expect("a table");
    lines_of(section.keys, model)
}

/// Keys with their values, in a recipe with this model.
fn lines_of(keys: &'static [Key], model: Model) -> String {
    let recipe = Recipe { model, ..Recipe::default() };
    let lines = effective(keys, &recipe).map(|(key, value)| format!("{} = {value}\n", key.name));
    lines.collect()
}

/// Keys that have a value and an effect in this recipe.
fn effective<'a>(
    keys: &'static [Key],
    recipe: &'a Recipe,
) -> impl Iterator<Item = (&'static Key, Value)> + 'a {
    keys.iter().filter_map(move |key| {
        let value = key.get(recipe)?;
        unmet_condition(key, recipe).is_none().then_some((key, value))
    })
}

impl Serialize for Recipe {
    /// A map of tables, with the names of the recipe file.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.tables().count()))?;
        for section in self.tables() {
            map.serialize_entry(section.name, &Table { section, recipe: self })?;
        }
        map.end()
    }
}

/// A table of a recipe, for serialization.
struct Table<'a> {
    section: &'static Section,
    recipe: &'a Recipe,
}

impl Serialize for Table<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            effective(self.section.keys, self.recipe).map(|(key, value)| (key.leaf(), value)),
        )
    }
}
