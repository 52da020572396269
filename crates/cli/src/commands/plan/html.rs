//! A cluster plan as one HTML page: memory, timeline, scaling, then the report.
//!
//! # Layout
//! - [`memory`]: one bar for each layout
//! - [`scaling`]: throughput over devices

mod memory;
mod scaling;

use crate::quantity::{digits, percent};
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::scaling::Curve;
use lockstep_planner::search::{Candidate, SearchResult};
use lockstep_planner::time::cluster as time;
use lockstep_planner::timeline::svg_with_title;
use lockstep_plot::escape;
use std::fmt::Write;

/// The page; `text` is the report for the terminal.
pub(super) fn page(
    scenario: &Scenario,
    found: &SearchResult,
    curves: &[(&str, &Curve)],
    text: &str,
) -> String {
    let title = format!("{} on {}", scenario.model.name, scenario.cluster.name);
    let mut body = memory::picture(scenario, &found.best);
    if let Some(picture) = found.best.first().and_then(|best| timeline(scenario, best)) {
        body += &picture;
    }
    for (name, curve) in curves {
        body += &scaling::picture(&format!("Scaling: {}", name.to_lowercase()), curve);
    }
    let _ = writeln!(body, "<pre>{}</pre>", escape(text));
    lockstep_plot::page(&title, &body)
}

/// Timeline of the best layout, if it has a pipeline. Only the first micro-batches of a step are
/// drawn, and their bubble is larger than that of the step, so the subtitle has both.
fn timeline(scenario: &Scenario, candidate: &Candidate) -> Option<String> {
    if candidate.layout.pipeline < 2 {
        return None;
    }
    let workload = scenario.workload().with(candidate.layout);
    let drawn = time::timeline(&workload)?;
    let (shown, all) =
        (drawn.pipeline.shape.num_microbatches as u64, workload.job.num_microbatches());
    let these = if shown < all {
        format!("the first {shown} of {all} micro-batches of a step")
    } else {
        format!("all {all} micro-batches of a step")
    };
    let title =
        format!("{} on {} devices: {these}", drawn.pipeline.kind, candidate.layout.pipeline);
    let step = &candidate.step;
    let subtitle = format!(
        "drawn: {}, bubble {}; whole step of {all} micro-batches: {} s, bubble {}",
        drawn.seconds(),
        percent(drawn.bubble()),
        digits(step.seconds),
        percent(step.bubble / step.seconds),
    );
    Some(svg_with_title(&drawn, &title, &subtitle))
}
