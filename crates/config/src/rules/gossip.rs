//! Rules about gossip averaging.

use super::RuleContext;
use crate::error::ConfigError;
use crate::recipe::{GraphName, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if context.recipe.sync.mode != SyncMode::Gossip || !context.all_valid(&["sync.mode"]) {
        return Vec::new();
    }
    [graph_exists, replicas_are_not_compared].iter().filter_map(|rule| rule(context)).collect()
}

/// A random regular graph has an even number of edge ends and is connected.
fn graph_exists(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.degree", "run.workers", "sync.graph"];
    let (gossip, workers) = (&context.recipe.sync.gossip, context.recipe.run.workers);
    let suits = |degree: usize| match gossip.graph {
        GraphName::RandomRegular => {
            let is_connected = degree >= 2 || workers <= 2;
            degree < workers && is_connected && (degree * workers).is_multiple_of(2)
        }
        GraphName::RandomDirected => degree < workers,
        _ => true,
    };
    // One worker has no neighbours, whatever the degree.
    if !context.all_valid(&involved) || workers == 1 || suits(gossip.degree) {
        return None;
    }
    let better = (1..workers).rev().filter(|degree| suits(*degree));
    let nearest = better.min_by_key(|degree| degree.abs_diff(gossip.degree)).unwrap_or(1);
    let rule =
        format!("gives no connected {} graph of run.workers = {workers}", gossip.graph.name());
    Some(context.error(&involved, rule, format!("try {nearest}")))
}

/// Gossip replicas differ by design, so comparing them would fail.
fn replicas_are_not_compared(context: &RuleContext<'_>) -> Option<ConfigError> {
    if context.recipe.run.check_replicas_every == 0 {
        return None;
    }
    let names = ["sync.mode", "run.check_replicas_every"];
    context.incompatible(names, "0", "all-reduce", "keeps different weights on every worker")
}
