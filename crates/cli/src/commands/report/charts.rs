//! Pictures of a run's report.

use crate::quantity::{count, digits, percent, si_bytes};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_dashboard::columns::Column;
use lockstep_dashboard::history::TaskSpan;
use lockstep_dashboard::ranks::Rank;
use lockstep_dashboard::runs::PlannedMemory;
use lockstep_dashboard::{History, downsample};
use lockstep_plot::{
    Activity, Axis, Cell, Fill, HeatMap, LineChart, Series, Span, StackedBar, StackedBars,
    Timeline, Title, Track, palette,
};
use serde_json::Value;

/// Pixel columns of a curve.
const NUM_COLUMNS: usize = 700;
/// Ranks in a picture of memory.
const MAX_BARS: usize = 32;
/// Ranks of a matrix whose cells have room for their numbers.
const MAX_CELLS: usize = 16;
/// Tracks and spans of a timeline.
const MAX_TRACKS: usize = 24;
const MAX_SPANS: usize = 1500;
const ALL_STEPS: [u64; 2] = [0, u64::MAX];
const GIB: f64 = (1_u64 << 30) as f64;

/// Curves over steps; those without points are left out.
pub(super) fn curves(history: &History) -> Vec<String> {
    let column =
        |name: &str, column| (name.to_owned(), history.columns().points(column, ALL_STEPS));
    let curve = |name: &str, key: &str| (name.to_owned(), history.curve(key, ALL_STEPS));
    let seconds = |value| Seconds(value).to_string();
    let plain = |value: f64| digits(value);
    let known = ["validation_loss", "mfu", "resident_bytes"];
    let mut charts = vec![
        chart(
            "Loss",
            "nats",
            |value| format!("{value:.4}"),
            vec![column("training", Column::Loss), curve("validation", "validation_loss")],
        ),
        chart(
            "Throughput",
            "tokens per second",
            count,
            vec![column("tokens per second", Column::TokensPerSecond)],
        ),
        chart("Learning rate", "rate", plain, vec![column("learning rate", Column::Lr)]),
        chart("Gradient norm", "norm", plain, vec![column("gradient norm", Column::GradNorm)]),
        chart(
            "Step time",
            "time",
            seconds,
            vec![
                column("step", Column::StepSeconds),
                column("exposed communication", Column::ExposedSeconds),
                column("waiting for a rank", Column::StragglerSeconds),
            ],
        ),
        chart("MFU", "share of the peak", percent, vec![curve("MFU", "mfu")]),
        chart(
            "Resident memory of rank 0",
            "memory",
            |value| Bytes(value as u64).to_string(),
            vec![curve("resident", "resident_bytes")],
        ),
    ];
    for name in history.curve_names().filter(|name| !known.contains(name)) {
        charts.push(chart(name, "value", plain, vec![curve(name, name)]));
    }
    charts.into_iter().flatten().collect()
}

fn chart(
    title: &str,
    unit: &str,
    format: fn(f64) -> String,
    curves: Vec<(String, Vec<(f64, f64)>)>,
) -> Option<String> {
    let last = |points: &[(f64, f64)]| {
        let (step, value) = points.last()?;
        Some(format!("{} at step {step}", format(*value)))
    };
    let subtitle: Vec<String> = curves
        .iter()
        .filter_map(|(name, points)| Some(format!("{name} {}", last(points)?)))
        .collect();
    let curves = curves.into_iter().filter(|(_, points)| !points.is_empty());
    let few = |points: &[(f64, f64)]| points.len() <= 40;
    let series = curves.map(|(name, points)| {
        if few(&points) {
            let points = points.iter().map(|&(x, y)| lockstep_plot::Point::new(x, y)).collect();
            return Series::line(name, points);
        }
        Series::curve(name, &downsample(&points, NUM_COLUMNS))
    });
    let series: Vec<Series> = series.collect();
    if series.is_empty() {
        return None;
    }
    let chart = LineChart {
        title: Title::new(title, subtitle.join(", ")),
        x: Axis::new("step", |value| format!("{value}")),
        y: Axis::new(unit, format),
        series,
        notes: vec![],
    };
    Some(chart.svg())
}

/// Memory of the ranks by part, as planned and as measured in pairs.
pub(super) fn memory(planned: &[PlannedMemory], ranks: &[&Rank]) -> Option<String> {
    let first = planned.first()?;
    let names = first.parts.iter().map(|(name, _)| *name);
    let parts = names.zip(palette::LIGHT.parts).collect();
    let gib = |bytes: u64| bytes as f64 / GIB;
    let bars_of = |planned: &PlannedMemory| {
        let number = planned.rank;
        let values = planned.parts.iter().map(|(_, bytes)| gib(*bytes)).collect();
        let plan = StackedBar { name: format!("rank {number} planned"), values };
        let held = ranks.iter().find(|rank| rank.rank == number).and_then(|rank| rank.memory);
        let measured = held.map(|held| {
            let parts =
                [held.weights, held.gradients, held.optimizer, held.activations, held.buffers];
            // The copy for a checkpoint is not measured.
            let values = parts.map(gib).into_iter().chain([0.0]).collect();
            StackedBar { name: format!("rank {number} measured"), values }
        });
        [Some(plan), measured].into_iter().flatten()
    };
    let bars = planned.iter().take(MAX_BARS).flat_map(bars_of).collect();
    let subtitle = match planned.len().saturating_sub(MAX_BARS) {
        0 => "by part".to_owned(),
        more => format!("by part; {more} more ranks are not drawn"),
    };
    let process = ranks.iter().filter_map(|rank| rank.resident_bytes).max();
    let chart = StackedBars {
        title: Title::new("Planned memory of each rank, and measured", subtitle),
        axis: Axis::new("GiB", digits),
        format: |value| Bytes((value * GIB) as u64).to_string(),
        parts,
        bars,
        limit: process.map(|bytes| (gib(bytes), "measured, largest process".to_owned())),
    };
    Some(chart.svg())
}

