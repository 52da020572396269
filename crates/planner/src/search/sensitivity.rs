//! Sensitivity of a plan: days and dollars where inputs are 20 % better or worse than published.
//!
//! The layout stays fixed, because it is chosen before the inputs are measured. Each input varies
//! alone, which ranks them, and all vary together, which gives the range: a deadline is missed by
//! the worst case, and figures of one data sheet are seldom off independently.

use crate::bill::Bill;
use crate::hardware::Cluster;
use crate::pipeline::Pipelines;
use crate::scenario::Scenario;
use crate::search::Candidate;
use serde::Serialize;

/// Share by which inputs may be off, in either direction.
pub const SPREAD: f64 = 0.2;

/// An input of a plan.
struct Input {
    name: &'static str,
    /// Whether it changes step time; the others change only the bill.
    slows_steps: bool,
    /// Worsens the input by a share of itself; a negative share improves it.
    worsen: fn(&mut Cluster, f64),
}

/// An input that changes step time.
const fn speed(name: &'static str, worsen: fn(&mut Cluster, f64)) -> Input {
    Input { name, slows_steps: true, worsen }
}

const INPUTS: [Input; 8] = [
    speed("device compute", |cluster, by| {
        cluster.device.peak_tflops *= 1.0 - by;
        cluster.device.peak_tflops_fp8 *= 1.0 - by;
    }),
    speed("device memory bandwidth", |cluster, by| cluster.device.memory_gbps *= 1.0 - by),
    speed("links inside nodes", |cluster, by| cluster.link_gbps *= 1.0 - by),
    speed("network bandwidth", |cluster, by| cluster.network.device_gbps *= 1.0 - by),
    speed("host bandwidth", |cluster, by| {
        cluster.host_gbps *= 1.0 - by;
        cluster.host_memory_gbps *= 1.0 - by;
    }),
    Input {
        name: "failure rate",
        slows_steps: false,
        worsen: |cluster, by| cluster.failures_per_node_day *= 1.0 + by,
    },
    speed("storage bandwidth", |cluster, by| cluster.storage_gbps *= 1.0 - by),
    Input {
        name: "price",
        slows_steps: false,
        worsen: |cluster, by| cluster.dollars_per_device_hour *= 1.0 + by,
    },
];

/// Worsens every input of a cluster by a share; a negative share improves it.
pub fn worsen(cluster: &mut Cluster, by: f64) {
    for input in &INPUTS {
        (input.worsen)(cluster, by);
    }
}

/// Days and dollars with one input, or all, better and worse.
#[derive(Debug, Clone, Serialize)]
pub struct Range {
    /// Name of the input.
    pub input: &'static str,
    /// Days: better, worse.
    pub days: [f64; 2],
    /// Dollars: better, worse.
    pub dollars: [f64; 2],
}

impl Range {
    fn new(input: &'static str, [better, worse]: [Bill; 2]) -> Self {
        Self { input, days: [better.days, worse.days], dollars: [better.dollars, worse.dollars] }
    }

    /// Width of the range of days.
    pub fn days_spread(&self) -> f64 {
        self.days[1] - self.days[0]
    }

    /// Width of the range of dollars.
    pub fn dollars_spread(&self) -> f64 {
        self.dollars[1] - self.dollars[0]
    }
}

/// Name of the range with all inputs changed together.
pub const ALL: &str = "all together";

/// Ranges by each input alone, then by all together ([`ALL`], the last).
pub fn ranges(scenario: &Scenario, candidate: &Candidate) -> Vec<Range> {
    let mut pipelines = Pipelines::default();
    let mut range = |name, slows_steps, change: &dyn Fn(&mut Cluster, f64)| {
        let bills = [-SPREAD, SPREAD].map(|by| {
            let mut cluster = scenario.cluster.clone();
            change(&mut cluster, by);
            let mut workload = scenario.workload().with(candidate.layout);
            workload.job.cluster = &cluster;
            let priced =
                if slows_steps { Candidate::price(&workload, &mut pipelines) } else { None };
            // Link speed does not change whether a layout can be scheduled.
            let seconds = priced.map_or(candidate.step.seconds, |priced| priced.step.seconds);
            scenario.bill_on(&cluster, seconds)
        });
        Range::new(name, bills)
    };
    let mut all: Vec<Range> =
        INPUTS.iter().map(|input| range(input.name, input.slows_steps, &input.worsen)).collect();
    all.push(range(ALL, true, &worsen));
    all
}
