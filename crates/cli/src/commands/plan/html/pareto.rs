//! Step time over memory: all layouts that fit, those that no other one beats in both, the best.

use crate::quantity::{digits, gib, to_gib};
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::cloud::CloudPoint;
use lockstep_planner::search::{Candidate, SearchResult};
use lockstep_plot::{Axis, LineChart, Point, PointMark, Series, Title};
use std::fmt::Write as _;

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
    let others = found.cloud.iter().map(|CloudPoint { fastest, num_merged }| {
        let mut point = point(fastest);
        if *num_merged > 1 {
            let _ = write!(point.tooltip, ", and {} layouts like it", num_merged - 1);
        }
        Point { mark: PointMark::Small, ..point }
    });
    let all: usize = found.cloud.iter().map(|point| point.num_merged).sum();
    let cloud = Series {
        is_joined: false,
        ..Series::line(format!("{all} layouts that fit"), others.collect())
    };
    let capacity = to_gib(scenario.cluster.device.memory_bytes());
    let shown = found.cloud.iter().map(|point| &point.fastest).chain(&found.pareto);
    let seconds = shown.map(|it| it.step.seconds);
    let fastest = seconds.clone().fold(f64::MAX, f64::min);
    let slowest = seconds.fold(0.0, f64::max);
    let limit = vec![Point::new(capacity, fastest), Point::new(capacity, slowest)];
    let chart = LineChart {
        title: Title::new(
            "Time and memory",
            "every layout that fits, by closed form; on the front those that no other one beats in \
             both, simulated; point at one for its name",
        ),
        x: Axis::new("GiB on the fullest device", digits),
        y: Axis::new("seconds per step", digits).log(),
        series: vec![
            Series::line("Pareto front", front),
            best,
            cloud,
            Series::reference("capacity", limit, 6),
        ],
        notes: vec![],
    };
    Some(chart.svg())
}
