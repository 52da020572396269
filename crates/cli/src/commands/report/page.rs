//! Text of a run's report: the answer first, pictures next, tables and the recipe last.

use super::charts;
use crate::quantity::{count, percent, si_bytes};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_dashboard::columns::Column;
use lockstep_dashboard::history::{Level, TaskSpan};
use lockstep_dashboard::ranks::Rank;
use lockstep_dashboard::{History, RunInfo, State};
use lockstep_plot::escape;
use serde_json::Value;
use std::fmt::Write as _;

/// Steps whose median is the speed.
const RECENT_STEPS: usize = 100;

/// All that is known about a run.
pub(super) struct Subject<'a> {
    pub(super) folder: String,
    pub(super) state: State,
    pub(super) info: RunInfo,
    /// Text of its diagnosis, or why there is none.
    pub(super) explanation: Result<String, String>,
    /// Planned step, or why there is none.
    pub(super) planned: Result<Value, String>,
    pub(super) history: &'a History,
}

/// Style of the parts that other pages do not have.
const STYLE: &str = "<style>dl{display:flex;flex-wrap:wrap;gap:1em 2.5em}dt{color:var(--soft);\
    font-size:13px}dd{margin:0;font-size:24px;font-weight:600}td.text,th.text{text-align:left}\
    details{margin:.5em 0}pre{white-space:pre-wrap;overflow-wrap:anywhere}\
    @media print{svg{break-inside:avoid}h2{break-after:avoid}}</style>\n";

/// The page.
pub(super) fn render(subject: &Subject<'_>) -> String {
    let history = subject.history;
    let mut body = STYLE.to_owned();
    body += &figures(subject);
    if let Ok(explanation) = &subject.explanation {
        section(&mut body, "Why it takes this long", &preformatted(explanation));
    }
    section(&mut body, "Curves", &(charts::curves(history).concat() + &curve_table(history)));
    let planned = subject.planned.as_ref();
    let sampled = history.spans().last().map(|(step, _)| *step);
    let step = charts::timeline(planned.ok(), sampled, &measured(history, sampled));
    section(&mut body, "The step", &step.unwrap_or_default());
    let ranks: Vec<&Rank> = history.ranks().iter().collect();
    section(&mut body, "Ranks", &rank_table(&ranks));
    let matrix = planned.ok().and_then(charts::matrix).unwrap_or_default();
    section(&mut body, "Communication", &matrix);
    let memory = charts::memory(&subject.info.planned_memory, &ranks).unwrap_or_default();
    section(&mut body, "Memory", &memory);
    let samples: String = history.samples().map(|it| preformatted(&it.text)).collect();
    section(&mut body, "Sample texts", &samples);
    section(&mut body, "Log", &log_table(history));
    section(&mut body, "Layout", &settings_table(subject));
    let recipe = subject.info.recipe.as_deref().map(preformatted).unwrap_or_default();
    section(&mut body, "Recipe", &recipe);
    lockstep_plot::page(&subject.folder, &body)
}

/// A part with its heading, unless it is empty.
fn section(body: &mut String, title: &str, content: &str) {
    if !content.is_empty() {
        let _ = write!(body, "<section><h2>{title}</h2>\n{content}</section>\n");
    }
}

fn preformatted(text: &str) -> String {
    format!("<pre>{}</pre>\n", escape(text))
}

/// The run in a few large numbers.
fn figures(subject: &Subject<'_>) -> String {
    let Subject { history, state, info, .. } = subject;
    let loss = |loss: f64| format!("{loss:.4}");
    let median = |column| history.columns().recent_median(column, RECENT_STEPS);
    let steps = match history.started() {
        Some(started) => format!("{} of {}", history.step(), started.num_steps),
        None => history.step().to_string(),
    };
    let figures = [
        ("state", Some(state.name.clone())),
        ("steps", Some(steps)),
        ("loss", history.columns().last(Column::Loss).map(|(_, value)| loss(value))),
        ("validation loss", history.last_point("validation_loss").map(|(_, value)| loss(value))),
        ("tokens per second", median(Column::TokensPerSecond).map(count)),
        ("step time", median(Column::StepSeconds).map(|value| Seconds(value).to_string())),
        ("MFU", history.last_point("mfu").map(|(_, value)| percent(value))),
        ("parameters", history.started().map(|started| count(started.num_params as f64))),
    ];
    let mut html = String::new();
    if let Some(layout) = &info.layout {
        let _ = writeln!(html, "<p>{}</p>", escape(layout));
    }
    if let Some(reason) = &state.reason {
        let _ = writeln!(html, "<p><strong>{}</strong></p>", escape(reason));
    }
    html += "<dl>";
    for (name, value) in figures {
        if let Some(value) = value {
            let _ = write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
        }
    }
    html + "</dl>\n"
}

