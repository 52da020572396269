//! What more of each resource would bring: time and money, with the best layout for it or the one
//! that was given.

use super::cluster::Asked;
use lockstep_estimate::bill::{self, Bill};
use lockstep_estimate::hardware::Cluster;
use lockstep_estimate::search::search;
use lockstep_estimate::time::pipeline::Pipelines;
use serde::Serialize;

/// More of one resource.
#[derive(Serialize)]
pub(super) struct Upgrade {
    what: &'static str,
    step_seconds: f64,
    days: f64,
    dollars: f64,
    saves_share: f64,
    saves_dollars_share: f64,
}

impl Upgrade {
    /// One line for a report.
    pub(super) fn line(&self) -> String {
        format!(
            "{}: {:.3} s a step, {:.1} days ({:+.1} %), {:.0} $ ({:+.1} %)",
            self.what,
            self.step_seconds,
            self.days,
            changed(self.saves_share),
            self.dollars,
            changed(self.saves_dollars_share)
        )
    }
}

/// The share that is saved of something; of nothing, nothing.
fn saved(new: f64, old: f64) -> f64 {
    if old > 0.0 { 1.0 - new / old } else { 0.0 }
}

/// What a saving changes, percent: nothing is below zero that is shown as zero.
fn changed(saved: f64) -> f64 {
    (-1e3 * saved).round() / 10.0 + 0.0
}

/// A resource by name and what makes a cluster have more of it.
type More = (&'static str, fn(&mut Cluster));

const MORE: [More; 8] = [
    ("twice the devices", |cluster| cluster.devices *= 2),
    ("half as much again of network", |cluster| cluster.network.device_gbps *= 1.5),
    ("half as much again of links inside nodes", |cluster| cluster.link_gbps *= 1.5),
    ("half as much again of memory", |cluster| cluster.device.memory_gb *= 1.5),
    ("half as much again of memory bandwidth", |cluster| cluster.device.memory_gbps *= 1.5),
    ("half as much again of arithmetic", |cluster| cluster.device.peak_tflops *= 1.5),
    ("half as much again of storage", |cluster| cluster.storage_gbps *= 1.5),
    ("half as high a price again", |cluster| cluster.dollars_per_device_hour *= 1.5),
];

/// Every resource, the one that saves most time first.
pub(super) fn upgrades(asked: &Asked, costs: &Bill) -> Vec<Upgrade> {
    let tokens = (asked.batch * asked.model.context) as f64;
    let mut upgrades: Vec<Upgrade> = MORE
        .into_iter()
        .filter_map(|(what, change)| {
            let mut cluster = asked.cluster.clone();
            change(&mut cluster);
            let mut question = asked.question();
            question.cluster = &cluster;
            let step_seconds = match asked.layout {
                None => search(&question, 1).best.first()?.step.seconds,
                // A layout that was given stays, so it is for as many devices.
                Some(layout) if layout.devices() == cluster.devices => {
                    question.price(layout, &mut Pipelines::default())?.step.seconds
                }
                Some(_) => return None,
            };
            let new = bill::bill(&asked.model, &cluster, asked.tokens, tokens, step_seconds);
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
