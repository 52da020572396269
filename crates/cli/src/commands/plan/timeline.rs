//! `lockstep plan timeline`: a pipeline schedule, simulated event by event and drawn.

use crate::failure::Failure;
use crate::output;
use lockstep_config::units::Seconds;
use lockstep_planner::timeline::{PassTimes, StageTimes, Timeline, draw, simulate, svg};
use lockstep_platform::World;
use lockstep_schedule::pipeline::{Kind, Shape, build};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Draw a pipeline schedule with its bubble and its live micro-batches
#[derive(clap::Args)]
#[command(after_help = "\
F is forward, B backward; I and W are the input gradient and the weight gradient of a split
backward. PipeDream never drains, so its bubble is that of a full pipeline. F3' is of a device's second virtual stage, F3'' of its third; numbers are left out where
there is no room. Dots are the bubble. Times are of one micro-batch on all stages of a device.

Examples:
  lockstep plan timeline                                        1F1B, 4 devices, 8 micro-batches
  lockstep plan timeline --schedule gpipe,1f1b,zero-bubble      three schedules
  lockstep plan timeline --schedule interleaved --chunks 2 --svg pipeline.svg
  lockstep plan timeline --devices 8 --microbatches 24 --forward 18.5 --input-grad 18.1 \\
      --weight-grad 9.3 --transfer 0.6 --json")]
pub(crate) struct Arguments {
    /// Schedules, separated by commas: gpipe, 1f1b, interleaved, zero-bubble, zero-bubble-2x,
    /// chimera, pipedream
    #[arg(long, default_value = "1f1b", value_delimiter = ',')]
    schedule: Vec<String>,
    /// Number of devices
    #[arg(long, default_value_t = 4)]
    devices: usize,
    /// Micro-batches per step
    #[arg(long, default_value_t = 8)]
    microbatches: usize,
    /// Virtual stages per device, at least 2; for interleaved only
    #[arg(long, default_value_t = 2)]
    chunks: usize,
    /// Milliseconds of the forward pass
    #[arg(long, default_value_t = 1.0, value_name = "MS")]
    forward: f64,
    /// Milliseconds of the input gradient
    #[arg(long, default_value_t = 1.0, value_name = "MS")]
    input_grad: f64,
    /// Milliseconds of the weight gradient
    #[arg(long, default_value_t = 1.0, value_name = "MS")]
    weight_grad: f64,
    /// Milliseconds of a transfer between stages
    #[arg(long, default_value_t = 0.0, value_name = "MS")]
    transfer: f64,
    /// Columns of the drawing
    #[arg(long, default_value_t = 100)]
    width: usize,
    /// Plot the first schedule into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Largest number of passes of a drawing.
const MAX_PASSES: usize = 100_000;

#[derive(Serialize)]
struct Report {
    schedule: String,
    devices: usize,
    microbatches: usize,
    chunks: usize,
    step_seconds: f64,
    cycle_seconds: f64,
    bubble_fraction: f64,
    cycle_bubble_fraction: f64,
    peak_live_microbatches: Vec<f64>,
    /// Versions of its weights that each device keeps.
    weight_versions: Vec<usize>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let timelines = arguments
        .schedule
        .iter()
        .map(|name| timeline(arguments, name))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &arguments.svg {
        world.files().write_atomic(path, svg(&timelines[0]).as_bytes())?;
    }
    if arguments.json {
        return output::json(&timelines.iter().map(report).collect::<Vec<_>>());
    }
    let mut text = String::new();
    for timeline in &timelines {
        let report = report(timeline);
        let most = report.peak_live_microbatches.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            text,
            "{}: {}, at most {} live micro-batches per device{}",
            report.schedule,
            render_bubble(timeline, &report),
            // A split backward keeps fractions of a micro-batch alive.
            (1e3 * most).round() / 1e3,
            render_weight_versions(&report.weight_versions),
        );
        text += &draw(timeline, arguments.width);
    }
    output::text(&text)
}

