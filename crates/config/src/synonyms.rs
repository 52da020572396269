//! Synonyms: the key, or the setting, that a name of another framework stands for.
//!
//! Names match in any case, with or without `-` and `_`, and with or without the table in front:
//! `tp`, `parallel.tp`, `TP` and `parallelism.tensor-parallel-degree` all stand for
//! `parallel.tensor`. A synonym is never accepted as a key; it improves an error, and finds keys.

mod table;
mod values;

use crate::keys;
use crate::nearest::nearest;
use crate::value::{Content, RawValue};
use crate::value_type::ValueType;

use table::SYNONYMS;
use values::VALUE_SYNONYMS;

pub(crate) use table::{Counterpart, Synonym};

/// The synonym with this name, in the narrowest table that is known.
pub(crate) fn find(name: &str) -> Option<&'static Synonym> {
    let name = normalized(name);
    let mut starts = std::iter::once(0).chain(name.match_indices('.').map(|(dot, _)| dot + 1));
    starts.find_map(|start| {
        let is_it = |known: &&str| normalized(known) == name[start..];
        SYNONYMS.iter().find(|synonym| synonym.names.iter().any(&is_it))
    })
}

/// The synonym whose name is spelled most like this one.
pub(crate) fn nearest_to(name: &str) -> Option<&'static Synonym> {
    let last = name.rsplit('.').next().unwrap_or(name);
    // In a short name every letter matters.
    let names = SYNONYMS.iter().flat_map(|synonym| synonym.names).copied();
    let close = nearest(last, names.filter(|known| known.len() >= SHORTEST))?;
    find(close)
}

/// Letters of the shortest synonym of which another spelling is recognised.
const SHORTEST: usize = 6;

/// Names of other frameworks for a key, or for a setting of it.
pub(crate) fn names_of(key: &str) -> Vec<&'static str> {
    let is_meant = |synonym: &&Synonym| match &synonym.counterpart {
        Counterpart::Key(meant) => *meant == key,
        Counterpart::Settings(meant, _) => meant.iter().any(|setting| key_of(setting) == key),
        Counterpart::Absent { .. } => false,
    };
    SYNONYMS.iter().filter(is_meant).flat_map(|synonym| synonym.names).copied().collect()
}

impl Synonym {
    /// The counterpart as an instruction: a question with the key, and with the value where the
    /// given one has another name here; or the alternative.
    pub(crate) fn fix(&self, given: &RawValue) -> String {
        match &self.counterpart {
            Counterpart::Key(key) => match translate(key, given).or_else(|| named(key, given)) {
                Some(settings) => format!("did you mean {}?", list(&settings)),
                None => format!("did you mean {key}?"),
            },
            Counterpart::Settings(meant, difference) => {
                let note = if difference.is_empty() { "" } else { &format!(" ({difference})") };
                format!("did you mean {}{note}?", list(&with_value(meant, given)))
            }
            Counterpart::Absent { instead, .. } => (*instead).to_owned(),
        }
    }

    /// The rule that the name breaks, continuing "name = value".
    pub(crate) fn rule(&self) -> String {
        match &self.counterpart {
            Counterpart::Absent { reason, .. } => format!("is not a known key: {reason}"),
            Counterpart::Key(_) | Counterpart::Settings(..) => "is not a known key".to_owned(),
        }
    }

    /// Keys of the counterpart; none where there is none.
    pub(crate) fn keys(&self) -> Vec<&'static str> {
        match &self.counterpart {
            Counterpart::Key(key) => vec![key],
            Counterpart::Settings(meant, _) => meant.iter().map(|one| key_of(one)).collect(),
            Counterpart::Absent { .. } => Vec::new(),
        }
    }
}

/// Settings (`key=value`) that stand for a value of a key with another name or spelling.
pub(crate) fn translate(key: &str, given: &RawValue) -> Option<Vec<String>> {
    let value = normalized(&plain_text(given)?);
    let is_it = |known: &&'static str| normalized(known) == value;
    let synonym = VALUE_SYNONYMS
        .iter()
        .find(|synonym| synonym.keys.contains(&key) && synonym.values.iter().any(&is_it));
    if let Some(synonym) = synonym {
        let first = format!("{key}={}", synonym.value);
        return Some([first].into_iter().chain(synonym.others.iter().map(own)).collect());
    }
    let (ValueType::Choice(names) | ValueType::ChoiceOrNumbered(names, _)) =
        keys::find(key)?.value_type
    else {
        return None;
    };
    let known = names.iter().copied().find(is_it)?;
    Some(vec![format!("{key}={known}")])
}

