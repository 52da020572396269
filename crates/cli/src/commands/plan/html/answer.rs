//! The answer of a plan in a few large figures.

use crate::commands::plan::cluster_report::Report;
use crate::quantity::{days, digits, dollars, gib, grouped, percent};
use lockstep_planner::scenario::Scenario;
use lockstep_plot::escape;
use serde::Serialize;
use std::fmt::Write as _;

/// Style of the figures, which other pages do not have.
const STYLE: &str = "<style>.answer{display:flex;flex-wrap:wrap;gap:1em 2.6em;margin:1em 0 2em}\
    .answer dt{color:var(--soft);font-size:13px}.answer dd{margin:0;font-size:28px;font-weight:600}\
    .answer small{display:block;font-size:13px;font-weight:400;color:var(--soft)}\
    .layout{font-size:20px;font-weight:600;margin:0}</style>\n";

/// A large figure.
#[derive(Serialize)]
pub(in crate::commands::plan) struct Figure {
    name: &'static str,
    value: String,
    note: String,
}

/// Time, memory, days and money of the best layout.
pub(in crate::commands::plan) fn figures(scenario: &Scenario, report: &Report) -> [Figure; 6] {
    let bill = &report.bill;
    let memory = &report.memory;
    let capacity = format!("of {} GiB on the fullest device", gib(memory.device_bytes as f64));
    let tokens = format!("for {} B tokens", grouped((report.tokens / 1e9).round()));
    [
        (
            "step time",
            format!("{} s", digits(report.step_seconds)),
            format!("global batch {} of {} tokens", report.batch, report.context),
        ),
        (
            "MFU",
            percent(report.mfu),
            format!("{} tokens/s per device", digits(report.tokens_per_second_per_device)),
        ),
        ("memory", format!("{} GiB", gib(memory.needed_bytes as f64)), capacity),
        ("duration", days(report.days), tokens),
        (
            "cost",
            format!("${}", dollars(report.dollars)),
            format!("{} device hours", grouped(bill.device_hours)),
        ),
        (
            "devices",
            grouped(report.devices as f64),
            format!("{} nodes of {}", report.nodes, scenario.cluster.device.name),
        ),
    ]
    .map(|(name, value, note)| Figure { name, value, note })
}

/// Layout and figures as HTML.
pub(super) fn html(scenario: &Scenario, report: &Report) -> String {
    let mut html = STYLE.to_owned();
    let _ = writeln!(html, "<p class=\"layout\">{}</p>", escape(&report.layout.brief));
    if !report.runnable {
        let reasons = report.not_runnable.join("; ");
        let _ = writeln!(html, "<p>Only planned, not trained here: {}</p>", escape(&reasons));
    }
    html += "<dl class=\"answer\">\n";
    for Figure { name, value, note } in figures(scenario, report) {
        let (value, note) = (escape(&value), escape(&note));
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{value}<small>{note}</small></dd></div>");
    }
    html + "</dl>\n"
}
