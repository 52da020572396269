//! A cluster plan as one HTML page: the answer in large figures, pictures, then the report.
//!
//! # Layout
//! - [`answer`]: the figures
//! - [`memory`]: memory by layout, and by stage of the best one; [`step_parts`]: step time
//! - [`pareto`]: time over memory
//! - [`scaling`]: throughput over devices

pub(super) mod answer;
mod memory;
mod pareto;
mod scaling;
mod step_parts;

pub(super) use scaling::picture as scaling_picture;

use super::cluster_report::Report;
use crate::quantity::{digits, percent};
use lockstep_planner::scenario::Scenario;
use lockstep_planner::search::{Candidate, SearchResult};
use lockstep_planner::time::cluster as time;
use lockstep_planner::timeline::svg_with_title;
use lockstep_plot::escape;
use std::fmt::Write;

/// The page; `text` is the report for the terminal.
pub(super) fn page(
    scenario: &Scenario,
    found: &SearchResult,
    report: &Report,
    text: &str,
) -> String {
    let title = format!("{} on {}", scenario.model.name, scenario.cluster.name);
    let mut body = answer::html(scenario, report);
    body.extend(pictures(scenario, found));
    for (name, curve) in report.curves() {
        body += &scaling::picture(&format!("Scaling: {}", name.to_lowercase()), curve);
    }
    let _ = writeln!(body, "<pre>{}</pre>", escape(text));
    lockstep_plot::page(&title, &body)
}

/// Pictures of the best layouts.
pub(super) fn pictures(scenario: &Scenario, found: &SearchResult) -> Vec<String> {
    let best = found.best.first();
    let mut pictures =
        vec![step_parts::picture(scenario, &found.best), memory::picture(scenario, &found.best)];
    pictures.extend(best.and_then(|best| memory::by_stage(scenario, best)));
    pictures.extend(best.and_then(|best| timeline(scenario, best)));
    pictures.extend(pareto::picture(scenario, found));
    pictures
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