/// The given value of a key that takes names, if it is one.
fn named(key: &str, given: &RawValue) -> Option<Vec<String>> {
    let key = keys::find(key)?;
    let takes_names =
        matches!(key.value_type, ValueType::Choice(_) | ValueType::ChoiceOrNumbered(..));
    let text = plain_text(given).filter(|_| takes_names)?;
    key.value_type.accept(given).ok()?;
    Some(vec![format!("{}={text}", key.name)])
}

/// Settings with the given value in place of theirs, where it has a counterpart; only their keys,
/// where the given value turns the setting off.
pub(crate) fn with_value(meant: &[&'static str], given: &RawValue) -> Vec<String> {
    if let [setting] = meant
        && setting.contains('=')
        && given.content != Content::Bool(true)
        && let Some(translated) = translate(key_of(setting), given)
    {
        return translated;
    }
    let is_off = given.content == Content::Bool(false);
    meant.iter().map(|one| if is_off { key_of(one).to_owned() } else { own(one) }).collect()
}

/// "a = 1", "a = 1 with b = \"x\"".
pub(crate) fn list(settings: &[String]) -> String {
    let texts: Vec<String> = settings.iter().map(|setting| toml_of(setting)).collect();
    texts.join(" with ")
}

/// A setting as a line of a recipe; a key alone stays.
fn toml_of(setting: &str) -> String {
    match setting.split_once('=') {
        // A list is written out, unlike one of a user, which may be long.
        Some((key, value)) if value.starts_with('[') => format!("{key} = {value}"),
        Some((key, value)) => format!("{key} = {}", RawValue::from_argument(value).written),
        None => setting.to_owned(),
    }
}

/// The key of a setting.
fn key_of(setting: &'static str) -> &'static str {
    setting.split_once('=').map_or(setting, |(key, _)| key)
}

fn own(setting: &&'static str) -> String {
    (*setting).to_owned()
}

/// Text of a value that may be a name.
fn plain_text(given: &RawValue) -> Option<String> {
    match &given.content {
        Content::Text(text) => Some(text.clone()),
        Content::Bool(flag) => Some(flag.to_string()),
        Content::Integer(number) => Some(number.to_string()),
        Content::Float(_) | Content::Date | Content::List(_) | Content::Table(_) => None,
    }
}

/// A name without case, `-`, `_` and spaces.
pub(crate) fn normalized(name: &str) -> String {
    let letters = name.chars().filter(|letter| !matches!(letter, '-' | '_' | ' '));
    letters.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Applies, Key};
    use crate::{Recipe, Sources, resolve};
    use std::collections::BTreeSet;

    fn resolves(sets: &[String]) -> Result<Recipe, String> {
        let sources = Sources { sets: sets.to_vec(), ..Sources::default() };
        resolve(&sources).map_err(|errors| format!("{sets:?}: {errors}"))
    }

    /// Settings under which a key has an effect.
    fn conditions(key: &Key) -> Vec<String> {
        let mut sets = Vec::new();
        for condition in keys::conditions(key) {
            let Applies::When { key: other, is } = condition else { continue };
            let known = keys::find(other).expect("a key");
            sets.extend(conditions(known));
            sets.push(format!("{other}={}", is[0]));
        }
        sets
    }

    /// Why a key or a setting does not resolve where its conditions are met.
    fn refusal(setting: &str, others: &[String]) -> Option<String> {
        let (name, value) = setting.split_once('=').map_or((setting, None), |(k, v)| (k, Some(v)));
        let Some(key) = keys::find(name) else { return Some(format!("{name} is not a key")) };
        let mut sets = others.to_vec();
        sets.extend(conditions(key));
        let base = match resolves(&sets) {
            Ok(base) => base,
            // The setting may be a part of what its conditions need.
            Err(_) if value.is_some() => Recipe::default(),
            Err(error) => return Some(error),
        };
        let present = || key.get(&base).map(|value| value.to_string());
        let value = value.map(str::to_owned).or_else(present)?;
        sets.push(format!("{name}={value}"));
        resolves(&sets).err()
    }

    fn complete(meant: &[&'static str]) -> Vec<String> {
        meant.iter().filter(|one| one.contains('=')).map(own).collect()
    }

    /// Keys and settings that a sentence names.
    fn named_in(text: &str) -> impl Iterator<Item = &str> {
        let parts = text.split([' ', ',', ';', '(', ')']);
        parts.filter(|part| part.starts_with(char::is_alphabetic)).filter(|part| {
            let table = part.split_once('.').map(|(table, _)| table);
            table.is_some_and(|table| keys::SECTIONS.iter().any(|known| known.name == table))
        })
    }

    #[test]
    fn every_suggested_key_and_setting_resolves() {
        let mut refused = Vec::new();
        for synonym in SYNONYMS {
            match &synonym.counterpart {
                Counterpart::Key(key) => refused.extend(refusal(key, &[])),
                Counterpart::Settings(meant, difference) => {
                    let all = complete(meant);
                    refused.extend(meant.iter().filter_map(|one| refusal(one, &all)));
                    refused.extend(named_in(difference).filter_map(|one| refusal(one, &[])));
                }
                Counterpart::Absent { reason, instead } => {
                    assert!(!reason.is_empty() && !instead.is_empty(), "{synonym:?}");
                    let named = named_in(reason).chain(named_in(instead));
                    refused.extend(named.filter_map(|one| refusal(one, &[])));
                }
            }
        }
        assert!(refused.is_empty(), "{refused:#?}");
    }

    #[test]
    fn every_suggested_value_resolves() {
        let mut refused = Vec::new();
        for synonym in VALUE_SYNONYMS {
            for name in synonym.keys {
                let key = keys::find(name).expect("a key");
                let mut sets = conditions(key);
                sets.push(format!("{name}={}", synonym.value));
                sets.extend(synonym.others.iter().map(own));
                refused.extend(resolves(&sets).err());
                for value in synonym.values {
                    let given = RawValue::from_argument(value);
                    if key.value_type.accept(&given).is_ok() {
                        refused.push(format!("{name} = {value} is accepted and needs no synonym"));
                    }
                    let translated = translate(name, &given).expect("a translation");
                    if translated[0] != format!("{name}={}", synonym.value) {
                        refused.push(format!("{name} = {value} is {translated:?}, too"));
                    }
                }
            }
        }
        assert!(refused.is_empty(), "{refused:#?}");
    }

    #[test]
    fn names_are_unique_and_no_name_is_a_key() {
        let mut names = BTreeSet::new();
        let tables: Vec<&str> = keys::SECTIONS.iter().map(|section| section.name).collect();
        for name in SYNONYMS.iter().flat_map(|synonym| synonym.names) {
            // A table's own name is refused as a table, unless it is the word elsewhere too.
            assert!(!tables.contains(name) || *name == "precision", "{name} is a table");
            assert!(names.insert(normalized(name)), "{name} is listed twice");
            assert!(keys::find(name).is_none(), "{name} is a key");
            assert_eq!(*name, name.to_lowercase(), "{name}");
        }
    }

    #[test]
    fn a_name_is_found_in_any_case_and_with_or_without_a_table() {
        for name in ["tp", "TP", "parallel.tp", "parallelism.tp", "Tensor-Parallel-Degree"] {
            assert_eq!(find(name).expect("a synonym").keys(), ["parallel.tensor"], "{name}");
        }
        assert_eq!(find("zero_optimization.stage").expect("one").keys(), ["parallel.zero"]);
        assert_eq!(find("validation.freq").expect("one").keys(), ["train.eval_every"]);
        assert_eq!(find("checkpoint.freq").expect("one").keys(), ["checkpoint.every"]);
        assert!(find("tpx").is_none() && find("").is_none() && find("warp.factor").is_none());
        assert_eq!(nearest_to("learning_rat").expect("one").keys(), ["optim.lr"]);
        assert!(nearest_to("warp.factor").is_none() && nearest_to("tq").is_none());
    }

    #[test]
    fn a_key_lists_its_names_elsewhere() {
        assert!(names_of("parallel.tensor").contains(&"tp"));
        let zero = names_of("parallel.zero");
        assert!(zero.contains(&"zero_stage") && zero.contains(&"fsdp"));
        assert!(names_of("emulate.seed").is_empty());
    }
}