/// Spans of each rank in a sampled step.
fn measured(history: &History, step: Option<u64>) -> Vec<(usize, &[TaskSpan])> {
    let first = history.spans().map(|(of, spans)| (*of, 0, spans.as_slice()));
    let others = history.rank_spans().map(|(of, rank, spans)| (*of, *rank, spans.as_slice()));
    let all = first.chain(others).filter(|(of, ..)| Some(*of) == step);
    all.map(|(_, rank, spans)| (rank, spans)).collect()
}

/// A table; cells are HTML.
fn table(titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut html = "<table><thead><tr>".to_owned();
    for title in titles {
        let _ = write!(html, "<th scope=\"col\">{title}</th>");
    }
    html += "</tr></thead><tbody>\n";
    for row in rows {
        let _ = writeln!(html, "<tr><td>{}</td></tr>", row.join("</td><td>"));
    }
    html + "</tbody></table>\n"
}

/// Text alternative of the curves: thirty steps.
fn curve_table(history: &History) -> String {
    const NUM_ROWS: usize = 30;
    let columns = [Column::Loss, Column::Lr, Column::GradNorm, Column::StepSeconds];
    let points = columns.map(|column| history.columns().points(column, [0, u64::MAX]));
    let len = points[0].len();
    if len == 0 {
        return String::new();
    }
    let every = len.div_ceil(NUM_ROWS);
    let chosen = (0..len).filter(|index| index % every == 0 || index + 1 == len);
    let rows = chosen.map(|index| {
        let value = |column: usize| points[column][index].1;
        let rest = [1, 2, 3].map(|column| crate::quantity::digits(value(column)));
        let mut cells = vec![points[0][index].0.to_string(), format!("{:.4}", value(0))];
        cells.extend(rest);
        cells
    });
    let titles = ["step", "loss", "learning rate", "gradient norm", "step time (s)"];
    format!("<details><summary>Curves as a table</summary>{}</details>\n", table(&titles, rows))
}

fn rank_table(ranks: &[&Rank]) -> String {
    if ranks.is_empty() {
        return String::new();
    }
    let titles = [
        "rank",
        "busy",
        "exposed per step",
        "straggler wait per step",
        "data sent",
        "pipeline sent",
        "tensor sent",
        "strategy sent",
        "memory",
        "missed steps",
    ];
    let optional = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    let rows = ranks.iter().map(|rank| {
        let mut cells = vec![rank.rank.to_string(), optional(rank.busy_share.map(percent))];
        cells.extend(rank.per_step.map(|seconds| Seconds(seconds.max(0.0)).to_string()));
        cells.extend(rank.sent_bytes.map(si_bytes));
        let memory = rank.device_bytes.or(rank.resident_bytes);
        cells.push(optional(memory.map(|bytes| Bytes(bytes).to_string())));
        cells.push(rank.missed_steps.to_string());
        cells
    });
    table(&titles, rows)
}

fn log_table(history: &History) -> String {
    let rows = history.log().map(|line| {
        let mark = if line.level == Level::Warning { "warning: " } else { "" };
        let text = format!("{mark}{}", escape(&line.text));
        vec![Seconds(line.seconds).to_string(), line.step.to_string(), text]
    });
    table(&["time", "step", "event"], rows)
}

fn settings_table(subject: &Subject<'_>) -> String {
    let mut rows = subject.info.settings.clone();
    if let Some(started) = subject.history.started() {
        rows.push(("recipe hash".to_owned(), started.recipe_hash.clone()));
        rows.push(("kernels".to_owned(), started.kernel_class.clone()));
    }
    if let Some(finished) = subject.history.finished() {
        rows.push(("losses hash".to_owned(), finished.losses_hash.clone()));
        rows.push(("weights hash".to_owned(), finished.weights_hash.clone()));
    }
    table(&["setting", "value"], rows.into_iter().map(|(a, b)| vec![escape(&a), escape(&b)]))
}
