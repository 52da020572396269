//! Memory of the fullest device of each layout, beside its capacity.

use crate::quantity::{gib, to_gib};
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::Candidate;
use lockstep_plot::{Axis, StackedBar, StackedBars, Title};

/// Parts of a bar, in colours that remain distinct with red-green blindness.
const PARTS: [(&str, &str); 7] = [
    ("weights", "#4477aa"),
    ("gradients", "#66ccee"),
    ("optimizer", "#228833"),
    ("activations", "#ddaa33"),
    ("transient", "#bb5566"),
    ("buffers", "#aa3377"),
    ("fragmentation and library overhead", "#bbbbbb"),
];

const GIB: f64 = (1_u64 << 30) as f64;

/// Draws one bar for each layout.
pub(super) fn picture(scenario: &Scenario, candidates: &[Candidate]) -> String {
    let capacity = scenario.cluster.device.memory_bytes();
    let bar = |candidate: &Candidate| {
        let memory = &candidate.memory;
        let overhead = memory.needed(&scenario.calibration) - memory.total();
        let parts = [
            memory.weights,
            memory.gradients,
            memory.optimizer,
            memory.activations,
            memory.peak,
            memory.buffers,
            overhead,
        ];
        let values = parts.map(|bytes| bytes / GIB).to_vec();
        StackedBar { name: candidate.layout.to_string(), values }
    };
    let run = format!("{} on {}", scenario.model.name, scenario.cluster.name);
    StackedBars {
        title: Title::new("Memory of the fullest device", format!("{run}, by layout and part")),
        axis: Axis::new("GiB per device", |value| format!("{value}")),
        format: |value| format!("{} GiB", gib(value * GIB)),
        parts: PARTS.to_vec(),
        bars: candidates.iter().map(bar).collect(),
        limit: Some((to_gib(capacity), format!("capacity {:.0} GiB", to_gib(capacity)))),
    }
    .svg()
}
