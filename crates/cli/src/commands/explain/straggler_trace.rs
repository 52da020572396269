//! Slowdown by stragglers in a trace of another trainer's operations, and its cause.

use crate::failure::Failure;
use crate::output;
use crate::quantity::{digits, percent};
use lockstep_planner::stragglers::{Cause, StragglerReport, Trace, analyze, parse};
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Most data-parallel ranks of the text; `--json` has all.
const MAX_RANKS: usize = 5;
/// Slowdown below which an operation is left out of the text.
const LEAST_SLOWDOWN: f64 = 1.005;

/// Output of `--json`.
#[derive(Serialize)]
struct Explanation<'a> {
    num_steps: usize,
    num_replicas: u32,
    num_stages: u32,
    #[serde(flatten)]
    report: &'a StragglerReport,
}

/// Explains the trace in a file.
pub(super) fn explain(path: &Path, json: bool, world: &World) -> Result<(), Failure> {
    let text = world.files().read_to_string(path);
    let text = text.map_err(|error| Failure::user(error.to_string()))?;
    let refuse = |error| Failure::user(format!("{}: {error}", path.display()));
    let trace = parse(&text).map_err(refuse)?;
    drop(text);
    let report = analyze(&trace).map_err(refuse)?;
    if !json {
        return output::text(&render(&trace, &report));
    }
    output::json(&Explanation {
        num_steps: trace.steps.len(),
        num_replicas: trace.num_replicas,
        num_stages: trace.num_stages,
        report: &report,
    })
}

fn render(trace: &Trace, report: &StragglerReport) -> String {
    let mut text = String::new();
    let mut line = |title: &str, value: &str| {
        let _ = writeln!(text, "{title:<12} {value}");
    };
    let (steps, workers) = (trace.steps.len(), trace.ranks.len());
    let layout = format!("DP{} PP{}", trace.num_replicas, trace.num_stages);
    let plural = if steps == 1 { "" } else { "s" };
    line("trace", &format!("{steps} step{plural} of {workers} workers, {layout}"));
    line(
        "step",
        &format!(
            "{} s, {} s without stragglers: a slowdown of {}",
            digits(report.step_seconds),
            digits(report.ideal_seconds),
            digits(report.slowdown)
        ),
    );
    line("gaps", &format!("between operations: a slowdown of {}", digits(report.gap_slowdown)));
    let (cause, next) = verdict(report);
    line("verdict", &cause);
    line("next", next);
    let attributed = |values: &mut dyn Iterator<Item = (String, f64)>| {
        let parts: Vec<String> =
            values.map(|(name, slowdown)| format!("{name} {}", digits(slowdown))).collect();
        parts.join(", ")
    };
    line("by stage", &attributed(&mut named(&report.by_stage).into_iter()));
    line("by replica", &attributed(&mut named(&report.by_dp_rank).into_iter().take(MAX_RANKS)));
    let slow = named(&report.by_operation).into_iter().filter(|(_, s)| *s >= LEAST_SLOWDOWN);
    line("by operation", &attributed(&mut slow.into_iter()));
    text.push_str("(slowdown of the ideal step by the recorded operations of one stage, ...)\n");
    text
}

/// Slowdowns with their names, the largest first.
fn named<K: ToString>(slowdowns: &std::collections::BTreeMap<K, f64>) -> Vec<(String, f64)> {
    let mut all: Vec<_> = slowdowns.iter().map(|(name, by)| (name.to_string(), *by)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// The cause in words, and what to try.
fn verdict(report: &StragglerReport) -> (String, &'static str) {
    match report.cause {
        Cause::None => {
            ("no straggler: less than a tenth is lost".to_owned(), "look at the schedule itself")
        }
        Cause::SlowWorkers => {
            let ranks: Vec<String> = report.slowest_ranks.iter().map(u64::to_string).collect();
            let share = percent(report.share_of_slowest);
            let ranks = ranks.join(", ");
            (
                format!("slow workers: rank {ranks} explains {share} of the slowdown"),
                "check clocks, temperature and other processes of that host, or replace it",
            )
        }
        Cause::LastStage => (
            format!(
                "the last stage has more work than the others: it explains {} of the slowdown",
                percent(report.share_of_last_stage)
            ),
            "give the last stage fewer layers; its head and loss take the time of layers",
        ),
        Cause::SequenceLengths => (
            format!(
                "sequences of different lengths: forward and backward times of micro-batches have \
                 a correlation of {}; the last stage explains {} of the slowdown",
                digits(report.pass_correlation),
                percent(report.share_of_last_stage)
            ),
            "balance the squares of sequence lengths over micro-batches and replicas",
        ),
        Cause::Other => (
            "slow operations in changing places".to_owned(),
            "compare the operations below with their neighbours in the trace",
        ),
    }
}
