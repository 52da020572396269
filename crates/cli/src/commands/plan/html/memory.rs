//! Memory of the fullest device of each layout, and of each stage of one, beside the capacity.

use crate::quantity::{gib, to_gib};
use lockstep_planner::memory::cluster::{StageMemory, of_stage};
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::Candidate;
use lockstep_plot::{Axis, StackedBar, StackedBars, Title, palette};

/// Parts of a bar, in colours that remain distinct with red-green blindness.
const PARTS: [(&str, &str); 7] = [
    ("weights", palette::part(0)),
    ("gradients", palette::part(1)),
    ("optimizer", palette::part(2)),
    ("activations", palette::part(3)),
    ("transient", palette::part(6)),
    ("buffers", palette::part(4)),
    ("fragmentation and library overhead", palette::part(7)),
];

const GIB: f64 = (1_u64 << 30) as f64;

/// Stages that are drawn.
const MAX_STAGES: u64 = 32;

/// Draws one bar for each layout.
pub(super) fn picture(scenario: &Scenario, candidates: &[Candidate]) -> String {
    let bar = |candidate: &Candidate| StackedBar {
        name: candidate.layout.to_string(),
        values: parts(scenario, &candidate.memory),
    };
    let run = format!("{} on {}", scenario.model.name, scenario.cluster.name);
    let title = Title::new("Memory of the fullest device", format!("{run}, by layout and part"));
    chart(scenario, title, candidates.iter().map(bar).collect())
}

/// Draws one bar for each pipeline stage of a layout; `None` without a pipeline.
pub(super) fn by_stage(scenario: &Scenario, candidate: &Candidate) -> Option<String> {
    let stages = candidate.layout.pipeline;
    if stages < 2 {
        return None;
    }
    let workload = scenario.workload().with(candidate.layout);
    let bar = |stage: u64| StackedBar {
        name: format!("stage {stage}"),
        values: parts(scenario, &of_stage(&workload.job, stage)),
    };
    let shown = stages.min(MAX_STAGES);
    let more =
        if shown < stages { format!(", the first {shown} of {stages}") } else { String::new() };
    let title =
        Title::new("Memory by pipeline stage", format!("{}, by part{more}", candidate.layout));
    Some(chart(scenario, title, (0..shown).map(bar).collect()))
}

/// Parts of a device's memory in GiB.
fn parts(scenario: &Scenario, memory: &StageMemory) -> Vec<f64> {
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
    parts.map(|bytes| bytes / GIB).to_vec()
}

fn chart(scenario: &Scenario, title: Title, bars: Vec<StackedBar>) -> String {
    let capacity = scenario.cluster.device.memory_bytes();
    StackedBars {
        title,
        axis: Axis::new("GiB per device", |value| format!("{value}")),
        format: |value| format!("{} GiB", gib(value * GIB)),
        parts: PARTS.to_vec(),
        bars,
        limit: Some((to_gib(capacity), format!("capacity {:.0} GiB", to_gib(capacity)))),
    }
    .svg()
}
