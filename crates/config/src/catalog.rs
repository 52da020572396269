//! The catalog of keys: one key, table or synonym with all that is known of it, and a search.
//!
//! An entry is the reference of a key, its value in a recipe, its names in other frameworks and the
//! keys that its meaning or its conditions name.

use serde::Serialize;

use crate::conditions::unmet_condition;
use crate::error::alternatives;
use crate::key::{Applies, Default as KeyDefault, Key, Section};
use crate::keys::{self, SECTIONS};
use crate::nearest::nearest;
use crate::reference::{KeyDoc, describe_key};
use crate::renamed_keys;
use crate::synonyms::{self, Counterpart, Synonym, normalized};
use crate::topics::Recipe;

/// All that is known of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyEntry {
    /// Reference of the key.
    #[serde(flatten)]
    pub doc: KeyDoc,
    /// Value in the recipe, as TOML; none for a key without value or without effect.
    pub value: Option<String>,
    /// Origin of the value.
    pub origin: ValueOrigin,
    /// Condition that the recipe does not meet, so that the key has no effect.
    pub without_effect: Option<String>,
    /// Names of the key, or of a setting of it, in other frameworks.
    pub synonyms: Vec<&'static str>,
    /// Keys that its meaning and conditions name, or that name it.
    pub related: Vec<&'static str>,
}

/// Origin of a value, as far as the value shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueOrigin {
    /// Equal to the fixed default.
    Default,
    /// Equal to the value that the default derives from other keys.
    Derived,
    /// Set by a preset, a file or an argument.
    Set,
    /// No value.
    Nothing,
}

/// Answer to a name: a key, a table, or a name of another framework.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CatalogEntry {
    /// A key.
    Key {
        /// The key.
        key: KeyEntry,
    },
    /// A table of the recipe.
    Table {
        /// Name, such as `parallel`.
        name: &'static str,
        /// Meaning.
        meaning: &'static str,
        /// Its keys.
        keys: Vec<KeyEntry>,
    },
    /// A name of another framework.
    Synonym {
        /// The name as it was given.
        name: String,
        /// Its counterpart in a sentence.
        counterpart: String,
        /// Keys of the counterpart; none where there is none.
        keys: Vec<KeyEntry>,
    },
}

/// A key that a search found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SearchResult {
    /// The key.
    #[serde(flatten)]
    pub key: KeyEntry,
    /// The synonym that matched, where the name of the key did not.
    pub synonym: Option<&'static str>,
}

/// The key, table or synonym of this name, in any case and with `-` for `_`; a key is found without
/// its table if no synonym has the name.
pub fn look_up(name: &str, recipe: &Recipe) -> Option<CatalogEntry> {
    let target = normalized(renamed_keys::present_name(name).unwrap_or(name));
    let is_it = |known: &str| normalized(known) == target;
    if let Some(key) = keys::all().find(|key| is_it(key.name)) {
        return Some(CatalogEntry::Key { key: entry(key, recipe) });
    }
    if let Some(Section { name, meaning, keys, .. }) = SECTIONS.iter().find(|s| is_it(s.name)) {
        let keys = keys.iter().map(|key| entry(key, recipe)).collect();
        return Some(CatalogEntry::Table { name, meaning, keys });
    }
    if let Some(synonym) = synonyms::find(name) {
        return Some(CatalogEntry::Synonym {
            name: name.to_owned(),
            counterpart: counterpart(synonym),
            keys: synonym.keys().iter().map(|key| entry(known_key(key), recipe)).collect(),
        });
    }
    let key = keys::all().find(|key| is_it(key.leaf()))?;
    Some(CatalogEntry::Key { key: entry(key, recipe) })
}

/// The key, table or synonym whose spelling is closest to a name that [`look_up`] does not know.
pub fn close_name(name: &str) -> Option<&'static str> {
    let tables = SECTIONS.iter().map(|section| section.name);
    nearest(name, keys::all().map(|key| key.name).chain(tables))
        .or_else(|| nearest(name, keys::all().map(Key::leaf)))
        .or_else(|| synonyms::nearest_to(name).and_then(|synonym| synonym.names.first().copied()))
}

