//! Figures of parameter servers in the summary of a run.

use serde::Serialize;

/// Sparse embedding rows over all workers; null without sparse rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RowFigures {
    /// Number of rows pulled.
    pub rows_pulled: Option<u64>,
    /// Number of row gradients pushed.
    pub rows_pushed: Option<u64>,
    /// Number of rows taken from the worker's row cache.
    pub rows_cached: Option<u64>,
    /// Number of rows read from a replica on another server.
    pub rows_replicated: Option<u64>,
    /// Largest number of updates that a cached or replicated row had missed.
    pub row_age_max: Option<u64>,
    /// Number of row requests to each server.
    pub row_requests_by_server: Option<Vec<u64>>,
    /// Bytes of rows and row indices, to and from each server.
    pub row_bytes_by_server: Option<Vec<u64>>,
    /// Maximum of these bytes over their mean.
    pub row_imbalance: Option<f64>,
}

/// Counters of the servers in this process at the last synchronization; null without servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServerFigures {
    /// Pushes acknowledged to workers, by server and worker.
    pub acknowledged_by_server: Option<Vec<Vec<u64>>>,
    /// Gradients that changed parameters, by server and worker, as counted by the surviving
    /// servers.
    pub applied_by_server: Option<Vec<Vec<u64>>>,
    /// Gradients that changed nothing, since they were too stale, too late, or of a synchronous
    /// step that another worker skipped: by server and worker.
    pub discarded_by_server: Option<Vec<Vec<u64>>>,
    /// Steps that workers skipped, by server and worker.
    pub skipped_by_server: Option<Vec<Vec<u64>>>,
    /// Lost servers that a replica replaced.
    pub servers_lost: Option<Vec<usize>>,
    /// Step from which an asynchronous run became synchronous.
    pub synchronous_from_step: Option<u64>,
    /// Median latency of pulls.
    pub pull_seconds_p50: Option<f64>,
    /// 99th percentile of pull latency.
    pub pull_seconds_p99: Option<f64>,
    /// Median latency of pushes.
    pub push_seconds_p50: Option<f64>,
    /// 99th percentile of push latency.
    pub push_seconds_p99: Option<f64>,
}

impl ServerFigures {
    /// Counters of servers that nothing was pushed to.
    pub(super) fn unused() -> Self {
        let none = || Some(Vec::new());
        Self {
            acknowledged_by_server: none(),
            applied_by_server: none(),
            discarded_by_server: none(),
            skipped_by_server: none(),
            servers_lost: Some(Vec::new()),
            ..Self::default()
        }
    }
}
