//! The rest of the bill: days, dollars, energy, failures and what they cost.
//!
//! Failures come at a rate per node; a run that is checkpointed every τ loses τ/2 and a restart
//! with each. How often is best: [`lockstep_config::interval`].

use crate::hardware::Cluster;
use crate::model::Model;
use lockstep_config::interval::daly;
use serde::Serialize;

/// Bytes of a checkpoint for each parameter: weight, master copy, two moments.
const CHECKPOINT: f64 = 14.0;
/// Shares of the time that trains below which a run does not end.
const LEAST_SHARE: f64 = 1e-2;
/// Seconds from a failure to the first step after it.
pub const RESTART: f64 = 600.0;

/// What a run costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bill {
    /// Days without failures.
    pub days_undisturbed: f64,
    /// Days with checkpoints, failures and restarts.
    pub days: f64,
    /// Device hours.
    pub device_hours: f64,
    /// Rent of devices.
    pub dollars: f64,
    /// Megawatt-hours.
    pub megawatt_hours: f64,
    /// What they cost; rent has it in it already.
    pub energy_dollars: f64,
    /// Failures to expect.
    pub failures: f64,
    /// Mean hours between them.
    pub hours_between_failures: f64,
    /// Bytes of a checkpoint.
    pub checkpoint_bytes: f64,
    /// Seconds to write one.
    pub checkpoint_seconds: f64,
    /// Seconds between checkpoints (Daly).
    pub checkpoint_interval_seconds: f64,
    /// Share of the time that trains.
    pub effective_share: f64,
}

/// Share of the time that trains: (1 - failures·(restart + τ/2)) / (1 + cost/τ).
pub fn effective_share(cost: f64, interval: f64, mtbf: f64, restart: f64) -> f64 {
    ((1.0 - (restart + interval / 2.0) / mtbf) / (1.0 + cost / interval)).clamp(0.0, 1.0)
}

impl Bill {
    /// Whether failures leave next to no time to train, so that days and dollars say nothing.
    pub fn never_ends(&self) -> bool {
        self.effective_share <= LEAST_SHARE
    }
}

/// What training on so many tokens costs where a step of `step_tokens` takes `step_seconds`.
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
    let checkpoint_bytes = CHECKPOINT * model.num_params() as f64;
    let cost = checkpoint_bytes / (cluster.storage_gbps * 1e9);
    let interval = daly(cost, mtbf).max(step_seconds);
    let share = effective_share(cost, interval, mtbf, RESTART);
    let disturbed = seconds / share.max(LEAST_SHARE);
    let device_hours = disturbed / 3600.0 * cluster.devices as f64;
    let megawatt_hours = device_hours * cluster.watts_per_device / 1e6;
    Bill {
        days_undisturbed: seconds / day,
        days: disturbed / day,
        device_hours,
        dollars: device_hours * cluster.dollars_per_device_hour,
        megawatt_hours,
        energy_dollars: 1e3 * megawatt_hours * cluster.dollars_per_kwh,
        failures: disturbed / mtbf,
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
    use crate::Calibration;
    use crate::hardware::named;
    use crate::layout::Habits;
    use crate::model::preset;
    use crate::search::{Question, search};

    #[test]
    fn llama_65b_trains_on_1_4_trillion_tokens_in_about_three_weeks() {
        // A lecture: 2,048 A100 with 80 GB, batches of 4M tokens, 21 days.
        let cluster = named("2048xa100-80gb").expect("a cluster");
        let model = preset("llama-65b").expect("it is one");
        let calibration = Calibration::of("a100").expect("it is there");
        let habits = Habits::MODERN;
        let question = Question {
            model: &model,
            cluster: &cluster,
            batch: 2048,
            habits,
            calibration: &calibration,
        };
        let found = search(&question, 1);
        let best = found.best.first().expect("it fits");
        let costs = bill(&model, &cluster, 1.4e12, 4_194_304.0, best.step.seconds);
        assert!((costs.days / 21.0 - 1.0).abs() < 0.15, "{} days", costs.days);
    }

    #[test]
    fn llama_3s_herd_trains_more_than_nine_tenths_of_its_time() {
        // 419 unexpected interruptions of 16,384 devices in 54 days: one in 186 minutes.
        let cluster = named("16384xh100-80gb").expect("a cluster");
        let model = preset("llama3-405b").expect("it is one");
        let bill = bill(&model, &cluster, 15.6e12, 16e6, 5.0);
        assert!((bill.hours_between_failures * 60.0 / 186.0 - 1.0).abs() < 0.02);
        assert!(bill.effective_share > 0.9, "{}", bill.effective_share);
    }
}
