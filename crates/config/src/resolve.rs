//! Resolution: from sources to a recipe, or to all errors.
//!
//! The recipe is filled row by row from the key table (a setting, or else the default, which may be
//! derived from rows above). Then the rules between keys are checked on the filled recipe.

use crate::conditions::unmet_condition;
use crate::error::{ConfigError, ConfigErrors, Origin};
use crate::field::Blank;
use crate::key::Setting;
use crate::keys;
use crate::rules;
use crate::sources::{
    AdapterFolder, EpochSteps, MergedSources, ModelFolder, PendingError, Sources,
};
use crate::topics::{Finetune, Model, Recipe};
use crate::value::Value;

/// Resolves a recipe, or returns all errors.
pub fn resolve(sources: &Sources) -> Result<Recipe, ConfigErrors> {
    let mut merged = MergedSources::from_sources(sources);
    take_sizes_of_pairs(&mut merged);
    validate(merged)
}

/// Resolves a recipe whose `model.from` names a folder. The model of the folder replaces defaults
/// and presets, and explicit settings must not contradict it. The caller reads the folder, so that
/// this remains a pure function.
pub fn resolve_with(sources: &Sources, folder: &ModelFolder) -> Result<Recipe, ConfigErrors> {
    resolve_with_folders(sources, Some(folder), None, None)
}

/// As [`resolve_with`], for a recipe that may start from a model, from an adapter or from both, and
/// learn from the model of a teacher.
pub fn resolve_with_folders(
    sources: &Sources,
    model: Option<&ModelFolder>,
    adapter: Option<&AdapterFolder>,
    teacher: Option<&ModelFolder>,
) -> Result<Recipe, ConfigErrors> {
    let mut merged = MergedSources::from_sources(sources);
    if let Some(folder) = teacher {
        merged.take_teacher_of_folder(folder);
    }
    if let Some(folder) = adapter {
        merged.take_adapter_of_folder(folder);
    }
    if let Some(folder) = model {
        merged.take_model_of_folder(folder);
    }
    take_sizes_of_pairs(&mut merged);
    validate(merged)
}

/// Whether `train.epochs` decides the number of steps of these sources, which the caller has not
/// counted yet.
pub fn needs_epoch_steps(sources: &Sources) -> bool {
    let is_open = sources.epoch_steps == EpochSteps::NotCounted;
    is_open && MergedSources::from_sources(sources).has_epochs()
}

/// The folder of `finetune.adapter` of these sources.
pub fn adapter_from(sources: &Sources) -> Option<String> {
    folder_of("finetune.adapter", sources)
}

/// The folder of `finetune.teacher` of these sources.
pub fn teacher_from(sources: &Sources) -> Option<String> {
    folder_of("finetune.teacher", sources)
}

fn folder_of(key: &str, sources: &Sources) -> Option<String> {
    let settings = MergedSources::from_sources(sources).settings;
    let folder = settings.get(key).map(|setting| setting.value.as_text().to_owned());
    folder.filter(|folder| !folder.is_empty())
}

/// The folder whose model the recipe takes over: `model.from` of these sources, unless
/// `model.partial` loads only matching weights.
pub fn model_from(sources: &Sources) -> Option<String> {
    let settings = MergedSources::from_sources(sources).settings;
    let is_partial = settings.get("model.partial").is_some_and(|setting| setting.value.as_bool());
    let from = settings.get("model.from").filter(|_| !is_partial);
    from.map(|setting| setting.value.as_text().to_owned())
}

impl Sources {
    /// Whether the recipe file or an argument sets a key; a preset does not count.
    pub fn sets_explicitly(&self, key: &str) -> bool {
        let settings = MergedSources::from_sources(self).settings;
        settings.get(key).is_some_and(|setting| setting.origin.is_explicit())
    }
}

