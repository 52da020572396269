//! Measurements of a step beside its loss: missing workers, drift, staleness, compression.

use super::StepLog;
use crate::stragglers::Participation;
use lockstep_comm::Comm;
use lockstep_parallel::compress::CompressionStats;
use lockstep_parallel::measurements::RoundSummary;
use lockstep_parallel::{Drift, Measurements};
use lockstep_telemetry::Event;
use std::collections::BTreeMap;

impl StepLog {
    /// Records workers whose gradients are missing in a step.
    pub fn record_participation(&mut self, step: u64, participation: &Participation) {
        let Participation { missing, notice, num_targets, division, .. } = participation;
        if let Some(leaves_by_worker) = division.clone() {
            self.telemetry.record(&Event::LeavesDivided { step, leaves_by_worker });
        }
        if !missing.is_empty() {
            let (missing, targets) = (missing.clone(), *num_targets);
            self.telemetry.record(&Event::WorkersMissing { step, missing, targets });
        }
        if let Some(message) = notice {
            self.telemetry.record(&Event::Warning { message: message.clone() });
        }
    }

    /// Records the links of a group whose ranks probed them.
    pub(crate) fn record_links(&mut self, comm: &Comm) {
        let (costs, _) = comm.costs();
        let num_ranks = costs.links.num_ranks();
        let pairs = (0..num_ranks).flat_map(|from| (0..num_ranks).map(move |to| (from, to)));
        let links = pairs.filter(|(from, to)| from != to);
        let links = links.filter_map(|(from, to)| costs.links.between(from, to));
        let slowest = links.map(|link| link.bandwidth.0).fold(f64::INFINITY, f64::min);
        if let Some(port) = costs.port.filter(|_| slowest.is_finite()) {
            self.telemetry.record(&Event::LinksMeasured {
                latency_seconds: costs.links.longest_latency().0,
                bytes_per_second: slowest,
                port_bytes_per_second: port.0,
            });
        }
    }

    /// Records what the synchronization strategy measured in a step.
    pub fn record_measurements(&mut self, step: u64, found: Measurements) {
        self.record_drift(step, found.drift);
        self.record_compression(step, found.compression);
        self.record_aggregation(step, found.aggregation);
    }

    /// Records the drift at the end of a round.
    fn record_drift(&mut self, step: u64, drift: Option<Drift>) {
        if let Some(Drift { mean, max, worker, moved }) = drift {
            self.telemetry.record(&Event::RoundFinished {
                step,
                drift: mean,
                drift_max: max,
                drift_max_rank: worker,
                update_norm_squared: moved,
            });
            if let Some(message) = self.stragglers.drift_warning(mean, moved) {
                self.telemetry.record(&Event::Warning { message });
            }
        }
    }

    /// Records the aggregation of clients' updates.
    fn record_aggregation(&mut self, step: u64, found: Option<RoundSummary>) {
        let Some(found) = found else { return };
        self.epsilon = found.epsilon.or(self.epsilon);
        self.telemetry.record(&Event::Aggregated {
            step,
            sampled: found.sampled,
            counted: found.counted,
            delayed: found.delayed,
            drift: found.drift,
            drift_max: found.drift_max.0,
            drift_max_client: found.drift_max.1,
            update_norm_squared: found.moved,
            epsilon: found.epsilon,
        });
    }

    /// Records the staleness histogram of each worker, over all steps so far.
    pub(crate) fn record_staleness(&mut self, step: u64, by_worker: Vec<BTreeMap<u64, u64>>) {
        for (worker, found) in by_worker.iter().enumerate() {
            let count = found.values().sum::<u64>().max(1) as f64;
            let sum: u64 = found.iter().map(|(staleness, count)| staleness * count).sum();
            self.telemetry.record(&Event::Staleness {
                step,
                worker,
                mean: sum as f64 / count,
                max: found.keys().last().copied().unwrap_or(0),
                counts: found.iter().map(|(staleness, count)| (*staleness, *count)).collect(),
            });
        }
        self.staleness = by_worker;
    }

    /// Records the compression of a step's gradients.
    pub fn record_compression(&mut self, step: u64, observed: Option<CompressionStats>) {
        if let Some(CompressionStats { delta, residual_norm, message_bytes, dense_bytes }) =
            observed
        {
            self.telemetry.record(&Event::Compressed {
                step,
                delta,
                residual_norm,
                message_bytes,
                dense_bytes,
            });
            if let Some(message) = self.stragglers.residual_warning(residual_norm) {
                self.telemetry.record(&Event::Warning { message });
            }
        }
    }
}
