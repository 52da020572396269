//! What days and dollars become where inputs are a fifth better or worse than said.
//!
//! The layout stays, since it is chosen before anybody knows. Each input is changed by itself,
//! which tells them apart, and all together, which is the range: whoever has a deadline asks about
//! the worst case, and figures that come from one data sheet are seldom off independently.

use super::super::cluster::Asked;
use super::wanted::costs;
use lockstep_estimate::bill::Bill;
use lockstep_estimate::hardware::Cluster;
use lockstep_estimate::search::{Choice, Question};
use lockstep_estimate::time::pipeline::Pipelines;
use serde::Serialize;

/// What inputs may be off by, either way.
pub(super) const OFF: f64 = 0.2;

/// Something that a plan takes as given.
struct Input {
    name: &'static str,
    /// Whether steps take longer for it; the bill alone knows the others.
    slows_steps: bool,
    /// Makes it worse by a share of itself, or better if that is negative.
    worsen: fn(&mut Cluster, f64),
}

/// An input that steps take longer for.
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

/// Everything of a cluster worse by this share, or better if it is negative.
pub(super) fn worsen(cluster: &mut Cluster, by: f64) {
    for input in &INPUTS {
        (input.worsen)(cluster, by);
    }
}

/// The better end and the worse end, by one input or by all.
#[derive(Clone, Serialize)]
pub(super) struct Range {
    pub(super) input: &'static str,
    pub(super) days: [f64; 2],
    pub(super) dollars: [f64; 2],
}

impl Range {
    fn new(input: &'static str, [better, worse]: [Bill; 2]) -> Self {
        Self { input, days: [better.days, worse.days], dollars: [better.dollars, worse.dollars] }
    }

    /// From the better end of days to the worse.
    pub(super) fn of_days(&self) -> f64 {
        self.days[1] - self.days[0]
    }

    /// The same of dollars.
    pub(super) fn of_dollars(&self) -> f64 {
        self.dollars[1] - self.dollars[0]
    }
}

/// All inputs together.
pub(super) const ALL: &str = "all together";

/// Each input by itself, and all together as the last.
pub(super) fn ranges(asked: &Asked, choice: &Choice) -> Vec<Range> {
    let mut pipelines = Pipelines::default();
    let mut range = |name, slows_steps, change: &dyn Fn(&mut Cluster, f64)| {
        let bills = [-OFF, OFF].map(|by| {
            let mut cluster = asked.cluster.clone();
            change(&mut cluster, by);
            let question = Question { cluster: &cluster, ..asked.question() };
            let priced =
                if slows_steps { question.price(choice.layout, &mut pipelines) } else { None };
            // A layout that was priced once is priced again, whatever the speed of its links.
            let seconds = priced.map_or(choice.step.seconds, |priced| priced.step.seconds);
            costs(asked, &cluster, seconds)
        });
        Range::new(name, bills)
    };
    let mut all: Vec<Range> =
        INPUTS.iter().map(|input| range(input.name, input.slows_steps, &input.worsen)).collect();
    all.push(range(ALL, true, &worsen));
    all
}