/// Sizes that fit pairs of sequences (`finetune.method = dpo`), where no source sets them: an even
/// micro-batch, and as many reduction leaves as divide the batch.
fn take_sizes_of_pairs(merged: &mut MergedSources) {
    const MICROBATCH: &str = "train.microbatch";
    const LEAVES: &str = "numerics.invariant_up_to";
    let by_default = |number: usize| Setting {
        value: Value::Integer(i64::try_from(number).expect("a small number")),
        origin: Origin::Default,
    };
    if !fill(merged).finetune.has_pairs() {
        return;
    }
    merged.settings.entry(MICROBATCH).or_insert_with(|| by_default(2));
    let Recipe { train, numerics, .. } = fill(merged);
    let is_whole = train.batch.is_multiple_of(train.microbatch_size);
    let leaves = 1 << (train.batch / train.microbatch_size).trailing_zeros().min(6);
    if is_whole && leaves < numerics.invariant_up_to {
        merged.settings.entry(LEAVES).or_insert_with(|| by_default(leaves));
    }
}

fn validate(mut merged: MergedSources) -> Result<Recipe, ConfigErrors> {
    let recipe = fill(&merged);
    let pending_errors = std::mem::take(&mut merged.pending_errors);
    let mut errors: Vec<ConfigError> =
        pending_errors.into_iter().map(|pending| with_fix(pending, &recipe)).collect();
    if !merged.incomplete {
        errors.extend(rules::broken(&recipe, &merged));
        errors.extend(unsuitable_teacher(&recipe));
    }
    if errors.is_empty() { Ok(recipe) } else { Err(ConfigErrors { errors }) }
}

impl Recipe {
    /// Model of the teacher, where the loss has one.
    pub fn teacher(&self) -> Option<Model> {
        let Finetune { teacher_model, .. } = &self.finetune;
        if !self.finetune.distills() || teacher_model.is_empty() {
            return None;
        }
        Some(fill(&MergedSources::of_model(teacher_model)).model)
    }
}

/// A teacher that cannot teach the model of the recipe.
fn unsuitable_teacher(recipe: &Recipe) -> Option<ConfigError> {
    let teacher = recipe.teacher()?;
    let Model { vocab, context, .. } = &recipe.model;
    let (rule, fix) = if teacher.family.is_problem() {
        (format!("is a {}, which has no tokens", teacher.family), "a language model".to_owned())
    } else if teacher.vocab != *vocab {
        let rule = format!("has a vocabulary of {}, and model.vocab = {vocab}", teacher.vocab);
        (rule, format!("a teacher of that vocabulary, or model.vocab = {}", teacher.vocab))
    } else if teacher.context < *context {
        let rule =
            format!("has a context of {} tokens, and model.context = {context}", teacher.context);
        (rule, format!("model.context = {}", teacher.context))
    } else {
        return None;
    };
    let (key, folder) = ("finetune.teacher", format!("{:?}", recipe.finetune.teacher));
    Some(ConfigError::new(key, folder, rule, fix, Origin::Default))
}

impl Default for Recipe {
    /// The recipe with every key at its default.
    fn default() -> Self {
        fill(&MergedSources::default())
    }
}

fn fill(merged: &MergedSources) -> Recipe {
    let mut recipe = Recipe::BLANK;
    for key in keys::all() {
        // A setting without effect is ignored, so that equivalent recipes are equal.
        let value = match unmet_condition(key, &recipe) {
            None => merged.settings.get(key.name).map(|setting| setting.value.clone()),
            Some(_) => key.inactive.map(Value::Integer),
        };
        if let Some(value) = value.or_else(|| key.default_in(&recipe)) {
            key.set(&mut recipe, &value);
        }
    }
    recipe.optim.width_ratio = recipe.model.mup.width_ratio(recipe.model.width);
    recipe
}

/// Completes an error without a fix: the value that the key has without the invalid one works.
fn with_fix(pending: PendingError, recipe: &Recipe) -> ConfigError {
    let PendingError { mut error, key } = pending;
    if error.fix.is_empty() {
        let present = key.and_then(|key| key.get(recipe)).map(|value| value.to_string());
        let listed = || key.and_then(|key| key.value_type.first_choice());
        error.fix = match present.or_else(listed) {
            Some(value) => format!("try {value}"),
            None => "remove it".to_owned(),
        };
    }
    error
}
