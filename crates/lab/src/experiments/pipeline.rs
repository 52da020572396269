//! Pipeline schedules: bubble and live activations, by schedule and micro-batches.

use super::prelude::*;
use crate::random::Jitter;
use crate::sim::{PipelineRun, trace_pipeline};
use lockstep_config::units::Seconds;
use lockstep_planner::pipeline::bubble;
use lockstep_planner::timeline::{PassTimes, StageTimes, simulate};
use lockstep_schedule::pipeline::{Kind, Pass, Pipeline, Shape, Task, build};

experiment!(PipelineBubble, timeline);

const DESCRIPTION: Description = Description {
    name: "pipeline",
    title: "Pipeline schedules: bubble and live activations, by micro-batches",
    question: "How many micro-batches does a pipeline need, and how much memory do they take?",
    formula: "bubble = (p-1)/(vm+p-1); live micro-batches: GPipe m, 1F1B min(m, p)",
    look: "bubble of 1f1b and gpipe (equal), of interleaved (1/v), of zero-bubble; \
           live_microbatches; both with variation=0.2",
    surprise: "m = 2p has a bubble of a third, not 5 %, which takes m = 19(p-1); 1F1B reduces the \
               memory of GPipe, not its bubble",
    params: &[
        Param::count("devices", 8.0, (1.0, 64.0), "pipeline stages (devices)"),
        Param::count("microbatches", 16.0, (1.0, 512.0), "micro-batches per step"),
        Param::count("chunks", 2.0, (2.0, 8.0), "virtual stages per device (interleaved)"),
        Param::number("forward", Unit::Seconds, 0.01, (1e-9, 1e4), "forward time of a device"),
        Param::number("backward", Unit::Seconds, 0.02, (1e-9, 1e4), "backward time of a device"),
        Param::number("transfer", Unit::Seconds, 0.0, (0.0, 1e4), "transfer time between stages"),
        Param::number("variation", Unit::Number, 0.0, (0.0, 3.0), "log-normal jitter of passes"),
        Param::number(
            "activation",
            Unit::Bytes,
            1.5e9,
            (0.0, 1e13),
            "activations of a micro-batch",
        ),
    ],
    sweep: ("microbatches", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("schedule", Unit::Text, "pipeline schedule"),
        Column::new("step_seconds", Unit::Seconds, "time of a step"),
        Column::new("bubble", Unit::Share, "bubble: idle share"),
        Column::new("planned_bubble", Unit::Share, "planner's bubble without jitter"),
        Column::new("closed_form_bubble", Unit::Share, "(p-1)/(vm+p-1), where it applies"),
        Column::new("live_microbatches", Unit::Count, "peak live micro-batches"),
        Column::new("live_bytes", Unit::Bytes, "peak activations of a device"),
    ],
    chart: ChartSpec::lines("microbatches", &["bubble"]).by("schedule").log(true, false),
};

/// Schedules in the order of the table.
const SCHEDULES: [Kind; 5] =
    [Kind::GPipe, Kind::OneFOneB, Kind::Interleaved, Kind::ZeroBubble, Kind::Chimera];

/// Builds a schedule of the engine and its pass times.
fn build_pipeline(at: &Settings, kind: Kind) -> (Pipeline, PassTimes) {
    let backward = at.seconds("backward");
    let device = StageTimes {
        forward: at.seconds("forward"),
        input_grad: Seconds(backward.0 / 2.0),
        weight_grad: Seconds(backward.0 / 2.0),
    };
    let num_chunks = if kind == Kind::Interleaved { at.count("chunks") } else { 1 };
    let (num_devices, num_microbatches) = (at.count("devices"), at.count("microbatches"));
    let shape = Shape { num_devices, num_chunks, num_microbatches };
    let pipeline = build(kind, shape).expect("all allowed values can be built");
    (pipeline, PassTimes::even(shape, device, at.seconds("transfer")))
}

/// Simulates a pipeline with jitter and calls `observe` for every pass.
fn simulate_with_jitter(
    at: &Settings,
    (pipeline, times): (&Pipeline, &PassTimes),
    random: &mut Random,
    observe: impl FnMut(usize, Task, f64, f64),
) -> PipelineRun {
    let jitter = match at.number("variation") {
        variation if variation > 0.0 => Jitter::LogNormal { variation },
        _ => Jitter::None,
    };
    let seconds = |stage: usize, task: Task| {
        let StageTimes { forward, input_grad, weight_grad } = times.stages[stage];
        let mean = match task.pass {
            Pass::Forward => forward,
            Pass::Backward => input_grad + weight_grad,
            Pass::InputGrad => input_grad,
            Pass::WeightGrad => weight_grad,
        };
        mean.0 * jitter.factor(random)
    };
    trace_pipeline(pipeline, times.hop.0, seconds, observe).expect("no deadlock")
}

/// Tracks of all devices of all schedules; gaps are the bubble.
fn timeline(at: &Settings, random: &mut Random) -> Result<Timeline, LabError> {
    let mut tracks = Vec::new();
    let mut bubbles = Vec::new();
    for kind in SCHEDULES {
        let (pipeline, times) = build_pipeline(at, kind);
        let first = tracks.len();
        tracks.extend(
            (0..at.count("devices")).map(|device| Track {
                name: format!("{kind}, device {device}"),
                spans: Vec::new(),
            }),
        );
        let run = simulate_with_jitter(
            at,
            (&pipeline, &times),
            &mut random.stream(0),
            |device, task, start, end| {
                let activity = match task.pass {
                    Pass::Forward => Activity::Forward,
                    Pass::Backward | Pass::InputGrad => Activity::Backward,
                    Pass::WeightGrad => Activity::WeightGrad,
                };
                let span = Span::new(activity, start, end).numbered(task.microbatch);
                tracks[first + device].spans.push(span);
            },
        );
        bubbles.push(format!("{kind} {}", Unit::Share.show(run.bubble())));
    }
    let title = format!("Bubble: {}", bubbles.join(", "));
    // The first device of each schedule, should not all fit.
    let named = (0..tracks.len()).step_by(at.count("devices")).collect();
    Ok(Timeline { title, tracks, named })
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    for kind in SCHEDULES {
        let (pipeline, times) = build_pipeline(at, kind);
        let Shape { num_devices: p, num_chunks, num_microbatches: m } = pipeline.shape;
        let timeline = simulate(&pipeline, &times).expect("no deadlock");
        let run =
            simulate_with_jitter(at, (&pipeline, &times), &mut random.stream(0), |_, _, _, _| {});
        let is_closed = matches!(kind, Kind::GPipe | Kind::OneFOneB)
            || (kind == Kind::Interleaved && m.is_multiple_of(p));
        let closed = if is_closed { bubble(p, m, num_chunks) } else { f64::NAN };
        let live = (0..p).map(|device| timeline.peak_live_microbatches(device)).fold(0.0, f64::max);
        rows.push(row![
            kind.to_string(),
            run.end,
            run.bubble(),
            timeline.bubble(),
            closed,
            live,
            live * at.number("activation"),
        ]);
    }
    Ok(rows)
}

fn findings(table: &Table) -> Vec<String> {
    let [one, gpipe, zero] =
        ["1f1b", "gpipe", "zero-bubble"].map(|name| last_with(table, "schedule", name));
    let (bubble, live) = (table.texts("bubble"), table.texts("live_microbatches"));
    vec![
        format!(
            "{}the bubble of 1F1B is {}, of zero-bubble {}",
            at(table, one),
            bubble[one],
            bubble[zero]
        ),
        format!("GPipe has {} live micro-batches, 1F1B {}", live[gpipe], live[one]),
    ]
}
