//! Cost of a run: days, dollars, energy, and the share lost to checkpoints and failures.
//!
//! Nodes fail at a constant rate. A run that checkpoints every τ loses τ/2 and a restart with each
//! failure. The best τ: [`lockstep_config::interval`] (Young 1974, Daly 2006).

use crate::hardware::Cluster;
use crate::model::Model;
use lockstep_config::interval::daly;
use serde::Serialize;

/// Checkpoint bytes per parameter: weight, master weight, two Adam moments.
const CHECKPOINT_BYTES: f64 = 14.0;
/// Effective share of the time below which a run never finishes.
const MIN_SHARE: f64 = 1e-2;
/// Seconds from a failure to the first step after it.
pub const RESTART: f64 = 600.0;

/// Cost of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bill {
    /// Days without failures.
    pub days_undisturbed: f64,
    /// Days with checkpoints, failures and restarts.
    pub days: f64,
    /// Device hours.
    pub device_hours: f64,
    /// Rent of the devices.
    pub dollars: f64,
    /// Energy in megawatt-hours.
    pub megawatt_hours: f64,
    /// Price of the energy; the rent already includes it.
    pub energy_dollars: f64,
    /// Expected number of failures.
    pub failures: f64,
    /// Mean time between failures in hours.
    pub hours_between_failures: f64,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: f64,
    /// Seconds to write a checkpoint.
    pub checkpoint_seconds: f64,
    /// Checkpoint interval in seconds (Daly 2006).
    pub checkpoint_interval_seconds: f64,
    /// Share of the time spent training.
    pub effective_share: f64,
}

/// Share of the time spent training: (1 - failures·(restart + τ/2)) / (1 + cost/τ).
pub fn effective_share(cost: f64, interval: f64, mtbf: f64, restart: f64) -> f64 {
    ((1.0 - (restart + interval / 2.0) / mtbf) / (1.0 + cost / interval)).clamp(0.0, 1.0)
}

impl Bill {
    /// Whether failures leave next to no time to train, so that days and dollars are meaningless.
    pub fn never_ends(&self) -> bool {
        self.effective_share <= MIN_SHARE
    }
}

/// Cost of training on `tokens` tokens when a step of `step_tokens` takes `step_seconds`.
pub fn bill(
    model: &Model,
    cluster: &Cluster,
    tokens: f64,
    step_tokens: f64,
    step_seconds: f64,
) -> Bill {
    let seconds = tokens / step_tokens * step_seconds;
    let day = 86_400.0;
    let mtbf = day / (cluster.failures_per_node_day * cluster.nodes() as f64);
    let checkpoint_bytes = CHECKPOINT_BYTES * model.num_params() as f64;
    let cost = checkpoint_bytes / (cluster.storage_gbps * 1e9);
    let interval = daly(cost, mtbf).max(step_seconds);
    let share = effective_share(cost, interval, mtbf, RESTART);
    let with_failures = seconds / share.max(MIN_SHARE);
    let device_hours = with_failures / 3600.0 * cluster.devices as f64;
    let megawatt_hours = device_hours * cluster.watts_per_device / 1e6;
    Bill {
        days_undisturbed: seconds / day,
        days: with_failures / day,
        device_hours,
        dollars: device_hours * cluster.dollars_per_device_hour,
        megawatt_hours,
        energy_dollars: 1e3 * megawatt_hours * cluster.dollars_per_kwh,
        failures: with_failures / mtbf,
        hours_between_failures: mtbf / 3600.0,
        checkpoint_bytes,
        checkpoint_seconds: cost,
        checkpoint_interval_seconds: interval,
        effective_share: share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use crate::search::search;

    #[test]
    fn llama_65b_trains_on_1_4_trillion_tokens_in_about_three_weeks() {
        // Touvron et al. 2023: 2,048 A100 of 80 GB, batches of 4M tokens, about 21 days.
        let scenario = Scenario::of("llama-65b", "2048xa100-80gb", 2048);
        let found = search(&scenario.workload(), 1);
        let best = found.best.first().expect("it fits");
        let (model, cluster) = (&scenario.model, &scenario.cluster);
        let costs = bill(model, cluster, 1.4e12, 4_194_304.0, best.step.seconds);
        assert!((costs.days / 21.0 - 1.0).abs() < 0.15, "{} days", costs.days);
    }

    #[test]
    fn llama_3_405b_trains_more_than_nine_tenths_of_the_time() {
        // Llama 3 (2024): 419 unexpected interruptions on 16,384 GPUs in 54 days, one in 186
        // minutes.
        let Scenario { model, cluster, .. } = Scenario::of("llama3-405b", "16384xh100-80gb", 1);
        let bill = bill(&model, &cluster, 15.6e12, 16e6, 5.0);
        assert!((bill.hours_between_failures * 60.0 / 186.0 - 1.0).abs() < 0.02);
        assert!(bill.effective_share > 0.9, "{}", bill.effective_share);
    }
}
