//! Step time over memory: the layouts that no other one beats in both, and the best of all.

use crate::quantity::{digits, gib, to_gib};
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::{Candidate, SearchResult};
use lockstep_plot::{Axis, LineChart, Point, PointMark, Series, Title};

/// Draws every candidate as a point; `None` where there is only one.
pub(super) fn picture(scenario: &Scenario, found: &SearchResult) -> Option<String> {
    if found.pareto.len() < 2 {
        return None;
    }
    let needed = |candidate: &Candidate| candidate.memory.needed(&scenario.calibration);
    let point = |candidate: &Candidate| {
        let (seconds, bytes) = (candidate.step.seconds, needed(candidate));
        let layout = &candidate.layout;
        let tooltip = format!("{layout}: {} s per step, {} GiB", digits(seconds), gib(bytes));
        Point { tooltip, ..Point::new(to_gib(bytes), seconds) }
    };
    let mut front: Vec<Point> = found.pareto.iter().map(point).collect();
    if let Some(fastest) = front.first_mut() {
        // The names of all would lie on each other: the others appear under the pointer.
        fastest.label = found.pareto[0].layout.to_string();
        fastest.mark = PointMark::Best;
    }
    let best = Series {
        is_joined: false,
        ..Series::line("fastest", found.best.iter().map(point).collect())
    };
    let capacity = to_gib(scenario.cluster.device.memory_bytes());
    let seconds = found.pareto.iter().map(|it| it.step.seconds);
    let fastest = seconds.clone().fold(f64::MAX, f64::min);
    let slowest = seconds.fold(0.0, f64::max);
    let limit = vec![Point::new(capacity, fastest), Point::new(capacity, slowest)];
    let chart = LineChart {
        title: Title::new(
            "Time and memory",
            "layouts that no other one beats in both; point at one for its name",
        ),
        x: Axis::new("GiB on the fullest device", digits),
        y: Axis::new("seconds per step", digits).log(),
        series: vec![
            Series::line("Pareto front", front),
            best,
            Series::reference("capacity", limit, 6),
        ],
        notes: vec![],
    };
    Some(chart.svg())
}
