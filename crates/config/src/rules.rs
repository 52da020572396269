//! The rules of all topics, in the order in which their errors are reported.

use crate::conditions::{UnmetCondition, unmet_condition};
use crate::error::{ConfigError, Origin, alternatives};
use crate::keys;
use crate::rule::{RuleContext, Rules};
use crate::sources::MergedSources;
use crate::topics::{
    Recipe, collectives, compress, data, emulate, epochs, eval, federated, finetune, gossip,
    gpt_neox, hogwild, infilling, llama_variant, lora, mixture, model, mup, optim, parallel,
    parameter_server, pipeline, precision, problem, rope, run, seqlen_warmup, stragglers, sync,
    telemetry, tensor, train,
};
use crate::value::quoted;

/// Rules of all topics.
const RULES: &[Rules] = &[
    model::RULES,
    llama_variant::RULES,
    gpt_neox::RULES,
    rope::RULES,
    lora::RULES,
    mup::RULES,
    problem::RULES,
    finetune::RULES,
    data::RULES,
    eval::RULES,
    mixture::RULES,
    infilling::RULES,
    train::BATCH_RULES,
    epochs::RULES,
    optim::WARMUP_RULES,
    train::RULES,
    seqlen_warmup::RULES,
    optim::SCHEDULE_RULES,
    precision::RULES,
    optim::RULES,
    optim::SCHEDULE_FREE_RULES,
    optim::MUON_RULES,
    optim::ADAFACTOR_RULES,
    optim::EIGHT_BIT_RULES,
    tensor::RULES,
    run::RULES,
    parallel::RULES,
    collectives::RULES,
    pipeline::RULES,
    sync::RULES,
    stragglers::RULES,
    stragglers::DELAY_RULES,
    hogwild::RULES,
    gossip::RULES,
    parameter_server::RULES,
    gossip::ROBUST_RULES,
    parameter_server::ROBUST_RULES,
    compress::RULES,
    federated::RULES,
    sync::PARTITION_RULES,
    emulate::RULES,
    telemetry::RULES,
];

/// Every broken rule.
pub(crate) fn broken(recipe: &Recipe, merged: &MergedSources) -> Vec<ConfigError> {
    let MergedSources { settings, invalid, .. } = merged;
    let context = RuleContext { recipe, settings, invalid, find: keys::find, keys: &[] };
    let mut errors: Vec<ConfigError> =
        RULES.iter().flat_map(|rules| rules.broken(&context)).collect();
    errors.extend(settings_have_an_effect(&context));
    errors
}

/// A setting without effect is an error if the user wrote it; one from a preset is ignored.
fn settings_have_an_effect(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for key in keys::all() {
        let Some(setting) = context.settings.get(key.name) else { continue };
        let unmet_condition =
            unmet_condition(key, context.recipe).filter(|_| setting.origin.is_explicit());
        let Some(UnmetCondition { other, value: chosen, is }) = unmet_condition else { continue };
        if context.all_valid(&[other]) {
            let others: Vec<String> = is.iter().map(|name| quoted(name)).collect();
            let rule = format!("is not a setting of {other} = {chosen}");
            // The model of a folder is what it is.
            let chosen_by = context.settings.get(other).map(|setting| &setting.origin);
            let fix = match chosen_by {
                Some(Origin::Folder(_)) => "remove it".to_owned(),
                _ => format!("remove it or set {other} = {}", alternatives(&others)),
            };
            let (value, origin) = (setting.value.to_string(), setting.origin.clone());
            errors.push(ConfigError::new(key.name, value, rule, fix, origin));
        }
    }
    errors
}