/// Keys whose name, synonyms or meaning contain every term, the closest match first.
pub fn search(terms: &[&str], recipe: &Recipe) -> Vec<SearchResult> {
    let terms = terms.iter().flat_map(|term| term.split_whitespace()).map(normalized);
    let terms: Vec<String> = terms.filter(|term| !term.is_empty()).collect();
    let mut found: Vec<(usize, SearchResult)> = keys::all()
        .filter_map(|key| {
            let names = synonyms::names_of(key.name);
            let ranks: Option<Vec<_>> = terms.iter().map(|term| rank(key, &names, term)).collect();
            let (rank, synonym) = ranks?.into_iter().max_by_key(|(rank, _)| *rank)?;
            Some((rank, SearchResult { key: entry(key, recipe), synonym }))
        })
        .collect();
    // Stable: equal matches keep the order of the table.
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, result)| result).collect()
}

/// How closely a key matches a word, with the synonym that does: 0 is the name itself.
fn rank(
    key: &'static Key,
    names: &[&'static str],
    word: &str,
) -> Option<(usize, Option<&'static str>)> {
    let (name, leaf) = (normalized(key.name), normalized(key.leaf()));
    let synonym = |is_it: fn(&str, &str) -> bool| {
        names.iter().copied().find(|known| is_it(&normalized(known), word))
    };
    if leaf == word || name == word {
        return Some((0, None));
    }
    if let Some(exact) = synonym(|known, word| known == word) {
        return Some((1, Some(exact)));
    }
    if leaf.starts_with(word) {
        return Some((2, None));
    }
    if name.contains(word) {
        return Some((3, None));
    }
    if let Some(partial) = synonym(|known, word| known.contains(word)) {
        return Some((4, Some(partial)));
    }
    let meaning = key.meaning.to_lowercase();
    let mut parts = meaning.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
    if parts.any(|part| normalized(part).starts_with(word)) {
        return Some((5, None));
    }
    normalized(&meaning).contains(word).then_some((6, None))
}

/// The counterpart of a synonym as a sentence.
fn counterpart(synonym: &Synonym) -> String {
    match &synonym.counterpart {
        Counterpart::Key(key) => (*key).to_owned(),
        Counterpart::Settings(meant, difference) => {
            let settings: Vec<String> = meant.iter().map(|one| (*one).to_owned()).collect();
            let note =
                if difference.is_empty() { String::new() } else { format!(" ({difference})") };
            format!("{}{note}", synonyms::list(&settings))
        }
        Counterpart::Absent { reason, instead } => format!("no counterpart: {reason}; {instead}"),
    }
}

fn known_key(name: &str) -> &'static Key {
    keys::find(name).expect("synonyms name keys")
}

fn entry(key: &'static Key, recipe: &Recipe) -> KeyEntry {
    let unmet = unmet_condition(key, recipe);
    let value = key.get(recipe).filter(|_| unmet.is_none());
    let origin = match key.default {
        _ if value.is_none() => ValueOrigin::Nothing,
        _ if value != key.default_in(recipe) => ValueOrigin::Set,
        KeyDefault::Derived { .. } => ValueOrigin::Derived,
        KeyDefault::Fixed(_) | KeyDefault::Nothing => ValueOrigin::Default,
    };
    let without_effect =
        unmet.map(|unmet| format!("needs {} = {}", unmet.other, alternatives(unmet.is)));
    KeyEntry {
        doc: describe_key(key),
        value: value.map(|value| value.to_string()),
        origin,
        without_effect,
        synonyms: synonyms::names_of(key.name),
        related: related(key),
    }
}

/// Most related keys that are listed.
const MAX_RELATED: usize = 8;

