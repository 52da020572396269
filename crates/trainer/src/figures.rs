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
