//! Measurements of a step beside its loss: missing workers, drift, compression.

use super::StepLog;
use crate::stragglers::Participation;
use lockstep_comm::Comm;
use lockstep_parallel::compress::CompressionStats;
use lockstep_parallel::measurements::RoundSummary;
use lockstep_parallel::{Drift, Measurements};
use lockstep_telemetry::Event;

impl StepLog {
    /// Records the bytes that this rank sent in a step, its memory, and the speed of the run.
    pub(super) fn record_resources(
        &mut self,
        step: u64,
        [data_bytes, pipeline_bytes, tensor_bytes, strategy_bytes]: [u64; 4],
        tokens_per_second: f64,
    ) {
        let flops = self.utilization.flops_per_token * tokens_per_second;
        self.telemetry.record(&Event::Resources {
            step,
            data_bytes,
            pipeline_bytes,
            tensor_bytes,
            strategy_bytes,
            resident_bytes: self.world.host().current_rss_bytes(),
            model_flops_per_second: Some(flops).filter(|flops| *flops > 0.0),
            mfu: self.utilization.mfu(tokens_per_second),
        });
    }

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

    /// Records the compression of a step's gradients.
    fn record_compression(&mut self, step: u64, observed: Option<CompressionStats>) {
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
