//! The recipe as text: for people and files, and as the identity that is hashed.
//!
//! Both texts are TOML and come from the table of keys. The identity leaves out every table that
//! cannot change a bit of the result and sorts by name, so that two runs may be compared by hash
//! however their recipes were written and in whatever order the table of keys stands.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::conditions::{UnmetCondition, unmet, unmet_condition};
use crate::key::{Default as KeyDefault, Key, Section};
use crate::keys::SECTIONS;
use crate::recipe::{Model, Recipe};
use crate::renamed_keys::first_name;
use crate::value::Value;

impl Recipe {
    /// Every key with its resolved value, grouped by table; resolving this text again gives an
    /// equal recipe. A key that the chosen optimizer, family or schedule lacks is a comment, and
    /// so is a value that follows from other keys: a copy of this text with another width gets
    /// the feed-forward size that belongs to it.
    pub fn to_toml(&self) -> String {
        let tables: Vec<String> = self.tables().map(|section| self.table_text(section)).collect();
        tables.join("\n")
    }

    /// The tables that mean anything here: text has no `problem`, a problem no `data`.
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

    /// How the value of a key follows from other keys, where it does.
    fn derivation(&self, key: &Key, value: &Value) -> Option<&'static str> {
        match key.default {
            KeyDefault::Derived { text, from } => (from(self) == *value).then_some(text),
            KeyDefault::Fixed(_) | KeyDefault::Nothing => None,
        }
    }

    /// What the bits of the result depend on: one `key = value` a line, sorted, without the tables
    /// of how it runs (`run.*`, `parallel.*`, `emulate.*`) and without keys that have no effect
    /// here or say only where the data comes through.
    pub fn identity_text(&self) -> String {
        self.identity_lines(|name| name)
    }

    /// The lines of the identity, sorted, with the name that `name_of` gives each key.
    fn identity_lines(&self, name_of: fn(&'static str) -> &'static str) -> String {
        let mut lines: Vec<String> = self
            .tables()
            .filter(|section| section.in_identity)
            .flat_map(|section| effective(section, self))
            .filter(|(key, _)| (key.counts_when)(self))
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
    /// Every key of the model with its value, derived ones too, for [`crate::ModelFolder`].
    pub fn to_toml(&self) -> String {
        let recipe = Recipe { model: self.clone(), ..Recipe::default() };
        let model = SECTIONS.iter().find(|section| section.name == "model").expect("a table");
        let lines =
            effective(model, &recipe).map(|(key, value)| format!("{} = {value}\n", key.name));
        lines.collect()
    }
}

/// The keys of a table that have a value and an effect in this recipe.
fn effective<'a>(
    section: &'static Section,
    recipe: &'a Recipe,
) -> impl Iterator<Item = (&'static Key, Value)> + 'a {
    section.keys.iter().filter_map(move |key| {
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

/// One table of a recipe on its way into another format.
struct Table<'a> {
    section: &'static Section,
    recipe: &'a Recipe,
}

impl Serialize for Table<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            effective(self.section, self.recipe).map(|(key, value)| (key.leaf(), value)),
        )
    }
}
