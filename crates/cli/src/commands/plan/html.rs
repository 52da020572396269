//! A cluster's plan as one page: memory, timeline, scaling. It needs nothing from elsewhere.
//!
//! # Layout
//! - [`memory`]: a bar for each layout
//! - [`scaling`]: speed against devices

mod memory;
mod scaling;

use lockstep_estimate::scenario::Scenario;
use lockstep_estimate::search::scaling::Curve;
use lockstep_estimate::search::{Candidate, SearchResult};
use lockstep_estimate::time;
use lockstep_planner::timeline::svg_with_title;
use std::fmt::Write;

const STYLE: &str = "body{font-family:sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;\
    color:#222}pre{background:#f4f4f4;padding:1em;overflow-x:auto}svg{max-width:100%}\
    h2{margin-top:2em}";

/// The page. `text` is the report for people, which stands on it as it is.
pub(super) fn page(
    scenario: &Scenario,
    found: &SearchResult,
    curves: &[(&str, &Curve)],
    text: &str,
) -> String {
    let title = format!("{} on {}", scenario.model.name, scenario.cluster.name);
    let title = escaped(&title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<pre>{}</pre>\n",
        escaped(text)
    );
    page += "<h2>Memory of the fullest device</h2>\n";
    page += &memory::picture(scenario, &found.best);
    if let Some(picture) = found.best.first().and_then(|choice| timeline(scenario, choice)) {
        page += "<h2>Pipeline of the best layout</h2>\n";
        page += &picture;
    }
    for (name, curve) in curves {
        let _ = writeln!(page, "<h2>Scaling: {}</h2>", escaped(&name.to_lowercase()));
        page += &scaling::picture(&format!("{name} on more devices"), curve);
    }
    page + "</body></html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The begin of a picture.
fn opening(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         width=\"{width:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n"
    )
}

/// Room that so much text takes at most, in letters as wide as digits.
fn room(text: &str) -> f64 {
    7.2 * text.chars().count() as f64
}

/// About so many round numbers from zero on: 1, 2 or 5 times a power of ten apart.
fn ticks(most: f64, about: f64) -> Vec<f64> {
    let rough = most / about;
    let power = 10_f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= rough);
    let step = times.unwrap_or(10.0) * power;
    let count = (most / step).floor() as u32;
    (0..=count).map(|tick| f64::from(tick) * step).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_end() {
        assert_eq!(ticks(80.0, 8.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0]);
        assert_eq!(ticks(141.0, 8.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0, 140.0]);
        assert_eq!(ticks(0.9, 4.0), [0.0, 0.5]);
    }
}