/// Time and bubble of a step, and of steps that follow without a flush where they differ.
fn render_bubble(timeline: &Timeline, report: &Report) -> String {
    let (drained, cycle) = (100.0 * report.bubble_fraction, 100.0 * report.cycle_bubble_fraction);
    if timeline.pipeline.kind == Kind::PipeDream {
        let seconds = [timeline.cycle_seconds(), timeline.seconds()];
        return format!(
            "{} per step once full, bubble {cycle:.2} % ({} and {drained:.2} % with fill and drain)",
            seconds[0], seconds[1]
        );
    }
    let mut text = format!("{} per step, bubble {drained:.2} %", timeline.seconds());
    if report.bubble_fraction - report.cycle_bubble_fraction >= 5e-5 {
        let _ = write!(text, " ({cycle:.2} % once steps overlap)");
    }
    text
}

/// The weight versions of each device, where any keeps several.
fn render_weight_versions(versions: &[usize]) -> String {
    if versions.iter().all(|count| *count == 1) {
        return String::new();
    }
    let counts: Vec<String> = versions.iter().map(usize::to_string).collect();
    format!(", weight versions by device {}", counts.join(" "))
}

fn timeline(arguments: &Arguments, name: &str) -> Result<Timeline, Failure> {
    let kind: Kind = name.trim().parse().map_err(|error| Failure::user(format!("{error}")))?;
    let times = [
        ("--forward", arguments.forward),
        ("--input-grad", arguments.input_grad),
        ("--weight-grad", arguments.weight_grad),
        ("--transfer", arguments.transfer),
    ];
    if let Some((name, time)) = times.iter().find(|(_, time)| !(0.0..1e9).contains(time)) {
        return Err(Failure::user(format!("{name} {time} is not a time in milliseconds; try 1")));
    }
    if times[..3].iter().all(|(_, time)| *time == 0.0) {
        return Err(Failure::user("--forward 0 leaves nothing to draw; try 1"));
    }
    let Arguments { devices, microbatches, .. } = *arguments;
    // Only the interleaved schedule has several virtual stages per device.
    let num_chunks = if kind == Kind::Interleaved { arguments.chunks.max(2) } else { 1 };
    if devices.saturating_mul(microbatches).saturating_mul(num_chunks) > MAX_PASSES {
        return Err(Failure::user(format!(
            "--devices {devices} with --microbatches {microbatches} exceed {MAX_PASSES} passes; \
             try fewer"
        )));
    }
    let shape = Shape { num_devices: devices, num_chunks, num_microbatches: microbatches };
    let pipeline = build(kind, shape).map_err(|error| Failure::user(error.to_string()))?;
    let ms = |time: f64| Seconds(time * 1e-3);
    let device = StageTimes {
        forward: ms(arguments.forward),
        input_grad: ms(arguments.input_grad),
        weight_grad: ms(arguments.weight_grad),
    };
    let times = PassTimes::even(shape, device, ms(arguments.transfer));
    simulate(&pipeline, &times).ok_or_else(|| Failure::bug("the schedule deadlocks"))
}

fn report(timeline: &Timeline) -> Report {
    let Shape { num_devices, num_chunks, num_microbatches } = timeline.pipeline.shape;
    Report {
        schedule: timeline.pipeline.kind.to_string(),
        devices: num_devices,
        microbatches: num_microbatches,
        chunks: num_chunks,
        step_seconds: timeline.seconds().0,
        cycle_seconds: timeline.cycle_seconds().0,
        bubble_fraction: timeline.bubble(),
        cycle_bubble_fraction: timeline.cycle_bubble(),
        peak_live_microbatches: (0..num_devices)
            .map(|device| timeline.peak_live_microbatches(device))
            .collect(),
        weight_versions: (0..num_devices).map(|device| timeline.weight_versions(device)).collect(),
    }
}
