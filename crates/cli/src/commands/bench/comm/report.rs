//! Results of a measurement as JSON and text.

use super::plan::Plan;
use lockstep_bench::{Buffers, Case, Measurement};
use lockstep_config::units::Bytes;
use lockstep_schedule::Algorithm;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

/// One size of one operation. Field names are stable: scripts rely on them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) op: String,
    pub(super) ranks: usize,
    pub(super) bytes: usize,
    pub(super) dtype: String,
    pub(super) transport: String,
    /// The algorithm, also where the library selected it.
    pub(super) algorithm: String,
    pub(super) buffers: String,
    pub(super) median_us: f64,
    pub(super) p95_us: f64,
    pub(super) bus_bytes_per_second: f64,
    /// Time of the memory sweep over the time of the call.
    pub(super) limit_share: f64,
    pub(super) verified: bool,
    pub(super) min_us: f64,
    pub(super) p10_us: f64,
    pub(super) algorithm_bytes_per_second: f64,
    pub(super) limit_us: f64,
    /// The limit as bus bandwidth.
    pub(super) limit_bus_bytes_per_second: f64,
    /// Whether the algorithm reduces in canonical order.
    pub(super) canonical: bool,
    pub(super) samples: usize,
    /// Predicted time of the call.
    pub(super) predicted_us: Option<f64>,
    /// Predicted times of all algorithms, the selected one first.
    pub(super) candidates: Vec<Candidate>,
    /// Measured times of the other algorithms (`--select`).
    pub(super) forced: Vec<Candidate>,
    /// Measured links.
    pub(super) probe: Option<String>,
}

/// An algorithm and a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Candidate {
    pub(super) algorithm: String,
    pub(super) us: f64,
}

impl Row {
    pub(super) fn new(plan: &Plan, case: &Case, point: &Measurement) -> Self {
        let micros = |times: &[u64], percent: usize| {
            times[(times.len() * percent / 100).min(times.len() - 1)] as f64 / 1e3
        };
        let median_us = micros(&point.call_ns, 50);
        let limit_us = if case.bytes > 0 { micros(&point.sweep_ns, 50) } else { 0.0 };
        // A call shorter than a clock tick has no finite speed.
        let speed = |us: f64| if us > 0.0 { case.bytes as f64 / (us * 1e-6) } else { 0.0 };
        let bus_factor = case.collective.bus_factor(plan.num_ranks);
        let candidate =
            |algorithm: &Algorithm, us| Candidate { algorithm: algorithm.to_string(), us };
        let forecasts = point.forecasts.iter();
        let candidates: Vec<Candidate> =
            forecasts.map(|each| candidate(&each.algorithm, each.seconds.0 * 1e6)).collect();
        let forced =
            |(algorithm, times): &(Algorithm, Vec<u64>)| candidate(algorithm, micros(times, 50));
        Self {
            op: case.collective.name().to_owned(),
            ranks: plan.num_ranks,
            bytes: case.bytes,
            dtype: case.dtype.to_string(),
            transport: plan.transport.name().to_owned(),
            algorithm: point.algorithm.to_string(),
            buffers: buffers_name(case.buffers).to_owned(),
            median_us,
            p95_us: micros(&point.call_ns, 95),
            bus_bytes_per_second: bus_factor * speed(median_us),
            limit_share: if median_us > 0.0 { limit_us / median_us } else { 0.0 },
            verified: point.is_correct,
            min_us: micros(&point.call_ns, 0),
            p10_us: micros(&point.call_ns, 10),
            algorithm_bytes_per_second: speed(median_us),
            limit_us,
            limit_bus_bytes_per_second: bus_factor * speed(limit_us),
            canonical: point.is_canonical,
            samples: point.call_ns.len(),
            predicted_us: candidates.first().map(|first| first.us),
            candidates,
            forced: point.by_algorithm.iter().map(forced).collect(),
            probe: None,
        }
    }
}

pub(super) const fn buffers_name(buffers: Buffers) -> &'static str {
    match buffers {
        Buffers::Arena => "arena",
        Buffers::Private => "private",
    }
}

/// Ranks, transport, type and buffers of all rows.
pub(super) fn heading(row: &Row) -> String {
    let Row { ranks, transport, dtype, buffers, .. } = row;
    let s = if *ranks == 1 { "" } else { "s" };
    format!("{ranks} rank{s} over {transport}, {dtype}, {buffers} buffers, fresh data")
}

/// The rows as a table.
pub(super) fn table(plan: &Plan, rows: &[Row]) -> String {
    let mut text = String::new();
    if let Some(row) = rows.first() {
        let _ = writeln!(text, "{}\n", heading(row));
    }
    let _ = writeln!(
        text,
        "{:<14} {:>9} {:<14} {:>10} {:>10} {:>10} {:>9} {:>9} {:>10} {:>8} verified",
        "op",
        "size",
        "algorithm",
        "predicted",
        "median us",
        "p95 us",
        "alg GB/s",
        "bus GB/s",
        "limit us",
        "of limit"
    );
    for row in rows {
        let gigabytes = |speed: f64| speed / 1e9;
        let _ = writeln!(
            text,
            "{:<14} {:>9} {:<14} {:>10.2} {:>10.2} {:>10.2} {:>9.2} {:>9.2} {:>10.2} {:>6.0} % {}",
            row.op,
            Bytes(row.bytes as u64).to_string(),
            row.algorithm,
            row.predicted_us.unwrap_or(0.0),
            row.median_us,
            row.p95_us,
            gigabytes(row.algorithm_bytes_per_second),
            gigabytes(row.bus_bytes_per_second),
            row.limit_us,
            100.0 * row.limit_share,
            if row.verified { "yes" } else { "NO" },
        );
    }
    let max_cores = "more ranks than cores: they share cores, so times do not transfer to a \
                     machine with a core per rank";
    if !plan.has_cores {
        let _ = writeln!(text, "\n{max_cores}");
    }
    text
}

/// Progress on standard error.
pub(super) struct Progress<'a> {
    plan: &'a Plan,
    is_shown: bool,
    is_terminal: bool,
}

impl<'a> Progress<'a> {
    /// Starts printing; with `--json` only on a terminal.
    pub(super) fn new(plan: &'a Plan, is_json: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let progress = Self { plan, is_shown: is_terminal || !is_json, is_terminal };
        progress.show(0);
        progress
    }

    /// Prints the case after `num_done` rows.
    pub(super) fn show(&self, num_done: usize) {
        let Some(case) = self.plan.cases.get(num_done).filter(|_| self.is_shown) else { return };
        let number = num_done + 1;
        let total = self.plan.cases.len();
        let size = Bytes(case.bytes as u64);
        let text = format!("measuring {number} of {total}: {} of {size}", case.collective);
        let mut stderr = std::io::stderr();
        // A closed standard error is not a failure of the command.
        let _ = if self.is_terminal {
            write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{text}")
        };
    }

    /// Clears the line.
    pub(super) fn end(&self) {
        if self.is_shown && self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
