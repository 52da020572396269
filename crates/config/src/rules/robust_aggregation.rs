//! Rules about Byzantine-robust aggregation.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::{AggregationRule, Consistency, GraphName, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if !context.all_valid(&["sync.mode"]) || !context.recipe.sync.has_byzantine_settings() {
        return Vec::new();
    }
    let rules: &[fn(&RuleContext<'_>) -> Option<ConfigError>] = match context.recipe.sync.mode {
        SyncMode::Gossip => &[graph_is_undirected, byzantine_are_a_minority],
        SyncMode::ParameterServer => &[gradients_are_aggregated],
        SyncMode::AllReduce | SyncMode::LocalSgd | SyncMode::Federated | SyncMode::Hogwild => &[],
    };
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// Push-sum weights of a directed graph cannot be aggregated robustly.
fn graph_is_undirected(context: &RuleContext<'_>) -> Option<ConfigError> {
    let graph = context.recipe.sync.gossip.graph;
    let involved = ["sync.graph", "sync.aggregation", "sync.byzantine"];
    (graph.is_directed() && context.all_valid(&involved)).then(|| {
        let rule = "is directed, which robust aggregation does not support".to_owned();
        context.error(&involved, rule, format!("try \"{}\"", GraphName::Exponential))
    })
}

/// Robust aggregation needs the gradients of several workers at once.
fn gradients_are_aggregated(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.aggregation", "sync.byzantine", "sync.consistency"];
    let consistency = context.recipe.sync.server.consistency;
    let is_single = matches!(consistency, Consistency::Async | Consistency::Bounded);
    (is_single && context.all_valid(&involved)).then(|| {
        let rule = "needs the gradients of several workers per update".to_owned();
        context.error(&involved, rule, "try sync.consistency = \"sync\"".to_owned())
    })
}

/// Robust aggregation tolerates a minority of Byzantine workers.
fn byzantine_are_a_minority(context: &RuleContext<'_>) -> Option<ConfigError> {
    let (sync, workers) = (&context.recipe.sync, context.recipe.run.workers);
    let most = match sync.server.aggregation {
        AggregationRule::Mean | AggregationRule::Median => return None,
        AggregationRule::TrimmedMean => workers.saturating_sub(1) / 2,
        AggregationRule::Krum => workers.saturating_sub(3) / 2,
    };
    let involved = ["sync.assumed_byzantine", "run.workers", "sync.aggregation"];
    if sync.server.assumed_byzantine <= most || !context.all_valid(&involved) {
        return None;
    }
    let rule_name = sync.server.aggregation;
    let rule = format!("is more than \"{rule_name}\" tolerates with run.workers = {workers}");
    Some(context.error(&involved, rule, format!("try {most}")))
}