/// Keys that this key's meaning and conditions name, then those whose conditions and meaning name
/// this key.
fn related(key: &'static Key) -> Vec<&'static str> {
    let names = |one: &Key, other: &str| {
        let conditions = keys::conditions(one);
        let in_condition = conditions
            .iter()
            .any(|condition| matches!(condition, Applies::When { key, .. } if *key == other));
        let derived = match one.default {
            KeyDefault::Derived { text, .. } => text,
            KeyDefault::Fixed(_) | KeyDefault::Nothing => "",
        };
        in_condition || mentions(one.meaning, other) || mentions(derived, other)
    };
    let others = || keys::all().filter(|other| other.name != key.name);
    let named = others().filter(|other| names(key, other.name));
    let naming = others().filter(|other| names(other, key.name));
    let mut related: Vec<&'static str> = Vec::new();
    for other in named.chain(naming).map(|other| other.name) {
        if !related.contains(&other) && related.len() < MAX_RELATED {
            related.push(other);
        }
    }
    related
}

/// Whether a text has this key as a whole word.
fn mentions(text: &str, key: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut parts = text.split(|c| !is_part(c));
    parts.any(|part| part.trim_end_matches('.') == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sources, resolve};

    fn key_of(name: &str, recipe: &Recipe) -> KeyEntry {
        match look_up(name, recipe) {
            Some(CatalogEntry::Key { key }) => key,
            other => panic!("{name}: {other:?}"),
        }
    }

    fn names(results: &[SearchResult]) -> Vec<&str> {
        results.iter().map(|result| result.key.doc.name).collect()
    }

    #[test]
    fn every_key_is_found_with_its_value_and_never_relates_to_itself() {
        let recipe = Recipe::default();
        for key in keys::all() {
            let found = key_of(key.name, &recipe);
            assert_eq!(found.doc.name, key.name);
            assert!(!found.related.contains(&key.name) && found.related.len() <= MAX_RELATED);
            assert_ne!(found.origin, ValueOrigin::Set, "{} has its default", key.name);
            let value = key.get(&recipe).filter(|_| found.without_effect.is_none());
            assert_eq!(found.value, value.map(|value| value.to_string()));
        }
    }

    #[test]
    fn a_key_has_its_origin_and_its_unmet_condition() {
        let sets = vec!["parallel.tensor=2".to_owned(), "optim.name=sgd".to_owned()];
        let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("a recipe");
        let tensor = key_of("Parallel.Tensor", &recipe);
        assert_eq!((tensor.value.as_deref(), tensor.origin), (Some("2"), ValueOrigin::Set));
        assert!(tensor.related.contains(&"numerics.invariant_tensor_up_to"), "{tensor:?}");
        assert!(tensor.synonyms.contains(&"tp"));
        let beta = key_of("optim.beta1", &recipe);
        assert_eq!(
            beta.without_effect.as_deref(),
            Some(concat!(
                "needs optim.name = adam, adamw, lamb, lion, muon, schedule-free-adamw ",
                "or adamw-8bit"
            ))
        );
        assert!(beta.related.contains(&"optim.name"));
        assert_eq!(key_of("model.kv_heads", &recipe).origin, ValueOrigin::Derived);
        assert_eq!(key_of("train.target_loss", &recipe).origin, ValueOrigin::Nothing);
        assert_eq!(key_of("invariant-up-to", &recipe).doc.name, "numerics.invariant_up_to");
        assert_eq!(key_of("sync.hot_rows", &recipe).doc.name, "sync.row_cache", "an old name");
    }

    #[test]
    fn tables_and_synonyms_are_found() {
        let recipe = Recipe::default();
        let Some(CatalogEntry::Table { name, keys, .. }) = look_up("parallel", &recipe) else {
            panic!("a table");
        };
        assert!(name == "parallel" && keys.len() > 5);
        let Some(CatalogEntry::Synonym { counterpart, keys, .. }) = look_up("tp", &recipe) else {
            panic!("a synonym");
        };
        assert_eq!(
            (counterpart.as_str(), keys[0].doc.name),
            ("parallel.tensor", "parallel.tensor")
        );
        let Some(CatalogEntry::Synonym { counterpart, keys, .. }) = look_up("cp", &recipe) else {
            panic!("a synonym");
        };
        assert!(counterpart.starts_with("no counterpart: ") && keys.is_empty());
        let Some(CatalogEntry::Synonym { counterpart, .. }) = look_up("diloco", &recipe) else {
            panic!("a synonym");
        };
        assert_eq!(counterpart, "sync.mode = \"local-sgd\" with sync.outer = \"nesterov\"");
        assert_eq!(look_up("warp", &recipe), None);
        assert_eq!(close_name("paralel"), Some("parallel"));
        assert_eq!(close_name("warp.factor.nine"), None);
    }

    #[test]
    fn a_search_ranks_names_before_synonyms_before_meanings() {
        let recipe = Recipe::default();
        let found = search(&["lr"], &recipe);
        assert_eq!(names(&found)[0], "optim.lr");
        let found = search(&["learning_rate"], &recipe);
        assert_eq!((names(&found)[0], found[0].synonym), ("optim.lr", Some("learning_rate")));
        let found = search(&["ZeRO"], &recipe);
        assert_eq!(names(&found)[0], "parallel.zero");
        let found = search(&["checkpoint", "background"], &recipe);
        assert_eq!(names(&found)[0], "checkpoint.background");
        assert!(found.len() < 5, "{:?}", names(&found));
        assert!(names(&search(&["byzantine"], &recipe)).contains(&"sync.attack"));
        assert!(names(&search(&["sft"], &recipe)).contains(&"data.format"));
        assert!(search(&["zzyzx"], &recipe).is_empty() && search(&[""], &recipe).is_empty());
    }
}
