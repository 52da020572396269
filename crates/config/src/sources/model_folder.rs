//! The model of a weight folder as a source of settings.
//!
//! The folder is stronger than defaults and presets, since its weights have fixed shapes. Explicit
//! settings may repeat it, and may differ where the weights allow it: dropout, and a shorter
//! context. The folder's maximum number of positions is kept for an export, and its width decides
//! the learning rate unless a source sets one. An adapter folder decides the keys of its adapters
//! in the same way.

use super::MergedSources;
use crate::error::{ConfigError, Origin};
use crate::field::Field;
use crate::fine_tuning;
use crate::key::Setting;
use crate::keys;
use crate::topics::{Family, LoraTargets, OptimName};
use crate::value::{RawValue, Value};

/// Model settings of a weight folder.
#[derive(Debug, Clone, Default)]
pub struct ModelFolder {
    /// Name of its configuration file, for messages.
    pub name: String,
    /// Keys of the model as TOML, from [`crate::Model::to_toml`].
    pub model: String,
    /// Maximum number of positions that it declares, where that is not the context of the model.
    pub max_positions: Option<usize>,
    /// Path of its tokenizer, the default of `data.tokenizer`.
    pub tokenizer: Option<String>,
}

/// Settings of a folder with low-rank adapters.
#[derive(Debug, Clone, Default)]
pub struct AdapterFolder {
    /// Name of its configuration file, for messages.
    pub name: String,
    /// Keys of the adapters as TOML, from [`crate::Lora::to_toml`].
    pub lora: String,
}

impl MergedSources {
    /// Takes over the adapters of a folder and reports settings that contradict it.
    pub(crate) fn take_adapter_of_folder(&mut self, folder: &AdapterFolder) {
        let mut donor = Self::default();
        donor.take_document(&folder.lora, |_| origin_of(&folder.name));
        self.pending_errors.append(&mut donor.pending_errors);
        self.invalid.append(&mut donor.invalid);
        self.take_settings(donor, &folder.name);
    }

    /// The model keys of a folder, from [`ModelFolder::model`].
    pub(crate) fn of_model(text: &str) -> Self {
        let mut merged = Self::default();
        merged.take_document(text, |_| Origin::Default);
        merged
    }

    /// Takes over the model of a teacher, and reports one that contradicts it.
    pub(crate) fn take_teacher_of_folder(&mut self, folder: &ModelFolder) {
        const KEY: &str = "finetune.teacher_model";
        let mut donor = Self::default();
        let setting =
            Setting { value: Value::Text(folder.model.clone()), origin: origin_of(&folder.name) };
        donor.settings.insert(KEY, setting);
        self.take_settings(donor, &folder.name);
    }

    /// Takes over the model of a folder and reports settings that contradict it.
    pub(crate) fn take_model_of_folder(&mut self, folder: &ModelFolder) {
        let origin = origin_of(&folder.name);
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
        let declared = folder.max_positions.and_then(|max| i64::try_from(max).ok());
        let max_positions = declared.max(donor.integer("model.context"));
        self.refuse_new_mup(&donor, &folder.name);
        self.take_settings(donor, &folder.name);
        self.take_max_positions(max_positions, origin.clone());
        self.take_learning_rate(origin.clone());
        if let Some(tokenizer) = &folder.tokenizer {
            self.take_tokenizer(tokenizer, origin);
        }
    }

    /// Refuses muP for weights that were trained without it: their logits would be others.
    fn refuse_new_mup(&mut self, donor: &Self, name: &str) {
        const KEY: &str = "model.mup_base_width";
        if !donor.settings.contains_key(KEY)
            && let Some(setting) = self.settings.remove(KEY)
        {
            let rule = format!("contradicts {name}, whose weights are those of a model without");
            self.contradict(KEY, &setting.value, rule, setting.origin);
        }
    }

    /// Takes over the settings of a folder, and reports own ones that contradict them.
    fn take_settings(&mut self, donor: Self, name: &str) {
        for (key, setting) in donor.settings {
            match self.settings.get(key).cloned() {
                Some(own) if !allows(key, &setting.value, &own.value) => {
                    let rule = format!("contradicts {name}, which has {}", setting.value);
                    self.contradict(key, &own.value, rule, own.origin);
                }
                Some(_) => {}
                None => {
                    self.settings.insert(key, setting);
                }
            }
        }
    }

    /// Keeps the folder's maximum number of positions where the recipe trains on fewer. Learned
    /// positions are rows of a tensor, and only the trained ones are left.
    fn take_max_positions(&mut self, max_positions: Option<i64>, origin: Origin) {
        const KEY: &str = "model.max_positions";
        let is_shorter = self.integer("model.context") < max_positions;
        let is_rotary = self.text("model.family") != Some(Family::Gpt2.name());
        if let (true, Some(max)) = (is_rotary && is_shorter, max_positions) {
            let setting = Setting { value: Value::Integer(max), origin };
            self.settings.entry(KEY).or_insert(setting);
        }
    }

    /// Chooses the learning rate for the folder's weights, unless any source sets one.
    fn take_learning_rate(&mut self, origin: Origin) {
        const KEY: &str = "optim.lr";
        let family = self.text("model.family").and_then(Family::from_name);
        let width = self.integer("model.width").and_then(|width| usize::try_from(width).ok());
        let optim = self.text("optim.name").map_or(Some(OptimName::AdamW), OptimName::from_name);
        let (Some(family), Some(width), Some(optim)) = (family, width, optim) else { return };
        let has_adapters = self.integer("finetune.lora_rank").is_some_and(|rank| rank > 0);
        let lr = fine_tuning::learning_rate(family, width, optim, has_adapters);
        if let Some(lr) = lr {
            let setting = Setting { value: Value::Float(lr), origin };
            self.settings.entry(KEY).or_insert(setting);
        }
    }

    fn integer(&self, key: &str) -> Option<i64> {
        self.settings.get(key).map(|setting| setting.value.as_integer())
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.settings.get(key).map(|setting| setting.value.as_text())
    }

    /// Takes over the folder's tokenizer, unless one is set explicitly.
    fn take_tokenizer(&mut self, path: &str, origin: Origin) {
        const KEY: &str = "data.tokenizer";
        let chosen = self.settings.get(KEY).is_some_and(|setting| setting.origin.is_explicit());
        let accepted = keys::find(KEY).map(|key| key.value_type.accept(&RawValue::text(path)));
        if let (false, Some(Ok(value))) = (chosen, accepted) {
            self.settings.insert(KEY, Setting { value, origin });
        }
    }

    fn contradict(&mut self, key: &str, value: &Value, rule: String, origin: Origin) {
        let error = ConfigError::new(key, value.to_string(), rule, "remove it", origin);
        self.report(None, error);
    }
}

/// A folder as the origin of settings.
fn origin_of(name: &str) -> Origin {
    Origin::Folder(name.replace(char::is_control, " "))
}

/// Whether an explicit value is compatible with that of the folder.
fn allows(key: &str, folder: &Value, own: &Value) -> bool {
    match key {
        // A recorded recipe may describe a teacher without keys that are newer; the formats of the
        // weights beside adapters are not those of a folder.
        "model.dropout"
        | "finetune.lora_dropout"
        | "finetune.teacher_model"
        | "finetune.quant_type"
        | "finetune.double_quant" => true,
        "model.context" => own.as_integer() <= folder.as_integer(),
        // A set, in any order.
        "finetune.lora_targets" => LoraTargets::from_value(own) == LoraTargets::from_value(folder),
        _ => own == folder,
    }
}
