//! The model of a weight folder as a source of settings.
//!
//! The folder is stronger than defaults and presets, since its weights have fixed shapes. Explicit
//! settings may repeat it, and may differ where the weights allow it: dropout, and a shorter
//! context.

use super::MergedSources;
use crate::error::{ConfigError, Origin};
use crate::keys;
use crate::value::{RawValue, Value};

/// Model settings of a weight folder.
#[derive(Debug, Clone, Default)]
pub struct ModelFolder {
    /// Name of its configuration file, for messages.
    pub name: String,
    /// Keys of the model as TOML, from [`crate::Model::to_toml`].
    pub model: String,
    /// Path of its tokenizer, the default of `data.tokenizer`.
    pub tokenizer: Option<String>,
}

impl MergedSources {
    /// Takes over the model of a folder and reports settings that contradict it.
    pub(crate) fn take_model_of_folder(&mut self, folder: &ModelFolder) {
        let origin = Origin::Folder(folder.name.replace(char::is_control, " "));
        let mut donor = Self::default();
        donor.take_document(&folder.model, |_| origin.clone());
        self.pending_errors.append(&mut donor.pending_errors);
        self.invalid.append(&mut donor.invalid);
        let is_model = |key: &str| key.starts_with("model.");
        self.settings.retain(|key, setting| !is_model(key) || setting.origin.is_explicit());
        if let Some(setting) = self.settings.remove("model.preset") {
            let rule = "is not supported with model.from, which has a model".to_owned();
            self.contradict("model.preset", &setting.value, rule, setting.origin);
        }
        for (key, setting) in donor.settings {
            match self.settings.get(key).cloned() {
                Some(own) if !allows(key, &setting.value, &own.value) => {
                    let rule = format!("contradicts {}, which has {}", folder.name, setting.value);
                    self.contradict(key, &own.value, rule, own.origin);
                }
                Some(_) => {}
                None => {
                    self.settings.insert(key, setting);
                }
            }
        }
        if let Some(tokenizer) = &folder.tokenizer {
            self.take_tokenizer(tokenizer, origin);
        }
    }

    /// Takes over the folder's tokenizer, unless one is set explicitly.
    fn take_tokenizer(&mut self, path: &str, origin: Origin) {
        const KEY: &str = "data.tokenizer";
        let chosen = self.settings.get(KEY).is_some_and(|setting| setting.origin.is_explicit());
        let accepted = keys::find(KEY).map(|key| key.value_type.accept(&RawValue::text(path)));
        if let (false, Some(Ok(value))) = (chosen, accepted) {
            self.settings.insert(KEY, super::Setting { value, origin });
        }
    }

    fn contradict(&mut self, key: &str, value: &Value, rule: String, origin: Origin) {
        let (key, value) = (key.to_owned(), value.to_string());
        let fix = "remove it".to_owned();
        self.report(None, ConfigError { key, value, rule, fix, origin });
    }
}

/// Whether an explicit value is compatible with that of the folder.
fn allows(key: &str, folder: &Value, own: &Value) -> bool {
    match key {
        "model.dropout" => true,
        "model.context" => own.as_integer() <= folder.as_integer(),
        _ => own == folder,
    }
}
