//! Step time of each layout by part.

use crate::quantity::digits;
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::Candidate;
use lockstep_plot::{Axis, StackedBar, StackedBars, Title, palette};

/// Parts of a bar, in colours that remain distinct with red-green blindness.
const PARTS: [(&str, &str); 6] = [
    ("computation", palette::part(0)),
    ("exposed communication", palette::EXPOSED),
    ("bubble", palette::IDLE),
    ("kernel launches", palette::part(3)),
    ("optimizer", palette::part(2)),
    ("data loading", palette::part(4)),
];

/// Draws one bar for each layout.
pub(super) fn picture(scenario: &Scenario, candidates: &[Candidate]) -> String {
    let bar = |candidate: &Candidate| {
        let step = &candidate.step;
        let values =
            vec![step.compute, step.exposed, step.bubble, step.host, step.update, step.loading];
        StackedBar { name: candidate.layout.to_string(), values }
    };
    let run = format!("{} on {}", scenario.model.name, scenario.cluster.name);
    StackedBars {
        title: Title::new("Step time", format!("{run}, by layout and part")),
        axis: Axis::new("seconds", digits),
        format: |value| format!("{} s", digits(value)),
        parts: PARTS.to_vec(),
        bars: candidates.iter().map(bar).collect(),
        limit: None,
    }
    .svg()
}
