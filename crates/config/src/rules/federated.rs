//! Rules about federated learning: sampling, client batches, privacy and secure aggregation.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::{AggregationRule, FederatedMethod, OptimName};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if !context.recipe.is_federated() || !context.all_valid(&["sync.mode"]) {
        return Vec::new();
    }
    let rules = [
        enough_clients,
        clients_divide_the_batch,
        scaffold_uses_sgd,
        byzantine_are_a_minority,
        noise_has_a_clipping_norm,
        secure_aggregation_sums,
        batch_is_constant,
        clients_have_samples,
    ];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// Clients are sampled without replacement, and every worker but the coordinator hosts a client.
fn enough_clients(context: &RuleContext<'_>) -> Option<ConfigError> {
    let federated = &context.recipe.federated;
    let (clients, hosts) = (federated.clients, context.recipe.run.workers.saturating_sub(1));
    if federated.sampled > clients {
        let involved = ["federated.sampled", "federated.clients"];
        let rule = format!("is more than federated.clients = {clients}");
        return context
            .all_valid(&involved)
            .then(|| context.error(&involved, rule, format!("try {clients}")));
    }
    let involved = ["run.workers", "federated.clients"];
    if hosts > clients && context.all_valid(&involved) {
        let rule = format!("makes {hosts} hosts for federated.clients = {clients}");
        return Some(context.error(&involved, rule, format!("try {}", clients + 1)));
    }
    None
}

/// The clients of a round have equal numbers of whole micro-batches.
fn clients_divide_the_batch(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["train.batch", "federated.sampled", "train.microbatch"];
    let (train, sampled) = (&context.recipe.train, context.recipe.federated.sampled);
    let unit = sampled * train.microbatch_size;
    if unit == 0 || !context.all_valid(&involved) || train.batch.is_multiple_of(unit) {
        return None;
    }
    let rule = format!(
        "is not a multiple of federated.sampled = {sampled} times train.microbatch = {}",
        train.microbatch_size
    );
    Some(context.error(&involved, rule, format!("try {}", train.batch.next_multiple_of(unit))))
}

/// SCAFFOLD derives its control variates from plain SGD steps.
fn scaffold_uses_sgd(context: &RuleContext<'_>) -> Option<ConfigError> {
    let is_scaffold = context.recipe.federated.method == FederatedMethod::Scaffold;
    if !is_scaffold || context.recipe.optim.name == OptimName::Sgd {
        return None;
    }
    let why = "computes control variates from plain SGD steps";
    context.incompatible(["federated.method", "optim.name"], "\"sgd\"", "fedavg", why)
}

/// Robust aggregation tolerates a minority of Byzantine clients.
fn byzantine_are_a_minority(context: &RuleContext<'_>) -> Option<ConfigError> {
    let federated = &context.recipe.federated;
    let (sampled, assumed) = (federated.sampled, federated.assumed_byzantine);
    let most = match federated.aggregation {
        AggregationRule::Mean | AggregationRule::Median => return None,
        AggregationRule::TrimmedMean => sampled.saturating_sub(1) / 2,
        AggregationRule::Krum => sampled.saturating_sub(3) / 2,
    };
    let involved = ["federated.assumed_byzantine", "federated.sampled", "federated.aggregation"];
    if assumed <= most || !context.all_valid(&involved) {
        return None;
    }
    let rule = format!(
        "is more than \"{}\" tolerates with federated.sampled = {sampled}",
        federated.aggregation
    );
    Some(context.error(&involved, rule, format!("try {most}")))
}

/// The noise is scaled by the clipping norm.
fn noise_has_a_clipping_norm(context: &RuleContext<'_>) -> Option<ConfigError> {
    let federated = &context.recipe.federated;
    let involved = ["federated.noise_multiplier", "federated.clip"];
    if federated.noise_multiplier == 0.0 || federated.clip > 0.0 || !context.all_valid(&involved) {
        return None;
    }
    let rule = "is in units of federated.clip, which is 0".to_owned();
    Some(context.error(&involved, rule, "try federated.clip = 1.0".to_owned()))
}

/// Secure aggregation reveals only the sum of a round's updates.
fn secure_aggregation_sums(context: &RuleContext<'_>) -> Option<ConfigError> {
    let federated = &context.recipe.federated;
    if !federated.secure_aggregation {
        return None;
    }
    let why = "reveals only the sum of a round's updates";
    let incompatible = |key, better| {
        context.incompatible(["federated.secure_aggregation", key], better, "false", why)
    };
    if federated.aggregation != AggregationRule::Mean {
        return incompatible("federated.aggregation", "\"mean\"");
    }
    if federated.late_fraction > 0.0 {
        return incompatible("federated.late_fraction", "0.0");
    }
    None
}

/// The batch is divided among the sampled clients, so its size is constant.
fn batch_is_constant(context: &RuleContext<'_>) -> Option<ConfigError> {
    if context.recipe.train.batch_schedule.is_empty() {
        return None;
    }
    let why = "divides a constant batch among clients";
    context.incompatible(["sync.mode", "train.batch_schedule"], "[]", "all-reduce", why)
}

/// Every client has samples of its own.
fn clients_have_samples(context: &RuleContext<'_>) -> Option<ConfigError> {
    if context.recipe.is_partitioned() {
        return None;
    }
    let why = "needs a partition of the samples over clients";
    context.incompatible(["sync.mode", "sync.partition"], "\"iid\"", "all-reduce", why)
}
