//! Flags of other frameworks (`--tp 2`, `--learning-rate 1e-3`), with the settings that each stands
//! for.
//!
//! Names match as [synonyms](crate::synonyms) do; keys match with or without their table. A flag is
//! never accepted by this name; it improves an error.

use crate::key::Key;
use crate::keys;
use crate::synonyms::{self, Counterpart, Synonym, normalized};
use crate::value::RawValue;

/// Counterpart of a flag that a command does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagCounterpart {
    /// Settings that express it.
    Settings {
        /// The settings.
        settings: Vec<FlagSetting>,
        /// Difference in meaning; empty if there is none.
        difference: &'static str,
    },
    /// None.
    Absent {
        /// Why there is none.
        reason: &'static str,
        /// An alternative, as an instruction.
        instead: &'static str,
    },
}

/// A key to set instead of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagSetting {
    /// The key.
    pub key: String,
    /// Its value; `None` where the flag's value has no counterpart.
    pub value: Option<String>,
}

/// Counterpart of a flag, with or without leading dashes, and of its value.
pub fn flag_counterpart(flag: &str, value: Option<&str>) -> Option<FlagCounterpart> {
    let name = flag.trim_start_matches('-');
    let target = normalized(name);
    if let Some(key) = keys::all().find(|key| normalized(key.name) == target) {
        return Some(counterpart_of_key(key, value));
    }
    if let Some(synonym) = synonyms::find(name) {
        return Some(counterpart_of(synonym, value));
    }
    let key = keys::all().find(|key| normalized(key.leaf()) == target)?;
    Some(counterpart_of_key(key, value))
}

/// Counterpart of the known flag whose spelling is closest.
pub fn nearest_flag_counterpart(flag: &str, value: Option<&str>) -> Option<FlagCounterpart> {
    let name = flag.trim_start_matches('-').replace('-', "_");
    synonyms::nearest_to(&name).map(|synonym| counterpart_of(synonym, value))
}

fn counterpart_of(synonym: &Synonym, value: Option<&str>) -> FlagCounterpart {
    match &synonym.counterpart {
        Counterpart::Key(name) => {
            let key = keys::find(name).expect("synonyms name keys; their tests check it");
            counterpart_of_key(key, value)
        }
        Counterpart::Settings(meant, difference) => {
            let settings = synonyms::with_value(meant, &raw(value));
            let settings = settings.iter().map(|setting| split(setting)).collect();
            FlagCounterpart::Settings { settings, difference }
        }
        Counterpart::Absent { reason, instead } => FlagCounterpart::Absent { reason, instead },
    }
}

fn counterpart_of_key(key: &Key, value: Option<&str>) -> FlagCounterpart {
    let given = raw(value);
    let settings = if let Some(settings) = synonyms::translate(key.name, &given) {
        settings.iter().map(|setting| split(setting)).collect()
    } else {
        let is_accepted = key.value_type.accept(&given).is_ok();
        let value = is_accepted.then(|| value.unwrap_or("true").to_owned());
        vec![FlagSetting { key: key.name.to_owned(), value }]
    };
    FlagCounterpart::Settings { settings, difference: "" }
}

/// The value of a flag; a flag without one turns something on.
fn raw(value: Option<&str>) -> RawValue {
    RawValue::from_argument(value.unwrap_or("true"))
}

/// A setting `key=value`, or a key alone.
fn split(setting: &str) -> FlagSetting {
    let (key, value) = setting.split_once('=').map_or((setting, None), |(k, v)| (k, Some(v)));
    FlagSetting { key: key.to_owned(), value: value.map(str::to_owned) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counterpart as `key=value`, the key alone, or the alternative.
    fn meant(flag: &str, value: Option<&str>) -> Option<String> {
        let text = |FlagSetting { key, value }: FlagSetting| match value {
            Some(value) => format!("{key}={value}"),
            None => key,
        };
        Some(match flag_counterpart(flag, value)? {
            FlagCounterpart::Settings { settings, .. } => {
                settings.into_iter().map(text).collect::<Vec<_>>().join(" ")
            }
            FlagCounterpart::Absent { instead, .. } => instead.to_owned(),
        })
    }

    #[test]
    fn flags_stand_for_settings() {
        for (flag, value, expected) in [
            ("--tp", Some("2"), "parallel.tensor=2"),
            ("--tensor-model-parallel-size", Some("4"), "parallel.tensor=4"),
            ("--learning-rate", Some("1e-3"), "optim.lr=1e-3"),
            ("--hidden_size", Some("256"), "model.width=256"),
            ("--fp16", None, "precision.compute=fp16"),
            ("--dtype", Some("bfloat16"), "precision.compute=bf16"),
            ("--layers", Some("4"), "model.layers=4"),
            ("--optim.lr", Some("0.1"), "optim.lr=0.1"),
            ("--seed", Some("many"), "train.seed"),
            ("--num-train-epochs", Some("3"), "train.epochs=3"),
            ("--lr", None, "optim.lr"),
            ("--gradient-accumulation-steps", Some("4"), "train.batch"),
        ] {
            assert_eq!(meant(flag, value).as_deref(), Some(expected), "{flag} {value:?}");
        }
        let samples = meant("--train-samples", Some("3")).expect("an alternative");
        assert!(samples.contains("train.steps"), "{samples}");
        assert_eq!(meant("--warp-factor", Some("9")), None);
    }

    #[test]
    fn a_misspelt_flag_has_the_nearest_counterpart() {
        let found = nearest_flag_counterpart("--learning-rat", Some("0.1"));
        assert_eq!(found, flag_counterpart("--learning-rate", Some("0.1")));
        assert_eq!(nearest_flag_counterpart("--tq", Some("2")), None);
    }
}
