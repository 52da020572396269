//! Report of a run's diagnosis, as text and as JSON.

use crate::quantity::digits;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_planner::diagnosis::{
    AlgorithmFacts, Diagnosis, MemoryPart, RankTime, SlowStep, TracedStep,
};
use lockstep_planner::recipe::layout_from_recipe;
use lockstep_trainer::recorded_run::RecordedRun;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Most slow steps of the text.
const MAX_STEPS: usize = 5;
/// Most ranks of the text; `--json` has all.
const MAX_RANKS: usize = 16;
/// Share of a part below which the text leaves it out.
const LEAST_SHARE: f64 = 0.001;

/// Output of `--json`.
#[derive(Serialize)]
pub(super) struct RunReport<'a> {
    run_dir: String,
    layout: String,
    #[serde(flatten)]
    diagnosis: &'a Diagnosis,
}

impl<'a> RunReport<'a> {
    pub(super) fn new(run: &RecordedRun, diagnosis: &'a Diagnosis) -> Self {
        Self {
            run_dir: run.folder.path().display().to_string(),
            layout: layout_from_recipe(&run.recipe).to_string(),
            diagnosis,
        }
    }
}

/// The verdict, then parts, ranks, what-ifs and the next setting.
pub(super) fn render(report: &RunReport<'_>) -> String {
    let diagnosis = report.diagnosis;
    let mut text = String::new();
    let mut line = |title: &str, value: &str| {
        let _ = writeln!(text, "{title:<12} {value}");
    };
    for (index, cause) in diagnosis.causes.iter().enumerate() {
        let rank = cause.culprit_rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
        let title = if index == 0 { "verdict" } else { "also" };
        line(title, &format!("{}{rank}: {} of the step", cause.verdict, percent(cause.share)));
        for evidence in &cause.evidence {
            line("", evidence);
        }
    }
    for warning in &diagnosis.health.warnings {
        line("health", warning);
    }
    // Symptoms that neither the verdict nor the health says.
    for symptom in diagnosis.symptoms.iter().filter(|symptom| !symptom.is_reported) {
        line("symptom", &symptom.evidence);
        line("", &format!("cause: {}", symptom.cause));
        line("", &format!("try: {}", symptom.remedy));
    }
    line("run", &format!("{}: {} steps, {}", report.run_dir, diagnosis.steps, report.layout));
    line("step", &render_step(diagnosis));
    if let Some(scale) = diagnosis.noise_scale {
        let critical = diagnosis.critical_batch.unwrap_or(0);
        line(
            "noise scale",
            &format!("{} sequences: the critical batch is about {critical}", digits(scale)),
        );
    }
    text.push('\n');
    text += &render_parts(diagnosis);
    text += &render_ranks(diagnosis);
    text += &render_slow_steps(&diagnosis.slow_steps);
    text += &render_traced(&diagnosis.traced_steps, &diagnosis.last_rank_counts);
    text += &render_memory(&diagnosis.memory);
    text += &render_bytes(&diagnosis.bytes_by_algorithm);
    text += &render_what_ifs(diagnosis);
    text += &render_next(diagnosis);
    text
}

/// A share in percent, to a tenth: smaller ones say nothing about a measured step.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn render_step(diagnosis: &Diagnosis) -> String {
    let mut text = format!("{} in the median", Seconds(diagnosis.step_seconds));
    if let Some(predicted) = diagnosis.predicted_step_seconds {
        let error = 100.0 * (predicted / diagnosis.step_seconds - 1.0);
        let _ = write!(text, "; predicted {} ({error:+.0} %)", Seconds(predicted));
    }
    if let (Some(peak), Some(predicted)) = (diagnosis.peak_bytes, diagnosis.predicted_peak_bytes) {
        let _ = write!(text, "; peak memory {}, predicted {}", Bytes(peak), Bytes(predicted));
    }
    text
}

/// Parts of the step beside the plan, which takes the computation from the run where nothing was
/// calibrated.
fn render_parts(diagnosis: &Diagnosis) -> String {
    let total = diagnosis.parts.total();
    let plan = diagnosis.plan.as_ref();
    let planned: BTreeMap<&str, f64> =
        plan.map(|plan| plan.parts.by_size().into_iter().collect()).unwrap_or_default();
    let title = plan.map_or("", |_| "plan");
    let mut text =
        format!("{:<22}{:>10}{:>9}{title:>10}\n", "part (mean of ranks)", "time", "share");
    for (name, seconds) in diagnosis.parts.by_size() {
        let plan = planned.get(name).copied();
        if seconds.max(plan.unwrap_or(0.0)) >= LEAST_SHARE * total {
            let share = percent(seconds / total);
            let plan = plan.map_or_else(String::new, |plan| Seconds(plan).to_string());
            let row = format!("{name:<22}{:>10}{share:>9}{plan:>10}", Seconds(seconds).to_string());
            text += row.trim_end();
            text.push('\n');
        }
    }
    if plan.is_some_and(|plan| !plan.is_calibrated) {
        text += "(the plan computes as fast as the usual rank did: lockstep plan calibrate)\n";
    }
    text
}

/// Cells of a table whose first column is narrow.
fn row<const N: usize>(cells: [String; N]) -> String {
    let cell = |(column, cell): (usize, String)| match column {
        0 => format!("{cell:<5}"),
        _ => format!(" {cell:>13}"),
    };
    let text: String = cells.into_iter().enumerate().map(cell).collect();
    text.trim_end().to_owned() + "\n"
}

