//! Rules about workers that may lie: whose words can be compared, and how many can be borne.

use super::Facts;
use crate::error::ConfigError;
use crate::recipe::{Consistency, FederatedCombine, GraphName, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if !facts.sound(&["sync.mode"]) || !facts.recipe.sync.is_guarded() {
        return Vec::new();
    }
    let rules: &[fn(&Facts<'_>) -> Option<ConfigError>] = match facts.recipe.sync.mode {
        SyncMode::Gossip => &[edges_go_both_ways, enough_are_honest],
        SyncMode::ParameterServer => &[gradients_meet],
        SyncMode::AllReduce | SyncMode::LocalSgd | SyncMode::Federated | SyncMode::Hogwild => &[],
    };
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// What goes one way comes with a correction, which a lie would spoil too.
fn edges_go_both_ways(facts: &Facts<'_>) -> Option<ConfigError> {
    let graph = facts.recipe.sync.gossip.graph;
    let involved = ["sync.graph", "sync.combine", "sync.byzantine"];
    (graph.is_directed() && facts.sound(&involved)).then(|| {
        let rule = "goes one way, where what is heard cannot be compared".to_owned();
        facts.error(&involved, rule, format!("try \"{}\"", GraphName::Exponential))
    })
}

/// A server has nothing to compare where gradients come one by one.
fn gradients_meet(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.combine", "sync.byzantine", "sync.consistency"];
    let consistency = facts.recipe.sync.server.consistency;
    let is_alone = matches!(consistency, Consistency::Async | Consistency::Bounded);
    (is_alone && facts.sound(&involved)).then(|| {
        let rule = "compares the gradients of a step, which come together".to_owned();
        facts.error(&involved, rule, "try sync.consistency = \"sync\"".to_owned())
    })
}

/// Robust rules bear a minority of those that are combined, of whom there are at most all workers.
fn enough_are_honest(facts: &Facts<'_>) -> Option<ConfigError> {
    let (sync, workers) = (&facts.recipe.sync, facts.recipe.run.workers);
    let most = match sync.server.combine {
        FederatedCombine::Mean | FederatedCombine::Median => return None,
        FederatedCombine::TrimmedMean => workers.saturating_sub(1) / 2,
        FederatedCombine::Krum => workers.saturating_sub(3) / 2,
    };
    let involved = ["sync.liars", "run.workers", "sync.combine"];
    if sync.server.liars <= most || !facts.sound(&involved) {
        return None;
    }
    let combine = sync.server.combine;
    let rule = format!("is more than \"{combine}\" of run.workers = {workers} can bear");
    Some(facts.error(&involved, rule, format!("try {most}")))
}
