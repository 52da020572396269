//! A cluster plan as one HTML page: memory, timeline, scaling, then the report.
//!
//! # Layout
//! - [`memory`]: one bar for each layout
//! - [`scaling`]: throughput over devices

mod memory;
mod scaling;

use lockstep_estimate::scenario::Scenario;
use lockstep_estimate::search::scaling::Curve;
use lockstep_estimate::search::{Candidate, SearchResult};
use lockstep_estimate::time;
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

/// The pipeline, if the best layout has one: its first microbatches, which take another share of
/// idle time than all of them, so both stand above it.
fn timeline(scenario: &Scenario, choice: &Candidate) -> Option<String> {
    if choice.layout.pipeline < 2 {
        return None;
    }
    let job = scenario.workload().job(choice.layout);
    let drawn = time::timeline(&job, &scenario.calibration)?;
    let (shown, all) = (drawn.pipeline.shape.num_microbatches as u64, job.num_microbatches());
    let these = if shown < all {
        format!("the first {shown} of {all} microbatches of a step")
    } else {
        format!("all {all} microbatches of a step")
    };
    let what = format!("{} on {} devices: {these}", drawn.pipeline.kind, choice.layout.pipeline);
    let step = &choice.step;
    let how_good = format!(
        "what is drawn takes {} with {:.1} % idle; a whole step of {all} microbatches, with \
         gradients and update, takes {:.3} s with {:.1} % idle",
        drawn.seconds(),
        100.0 * drawn.bubble(),
        step.seconds,
        100.0 * step.bubble / step.seconds,
    );
    Some(svg_with_title(&drawn, &what, &how_good))
}
