//! Figures of synchronization strategies in the summary of a run.

use crate::parameter_server::{RowFigures, ServerFigures};
use crate::replica::Replica;
use lockstep_config::Recipe;
use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of asynchronous and decentralized strategies; null for the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StrategyFigures {
    /// Spectral gap of the mixing matrix.
    pub spectral_gap: Option<f64>,
    /// Mean squared distance of the workers' weights from their mean, at the end.
    pub consensus_distance: Option<f64>,
    /// Privacy budget epsilon that the noise of clients' updates has spent.
    pub epsilon: Option<f64>,
    /// Failure probability delta for which epsilon holds.
    pub delta: Option<f64>,
    /// Staleness histogram of each rank: number of applied gradients by missed updates.
    pub staleness_by_rank: Option<Vec<BTreeMap<u64, u64>>>,
    /// Traffic of sparse embedding rows.
    #[serde(flatten)]
    pub rows: RowFigures,
    /// Number of servers.
    pub servers: usize,
    /// Counters of the servers.
    #[serde(flatten)]
    pub served: ServerFigures,
}

impl StrategyFigures {
    /// Figures of a worker's replica at the end of a run that has spent `epsilon`.
    pub fn of(recipe: &Recipe, replica: &Replica, epsilon: Option<f64>) -> Self {
        Self {
            spectral_gap: replica.topology().map(|topology| topology.spectral_gap),
            consensus_distance: replica.consensus().map(|found| found.mean),
            epsilon,
            delta: epsilon.map(|_| recipe.federated.delta),
            servers: recipe.num_servers(),
            ..Self::default()
        }
    }

    /// Largest staleness of any gradient.
    pub fn staleness_max(&self) -> u64 {
        let keys = self.staleness_by_rank.iter().flatten().flat_map(BTreeMap::keys);
        keys.copied().max().unwrap_or(0)
    }
}
