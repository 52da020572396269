//! Pipelines: how long devices idle, and how much they keep, by schedule and microbatches.

use super::prelude::*;
use crate::random::Jitter;
use crate::sim::{PlayedPipeline, watch_pipeline};
use lockstep_config::units::Seconds;
use lockstep_planner::pipeline::bubble;
use lockstep_planner::timeline::{PassTimes, StageTimes, simulate};
use lockstep_schedule::pipeline::{Kind, Pass, Pipeline, Shape, Task, build};

experiment!(PipelineBubble, timeline);

const CARD: Card = Card {
    name: "pipeline",
    title: "Pipelines: idle time and live activations of every schedule, by microbatches",
    question: "How many microbatches does a pipeline need, and what do they cost in memory?",
    formula: "bubble = (p-1)/(vm+p-1); live microbatches: GPipe m, 1F1B min(m, p)",
    look: "bubble of 1f1b and gpipe (the same), of interleaved (a v-th), of zero-bubble; \
           live_microbatches beside it; the same with variation=0.2",
    surprise: "m = 2p leaves a third idle, not 5 %: that takes m = 19(p-1); 1F1B does not shrink \
               the bubble of GPipe, it shrinks the memory",
    params: &[
        Param::count("devices", 8.0, (1.0, 64.0), "devices, a stage each"),
        Param::count("microbatches", 16.0, (1.0, 512.0), "microbatches of a step"),
        Param::count("chunks", 2.0, (2.0, 8.0), "stages of a device (interleaved)"),
        Param::number("forward", Unit::Seconds, 0.01, (1e-9, 1e4), "a device's forward pass"),
        Param::number("backward", Unit::Seconds, 0.02, (1e-9, 1e4), "a device's backward pass"),
        Param::number("transfer", Unit::Seconds, 0.0, (0.0, 1e4), "from one device to the next"),
        Param::number("variation", Unit::Number, 0.0, (0.0, 3.0), "log-normal jitter of passes"),
        Param::number("activation", Unit::Bytes, 1.5e9, (0.0, 1e13), "kept of a microbatch"),
    ],
    sweep: ("microbatches", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("schedule", Unit::Word, "schedule"),
        Column::new("step_seconds", Unit::Seconds, "time of a step"),
        Column::new("bubble", Unit::Share, "idle time"),
        Column::new("planned_bubble", Unit::Share, "the planner's, without jitter"),
        Column::new("closed_bubble", Unit::Share, "(p-1)/(vm+p-1), where that is the schedule's"),
        Column::new("live_microbatches", Unit::Count, "microbatches whose activations are kept"),
        Column::new("live_bytes", Unit::Bytes, "activations of the fullest device"),
    ],
    picture: Picture::lines("microbatches", &["bubble"]).by("schedule").log(true, false),
};

/// The schedules, in the order of the table.
const KINDS: [Kind; 5] =
    [Kind::GPipe, Kind::OneFOneB, Kind::Interleaved, Kind::ZeroBubble, Kind::Chimera];

/// A schedule of the engine with the times of its passes.
fn built(at: &Settings, kind: Kind) -> (Pipeline, PassTimes) {
    let backward = at.seconds("backward");
    let device = StageTimes {
        forward: at.seconds("forward"),
        input_grad: Seconds(backward.0 / 2.0),
        weight_grad: Seconds(backward.0 / 2.0),
    };
    let num_chunks = if kind == Kind::Interleaved { at.count("chunks") } else { 1 };
    let (num_devices, num_microbatches) = (at.count("devices"), at.count("microbatches"));
    let shape = Shape { num_devices, num_chunks, num_microbatches };
    let pipeline = build(kind, shape).expect("the card allows only what can be built");
    (pipeline, PassTimes::even(shape, device, at.seconds("transfer")))
}

/// Plays it with jitter; whoever watches is told of every pass.
fn jittered(
    at: &Settings,
    (pipeline, pace): (&Pipeline, &PassTimes),
    random: &mut Random,
    watch: impl FnMut(usize, Task, f64, f64),
) -> PlayedPipeline {
    let jitter = match at.number("variation") {
        variation if variation > 0.0 => Jitter::LogNormal { variation },
        _ => Jitter::None,
    };
    let seconds = |stage: usize, task: Task| {
        let StageTimes { forward, input_grad, weight_grad } = pace.stages[stage];
        let even = match task.pass {
            Pass::Forward => forward,
            Pass::Backward => input_grad + weight_grad,
            Pass::InputGrad => input_grad,
            Pass::WeightGrad => weight_grad,
        };
        even.0 * jitter.factor(random)
    };
    watch_pipeline(pipeline, pace.hop.0, seconds, watch).expect("the engine's schedules end")
}

/// Every schedule one below the other; what is white is idle.
fn timeline(at: &Settings, random: &mut Random) -> Result<Timeline, LabError> {
    let mut tracks = Vec::new();
    let mut idle = Vec::new();
    for kind in KINDS {
        let (pipeline, pace) = built(at, kind);
        let first = tracks.len();
        tracks.extend(
            (0..at.count("devices")).map(|device| Track {
                name: format!("{kind}, device {device}"),
                spans: Vec::new(),
            }),
        );
        let played = jittered(at, (&pipeline, &pace), random, |device, task, start, end| {
            let doing = match task.pass {
                Pass::Forward => Doing::Forward,
                Pass::Backward | Pass::InputGrad => Doing::Backward,
                Pass::WeightGrad => Doing::WeightGrad,
            };
            let span = Span::new(doing, start, end).numbered(task.microbatch);
            tracks[first + device].spans.push(span);
        });
        idle.push(format!("{kind} {}", Unit::Share.show(played.bubble())));
    }
    Ok(Timeline { title: format!("Idle: {}", idle.join(", ")), tracks })
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    for kind in KINDS {
        let (pipeline, pace) = built(at, kind);
        let Shape { num_devices: p, num_chunks, num_microbatches: m } = pipeline.shape;
        let timeline = simulate(&pipeline, &pace).expect("the engine's schedules end");
        let played = jittered(at, (&pipeline, &pace), random, |_, _, _, _| {});
        let is_closed = matches!(kind, Kind::GPipe | Kind::OneFOneB)
            || (kind == Kind::Interleaved && m.is_multiple_of(p));
        let closed = if is_closed { bubble(p, m, num_chunks) } else { f64::NAN };
        let live = (0..p).map(|device| timeline.peak_live_microbatches(device)).fold(0.0, f64::max);
        rows.push(row![
            kind.to_string(),
            played.end,
            played.bubble(),
            timeline.bubble(),
            closed,
            live,
            live * at.number("activation"),
        ]);
    }
    Ok(rows)
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let (schedules, idle) = (table.words("schedule"), table.words("bubble"));
    let of = |name: &str| (0..=end).rev().find(|row| schedules[*row] == name).unwrap_or(end);
    let (one, gpipe, zero) = (of("1f1b"), of("gpipe"), of("zero-bubble"));
    let live = table.words("live_microbatches");
    vec![
        format!("At {}, 1F1B idles {}, zero-bubble {}", place(table, end), idle[one], idle[zero]),
        format!("GPipe keeps {} microbatches alive, 1F1B {}", live[gpipe], live[one]),
    ]
}
