//! What a folder with weights says about its model, among what a person said.
//!
//! The folder is stronger than defaults and presets, for weights have one shape only. What the
//! person wrote may repeat it, and may differ where the weights do not mind: how much is dropped
//! while training, and how far back attention looks, up to what the folder allows.

use super::MergedSources;
use crate::error::{ConfigError, Origin};
use crate::keys;
use crate::value::{RawValue, Value};

/// What a folder with weights says about its model.
#[derive(Debug, Clone, Default)]
pub struct ModelFolder {
    /// The file that says so, for messages.
    pub name: String,
    /// The keys of the model, as TOML: see [`crate::Model::to_toml`].
    pub model: String,
    /// Its tokenizer, the default of `data.tokenizer`.
    pub tokenizer: Option<String>,
}

impl MergedSources {
    /// Fills in the model of a folder, and complains about what contradicts it.
    pub(crate) fn take_model_of_folder(&mut self, folder: &ModelFolder) {
        let origin = Origin::Folder(folder.name.replace(char::is_control, " "));
        let mut donor = Self::default();
        donor.take_document(&folder.model, |_| origin.clone());
        self.pending_errors.append(&mut donor.pending_errors);
        self.bad.append(&mut donor.bad);
        let is_model = |key: &str| key.starts_with("model.");
        self.settings.retain(|key, setting| !is_model(key) || setting.origin.is_explicit());
        if let Some(setting) = self.settings.remove("model.preset") {
            let rule = "cannot be had with model.from, which has a model".to_owned();
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

    /// The folder's tokenizer, unless the person chose one.
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

/// Whether a model of a folder with this value can be used with the person's own.
fn allows(key: &str, folder: &Value, own: &Value) -> bool {
    match key {
        "model.dropout" => true,
        "model.context" => own.as_integer() <= folder.as_integer(),
        _ => own == folder,
    }
}