/// Bytes of a step by sender and receiver.
pub(super) fn matrix(planned: &Value) -> Option<String> {
    let rows = planned["matrix"].as_array()?;
    let mut cells = Vec::new();
    for (row, values) in rows.iter().enumerate() {
        for (column, value) in values.as_array()?.iter().enumerate() {
            let bytes = value.as_u64().unwrap_or(0);
            if bytes > 0 {
                let text = match rows.len() {
                    few if few <= MAX_CELLS => si_bytes(bytes),
                    _ => String::new(),
                };
                cells.push(Cell { row, column, value: bytes as f64, text });
            }
        }
    }
    let names: Vec<String> = (0..rows.len()).map(|rank| rank.to_string()).collect();
    let map = HeatMap {
        title: Title::new("Bytes between ranks", "of a step, as its program plans them"),
        x_label: "receiving rank".to_owned(),
        y_label: "sending rank".to_owned(),
        columns: names.clone(),
        rows: names,
        cells,
    };
    Some(map.svg())
}

/// Activities of a timeline, each with the beginnings of its actions.
const ACTIVITIES: [(&str, Fill, &[&str]); 8] = [
    ("forward", Fill::Dark(palette::task(0)), &["forward"]),
    ("backward", Fill::Light(palette::task(1)), &["backward"]),
    ("input gradient", Fill::Light(palette::task(2)), &["input gradient"]),
    ("weight gradient", Fill::Dark(palette::task(3)), &["weight gradient"]),
    ("recompute", Fill::Dark(palette::task(4)), &["recompute"]),
    ("update", Fill::Dark(palette::task(5)), &["update", "direction", "gradient norm", "unscale"]),
    (
        "communication",
        Fill::Hatched,
        &["send", "receive", "reduce", "gather", "tensor collective", "agree", "push", "pull"],
    ),
    ("other", Fill::Dotted, &[]),
];

/// The planned program of a step above those that ranks measured in a sampled step.
pub(super) fn timeline(
    planned: Option<&Value>,
    step: Option<u64>,
    measured: &[(usize, &[TaskSpan])],
) -> Option<String> {
    let mut tracks = Vec::new();
    for track in planned.and_then(|planned| planned["tracks"].as_array()).into_iter().flatten() {
        let name = track["name"].as_str().unwrap_or_default();
        let spans = track["spans"].as_array().into_iter().flatten();
        let span = |span: &Value| {
            let number = |at: usize| span[at].as_f64().unwrap_or(0.0);
            draw_span(span[2].as_str().unwrap_or_default(), number(0), number(1))
        };
        tracks.push(Track { name: format!("{name}, planned"), spans: spans.map(span).collect() });
    }
    let num_planned = tracks.len();
    tracks.extend(measured.iter().flat_map(|(rank, tasks)| measured_tracks(*rank, tasks)));
    // Measured tracks come last and stay; of the planned ones, those of the first ranks do.
    let num_hidden = tracks.len().saturating_sub(MAX_TRACKS).min(num_planned);
    tracks.drain(num_planned - num_hidden..num_planned);
    tracks.truncate(MAX_TRACKS);
    let mut room = MAX_SPANS;
    for track in &mut tracks {
        track.spans.truncate(room);
        room -= track.spans.len();
    }
    tracks.retain(|track| !track.spans.is_empty());
    if tracks.is_empty() {
        return None;
    }
    let step = step.map_or_else(String::new, |step| format!(", measured in step {step}"));
    let chart = Timeline {
        title: Title::new("The step in time", format!("planned{step}")),
        axis: Axis::new("time", |seconds| Seconds(seconds).to_string()),
        activities: ACTIVITIES
            .map(|(name, fill, _)| Activity { name: name.to_owned(), fill })
            .to_vec(),
        tracks,
        num_hidden,
        track_height: 24.0,
    };
    Some(chart.svg())
}

/// Measured tasks of a rank. Those of several queues overlap: each goes into the first track that
/// is free.
fn measured_tracks(rank: usize, tasks: &[TaskSpan]) -> Vec<Track> {
    let (mut tracks, mut ends): (Vec<Track>, Vec<f64>) = (Vec::new(), Vec::new());
    for (_, action, start, seconds) in tasks {
        let free = ends.iter().position(|end| *end <= start + 1e-9);
        let at = free.unwrap_or_else(|| {
            let kind = if ends.is_empty() { "measured" } else { "background" };
            tracks.push(Track { name: format!("rank {rank}, {kind}"), spans: Vec::new() });
            ends.push(0.0);
            ends.len() - 1
        });
        tracks[at].spans.push(draw_span(action, *start, *seconds));
        ends[at] = start + seconds;
    }
    tracks
}

fn draw_span(action: &str, start: f64, seconds: f64) -> Span {
    let is_it = |starts: &[&str]| starts.iter().any(|start| action.starts_with(start));
    let activity = ACTIVITIES.iter().position(|(_, _, starts)| is_it(starts));
    let tooltip = format!("{action}: {} from {}", Seconds(seconds), Seconds(start));
    let (end, activity) = (start + seconds, activity.unwrap_or(ACTIVITIES.len() - 1));
    Span { activity, start, end, label: String::new(), tooltip, opacity: 1.0 }
}
