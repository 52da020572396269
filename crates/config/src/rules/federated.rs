//! Rules about federated learning: who can be drawn, and what a coordinator that sees sums can do.

use super::Facts;
use crate::error::ConfigError;
use crate::recipe::{FederatedCombine, FederatedMethod, OptimName};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if !facts.recipe.is_federated() || !facts.sound(&["sync.mode"]) {
        return Vec::new();
    }
    let rules = [
        enough_clients,
        clients_share_the_batch,
        steps_are_plain,
        enough_are_honest,
        noise_has_a_scale,
        sums_are_all_there_is,
        batches_stay,
        clients_have_samples,
    ];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// Nobody is drawn twice, and every worker but the coordinator is somebody's home.
fn enough_clients(facts: &Facts<'_>) -> Option<ConfigError> {
    let federated = &facts.recipe.federated;
    let (clients, homes) = (federated.clients, facts.recipe.run.workers.saturating_sub(1));
    if federated.sampled > clients {
        let involved = ["federated.sampled", "federated.clients"];
        let rule = format!("draws more clients than federated.clients = {clients}");
        return facts
            .sound(&involved)
            .then(|| facts.error(&involved, rule, format!("try {clients}")));
    }
    let involved = ["run.workers", "federated.clients"];
    if homes > clients && facts.sound(&involved) {
        let rule = format!("gives {homes} workers a home of federated.clients = {clients}");
        return Some(facts.error(&involved, rule, format!("try {}", clients + 1)));
    }
    None
}

/// Every client of a round has as many whole micro-batches.
fn clients_share_the_batch(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["train.batch", "federated.sampled", "train.microbatch"];
    let (train, sampled) = (&facts.recipe.train, facts.recipe.federated.sampled);
    let unit = sampled * train.microbatch_size;
    if unit == 0 || !facts.sound(&involved) || train.batch.is_multiple_of(unit) {
        return None;
    }
    let rule = format!(
        "is not a multiple of federated.sampled = {sampled} times train.microbatch = {}",
        train.microbatch_size
    );
    Some(facts.error(&involved, rule, format!("try {}", train.batch.next_multiple_of(unit))))
}

/// Control variates correct gradients, and know the steps of plain SGD only.
fn steps_are_plain(facts: &Facts<'_>) -> Option<ConfigError> {
    let is_scaffold = facts.recipe.federated.method == FederatedMethod::Scaffold;
    if !is_scaffold || facts.recipe.optim.name == OptimName::Sgd {
        return None;
    }
    let why = "corrects steps that are gradients times the learning rate";
    facts.needs(["federated.method", "optim.name"], "\"sgd\"", "fedavg", why)
}

/// Robust rules bear a minority.
fn enough_are_honest(facts: &Facts<'_>) -> Option<ConfigError> {
    let federated = &facts.recipe.federated;
    let (sampled, liars) = (federated.sampled, federated.liars);
    let most = match federated.combine {
        FederatedCombine::Mean | FederatedCombine::Median => return None,
        FederatedCombine::TrimmedMean => sampled.saturating_sub(1) / 2,
        FederatedCombine::Krum => sampled.saturating_sub(3) / 2,
    };
    let involved = ["federated.liars", "federated.sampled", "federated.combine"];
    if liars <= most || !facts.sound(&involved) {
        return None;
    }
    let rule = format!(
        "is more than \"{}\" of federated.sampled = {sampled} changes can bear",
        federated.combine
    );
    Some(facts.error(&involved, rule, format!("try {most}")))
}

/// Noise hides what is no longer than a known length.
fn noise_has_a_scale(facts: &Facts<'_>) -> Option<ConfigError> {
    let federated = &facts.recipe.federated;
    let involved = ["federated.noise", "federated.clip"];
    if federated.noise == 0.0 || federated.clip > 0.0 || !facts.sound(&involved) {
        return None;
    }
    let rule = "is in units of federated.clip, which is 0".to_owned();
    Some(facts.error(&involved, rule, "try federated.clip = 1.0".to_owned()))
}

/// Of hidden changes there is nothing but a sum.
fn sums_are_all_there_is(facts: &Facts<'_>) -> Option<ConfigError> {
    let federated = &facts.recipe.federated;
    if !federated.secure {
        return None;
    }
    let why = "hides all but the sum of a round's changes";
    let needs = |key, better| facts.needs(["federated.secure", key], better, "false", why);
    if federated.combine != FederatedCombine::Mean {
        return needs("federated.combine", "\"mean\"");
    }
    if federated.late > 0.0 {
        return needs("federated.late", "0.0");
    }
    None
}

/// A round's clients are drawn for one size of batch.
fn batches_stay(facts: &Facts<'_>) -> Option<ConfigError> {
    if facts.recipe.train.batch_schedule.is_empty() {
        return None;
    }
    let why = "divides the same batch among clients in every step";
    facts.needs(["sync.mode", "train.batch_schedule"], "[]", "all-reduce", why)
}

/// A client learns from samples that others do not.
fn clients_have_samples(facts: &Facts<'_>) -> Option<ConfigError> {
    if facts.recipe.has_parts() {
        return None;
    }
    let why = "has clients that keep their own samples";
    facts.needs(["sync.mode", "sync.partition"], "\"iid\"", "all-reduce", why)
}
