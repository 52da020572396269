//! Upgrades: time and money with 50 % more of one resource, or 2x the devices.
//!
//! Every upgrade is re-planned with its own best layout, unless the scenario fixes one.

use crate::bill::Bill;
use crate::hardware::Cluster;
use crate::pipeline::Pipelines;
use crate::scenario::Scenario;
use crate::search::{Candidate, search};
use serde::Serialize;

/// The run with more of one resource.
#[derive(Debug, Serialize)]
pub struct Upgrade {
    /// The resource and how much more of it.
    pub what: &'static str,
    /// Seconds per step.
    pub step_seconds: f64,
    /// Days of the run.
    pub days: f64,
    /// Dollars of the run.
    pub dollars: f64,
    /// Share of the days that is saved.
    pub saves_share: f64,
    /// Share of the dollars that is saved.
    pub saves_dollars_share: f64,
}

/// Share of `old` that `new` saves.
fn saved(new: f64, old: f64) -> f64 {
    if old > 0.0 { 1.0 - new / old } else { 0.0 }
}

/// A resource and the change of a cluster that adds to it.
type More = (&'static str, fn(&mut Cluster));

const MORE: [More; 8] = [
    ("2x the devices", |cluster| cluster.devices *= 2),
    ("1.5x the network bandwidth", |cluster| cluster.network.device_gbps *= 1.5),
    ("1.5x the bandwidth inside nodes", |cluster| cluster.link_gbps *= 1.5),
    ("1.5x the device memory", |cluster| cluster.device.memory_gb *= 1.5),
    ("1.5x the device memory bandwidth", |cluster| cluster.device.memory_gbps *= 1.5),
    ("1.5x the peak FLOP/s", |cluster| cluster.device.peak_tflops *= 1.5),
    ("1.5x the storage bandwidth", |cluster| cluster.storage_gbps *= 1.5),
    ("1.5x the price", |cluster| cluster.dollars_per_device_hour *= 1.5),
];

/// Every upgrade, the one that saves most time first. `costs` is the bill without any.
pub fn upgrades(scenario: &Scenario, costs: &Bill) -> Vec<Upgrade> {
    let mut upgrades: Vec<Upgrade> = MORE
        .into_iter()
        .filter_map(|(what, change)| {
            let mut cluster = scenario.cluster.clone();
            change(&mut cluster);
            let mut workload = scenario.workload();
            workload.job.cluster = &cluster;
            let step_seconds = match scenario.layout {
                None => search(&workload, 1).best.first()?.step.seconds,
                // A fixed layout only fits its own number of devices.
                Some(layout) if layout.devices() == cluster.devices => {
                    Candidate::price(&workload.with(layout), &mut Pipelines::default())?
                        .step
                        .seconds
                }
                Some(_) => return None,
            };
            let new = scenario.bill_on(&cluster, step_seconds);
            Some(Upgrade {
                what,
                step_seconds,
                days: new.days,
                dollars: new.dollars,
                saves_share: saved(new.days, costs.days),
                saves_dollars_share: saved(new.dollars, costs.dollars),
            })
        })
        .collect();
    upgrades.sort_by(|a, b| b.saves_share.total_cmp(&a.saves_share));
    upgrades
}
