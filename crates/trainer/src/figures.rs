//! Figures that the step log collects and the summary reports.

use serde::Serialize;

/// Memory that the engine allocated on a rank, by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct AccountedBytes {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    pub buffers: u64,
    pub corpus: u64,
}

/// Figures of every rank.
#[derive(Clone, Debug, Default)]
pub struct FiguresByRank {
    /// Peak resident set size.
    pub peak_rss_bytes: Vec<u64>,
    /// Peak of the buffers on the accelerator; 0 without one.
    pub device_bytes: Vec<u64>,
    /// Bytes of gradients and parameters sent per step.
    pub wire_bytes: Vec<u64>,
    /// Bytes sent in all steps.
    pub total_wire_bytes: Vec<u64>,
    /// Proportional set size after the last step.
    pub proportional_rss_bytes: Vec<u64>,
    /// Memory that the engine allocated, by use.
    pub accounted: Vec<AccountedBytes>,
    /// Quartiles of the time of a micro-batch.
    pub microbatch_seconds: Vec<[f64; 3]>,
    /// Median time per step of the wait for later ranks.
    pub straggler_wait_seconds: Vec<f64>,
    /// Quartiles of the time of a step in forward and backward passes.
    pub compute_seconds: Vec<[f64; 3]>,
    /// Median exposed communication of a step.
    pub exposed_seconds: Vec<f64>,
    /// Median wait of a step for data.
    pub data_wait_seconds: Vec<f64>,
}

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

/// Counters of the servers at the last synchronization.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerCounters {
    /// Pushes acknowledged to workers, by server and worker.
    pub acknowledged: Vec<Vec<u64>>,
    /// Gradients that changed parameters, by server and worker.
    pub applied: Vec<Vec<u64>>,
    /// Gradients that changed nothing, by server and worker.
    pub discarded: Vec<Vec<u64>>,
    /// Skipped steps, by server and worker.
    pub skipped: Vec<Vec<u64>>,
    /// Ranks of lost servers.
    pub lost: Vec<usize>,
    /// Step from which an asynchronous run became synchronous.
    pub switch: Option<u64>,
    /// Latency of pulls (p50, p99) and of pushes (p50, p99).
    pub request_seconds: Option<[f64; 4]>,
}

/// Median (the upper one of an even count); NaN of an empty list.
pub(crate) fn median(values: &[f64]) -> f64 {
    quartiles(values)[1]
}

/// First quartile, median and third quartile; NaN of an empty list.
pub(crate) fn quartiles(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| sorted.get(quarter * sorted.len() / 4).copied().unwrap_or(f64::NAN))
}
