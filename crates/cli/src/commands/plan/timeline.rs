//! `lockstep plan timeline`: a pipeline, played event by event and drawn.

use crate::failure::Failure;
use crate::output;
use lockstep_config::units::Seconds;
use lockstep_planner::timeline::{Pace, StagePace, Timeline, draw, play, svg};
use lockstep_platform::World;
use lockstep_schedule::pipeline::{Kind, Shape, build};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Draw a pipeline: who computes what when, who idles, what is kept
#[derive(clap::Args)]
#[command(after_help = "\
F forward, B backward; I and W are backward in two halves: gradients of the input and of the
weights. F3' is of a device's second stage, F3'' of its third; letters stand alone where there is no
room. Dots are idle time. Times are of a device's whole share of the model and of one microbatch.

Examples:
  lockstep plan timeline                                        1F1B, 4 devices, 8 microbatches
  lockstep plan timeline --schedule gpipe,1f1b,zero-bubble      one below the other
  lockstep plan timeline --schedule interleaved --chunks 2 --svg pipeline.svg
  lockstep plan timeline --devices 8 --microbatches 24 --forward 18.5 --input-grad 18.1 \\
      --weight-grad 9.3 --transfer 0.6 --json")]
pub(crate) struct Arguments {
    /// Schedules, with commas between: gpipe, 1f1b, interleaved, zero-bubble, zero-bubble-2x,
    /// chimera, pipedream
    #[arg(long, default_value = "1f1b", value_delimiter = ',')]
    schedule: Vec<String>,
    /// Devices
    #[arg(long, default_value_t = 4)]
    devices: usize,
    /// Microbatches of a step
    #[arg(long, default_value_t = 8)]
    microbatches: usize,
    /// Stages of each device; only interleaved has several, and at least 2
    #[arg(long, default_value_t = 2)]
    chunks: usize,
    /// Milliseconds of a forward pass
    #[arg(long, default_value_t = 1.0, value_name = "MS")]
    forward: f64,
    /// Milliseconds of the half of backward that the device before waits for
    #[arg(long, default_value_t = 1.0, value_name = "MS")]
    input_grad: f64,
    /// Milliseconds of the other half
    #[arg(long, default_value_t = 1.0, value_name = "MS")]
    weight_grad: f64,
    /// Milliseconds of a transfer to the next device
    #[arg(long, default_value_t = 0.0, value_name = "MS")]
    transfer: f64,
    /// Columns of the drawing
    #[arg(long, default_value_t = 100)]
    width: usize,
    /// Write a picture of the first schedule to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Devices and microbatches beyond which a drawing would take minutes and show nothing.
const MOST: usize = 100_000;

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
            "{}: {} a step, idle {:.2} %{}, at most {} microbatches alive on a device",
            report.schedule,
            timeline.seconds(),
            100.0 * report.bubble_fraction,
            between(&report),
            // Halves of passes are alive too, in thousandths where stages are many.
            (1e3 * most).round() / 1e3,
        );
        text += &draw(timeline, arguments.width);
    }
    output::text(&text)
}

/// What is idle where steps follow each other without waiting, if that is less.
fn between(report: &Report) -> String {
    if report.bubble_fraction - report.cycle_bubble_fraction < 5e-5 {
        return String::new();
    }
    format!(" ({:.2} % once steps overlap)", 100.0 * report.cycle_bubble_fraction)
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
        return Err(Failure::user(format!("{name} {time} is no time in milliseconds; try 1")));
    }
    if times[..3].iter().all(|(_, time)| *time == 0.0) {
        return Err(Failure::user("--forward 0 leaves nothing to draw; try 1"));
    }
    let Arguments { devices, microbatches, .. } = *arguments;
    // A stage for each device and its chunks, except where the schedule has one by its nature.
    let num_chunks = if kind == Kind::Interleaved { arguments.chunks.max(2) } else { 1 };
    if devices.saturating_mul(microbatches).saturating_mul(num_chunks) > MOST {
        return Err(Failure::user(format!(
            "--devices {devices} with --microbatches {microbatches} are more than {MOST} passes; \
             try fewer"
        )));
    }
    let shape = Shape { num_devices: devices, num_chunks, num_microbatches: microbatches };
    let pipeline = build(kind, shape).map_err(|error| Failure::user(error.to_string()))?;
    let ms = |time: f64| Seconds(time * 1e-3);
    let device = StagePace {
        forward: ms(arguments.forward),
        input_grad: ms(arguments.input_grad),
        weight_grad: ms(arguments.weight_grad),
    };
    let pace = Pace::even(shape, device, ms(arguments.transfer));
    play(&pipeline, &pace).ok_or_else(|| Failure::bug("the schedule never ends"))
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
    }
}