fn render_ranks(diagnosis: &Diagnosis) -> String {
    let ranks = &diagnosis.ranks;
    if ranks.len() < 2 {
        return String::new();
    }
    let plan = diagnosis.plan.as_ref();
    let title = plan.map_or("", |_| "planned");
    let titles = ["rank", "compute", title, "optimizer", "data", "communication", "waiting"];
    let mut text = "\n".to_owned() + &row(titles.map(str::to_owned));
    for rank in ranks.iter().take(MAX_RANKS) {
        let planned = plan.and_then(|plan| plan.ranks.get(rank.rank));
        let planned =
            planned.map_or_else(String::new, |rank| Seconds(rank.compute_seconds).to_string());
        let RankTime {
            compute_seconds,
            optimizer_seconds,
            data_seconds,
            exposed_communication_seconds,
            waiting_for_rank_seconds,
            ..
        } = *rank;
        let times = [
            compute_seconds,
            optimizer_seconds,
            data_seconds,
            exposed_communication_seconds,
            waiting_for_rank_seconds,
        ];
        let [a, b, c, d, e] = times.map(|seconds| Seconds(seconds).to_string());
        text += &row([rank.rank.to_string(), a, planned, b, c, d, e]);
    }
    if ranks.len() > MAX_RANKS {
        let _ = writeln!(text, "({} more ranks: --json has all)", ranks.len() - MAX_RANKS);
    }
    text
}

/// The slowest steps of rank 0 and what they waited for.
fn render_slow_steps(steps: &[SlowStep]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let mut text =
        format!("\n{:<14}{:>10}{:>14}  waited for\n", "slowest steps", "time", "over median");
    for it in steps.iter().take(MAX_STEPS) {
        let [time, excess, waited] = [it.seconds, it.excess_seconds, it.waited_seconds]
            .map(|seconds| Seconds(seconds).to_string());
        let part = it.waited_for.replace('_', " ");
        let _ = writeln!(text, "{:<14}{time:>10}{excess:>14}  {part} ({waited} more)", it.step);
    }
    text
}

/// Every rank in the slowest traced step.
fn render_traced(steps: &[TracedStep], last_counts: &[usize]) -> String {
    let seconds = |step: &TracedStep| step.ranks.iter().fold(0.0, |most, it| it.seconds.max(most));
    let slowest = steps.iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let Some(slowest) = slowest.filter(|step| step.ranks.len() > 1) else {
        return String::new();
    };
    let mut text = format!("\nstep {}, the slowest of {} traced\n", slowest.step, steps.len());
    let titles = ["rank", "compute", "optimizer", "data", "communication", "waiting", "was last"];
    text += &row(titles.map(str::to_owned));
    for it in slowest.ranks.iter().take(MAX_RANKS) {
        let times = [
            it.compute_seconds,
            it.optimizer_seconds,
            it.data_seconds,
            it.communication_seconds,
            it.waiting_for_rank_seconds,
        ];
        let [a, b, c, d, e] = times.map(|seconds| Seconds(seconds).to_string());
        let last = last_counts.get(it.rank);
        let last = last.map_or_else(String::new, |num| format!("{num} of {}", steps.len()));
        text += &row([it.rank.to_string(), a, b, c, d, e, last]);
    }
    text
}

/// Memory by part, measured beside planned.
fn render_memory(parts: &[MemoryPart]) -> String {
    let Some(first) = parts.first() else { return String::new() };
    let title = format!("memory of rank {}", first.rank);
    let mut text = format!("\n{title:<22}{:>12}{:>12}\n", "measured", "planned");
    for part in parts.iter().filter(|part| part.measured_bytes + part.planned_bytes > 0) {
        let [measured, planned] =
            [part.measured_bytes, part.planned_bytes].map(|bytes| Bytes(bytes).to_string());
        let _ = writeln!(text, "{:<22}{measured:>12}{planned:>12}", part.part);
    }
    text
}

/// Bytes that rank 0 sends in a step.
fn render_bytes(sent: &[AlgorithmFacts]) -> String {
    if sent.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{:<12}{:<16}{:>14}\n", "axis", "algorithm", "sent per step");
    for AlgorithmFacts { axis, algorithm, bytes_per_step } in sent {
        let bytes = Bytes(bytes_per_step.round() as u64).to_string();
        let _ = writeln!(text, "{axis:<12}{algorithm:<16}{bytes:>14}");
    }
    text
}

fn render_what_ifs(diagnosis: &Diagnosis) -> String {
    if diagnosis.what_if.is_empty() {
        return String::new();
    }
    let width = diagnosis.what_if.iter().map(|it| it.change.chars().count()).max().unwrap_or(0);
    let mut text = format!("\n{:<width$}{:>10}{:>9}\n", "what if", "step", "saved");
    for it in &diagnosis.what_if {
        let (step, saved) = (Seconds(it.step_seconds).to_string(), percent(it.gain));
        let _ = writeln!(text, "{:<width$}{step:>10}{saved:>9}", it.change);
    }
    text
}

fn render_next(diagnosis: &Diagnosis) -> String {
    let next = &diagnosis.next;
    let mut text = "\n".to_owned();
    let settings: Vec<String> =
        next.settings.iter().map(|setting| format!("--set {setting}")).collect();
    let settings = if settings.is_empty() { String::new() } else { settings.join(" ") + ": " };
    let gain = next.gain.map_or_else(String::new, |gain| format!(" (saves {})", percent(gain)));
    let _ = writeln!(text, "{:<12} {settings}{}{gain}", "next", next.reason);
    text
}
