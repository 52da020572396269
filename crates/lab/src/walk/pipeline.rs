//! Walk through a pipeline schedule: a frame lasts one pass of a chunk; a backward pass that is not
//! split takes two.

use super::{Frame, Held, Message, Walk};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_planner::timeline::{PassTimes, Span, StageTimes, Timeline, simulate};
use lockstep_schedule::pipeline::{Kind, Pass, Shape, build};

/// Walks through a schedule with twice as many micro-batches as devices.
pub(super) fn walk(kind: Kind, num_devices: usize) -> Walk {
    let num_microbatches = 2 * num_devices;
    let num_chunks = if kind == Kind::Interleaved { 2 } else { 1 };
    let shape = Shape { num_devices, num_chunks, num_microbatches };
    let pipeline = build(kind, shape).expect("the engine builds it for any size");
    let one = Seconds(1.0);
    let stage = StageTimes { forward: one, input_grad: one, weight_grad: one };
    let times = PassTimes::even(shape, stage, Seconds(0.0));
    let timeline = simulate(&pipeline, &times).expect("no deadlock");
    let end = timeline.seconds().0 as usize;
    let frames = (0..end).map(|tick| frame(&timeline, shape, tick)).collect();
    let chunks = if num_chunks > 1 { " with two chunks each" } else { "" };
    let title = format!("{kind}, {num_devices} devices{chunks}, {num_microbatches} micro-batches");
    let cells = "in the cells: running pass, or saved activations";
    Walk { title, row: "device", column: "micro-batch", cells, frames }
}

fn frame(timeline: &Timeline, shape: Shape, tick: usize) -> Frame {
    let now = tick as f64;
    let mut frame = Frame {
        title: format!("time {tick}"),
        messages: Vec::new(),
        held: Vec::new(),
        sent: vec![Bytes(0); shape.num_devices],
    };
    for (device, spans) in timeline.devices.iter().enumerate() {
        let held = (0..shape.num_microbatches).map(|microbatch| {
            let of_it: Vec<&Span> =
                spans.iter().filter(|span| span.task.microbatch == microbatch).collect();
            held(&of_it, shape.num_chunks, now)
        });
        frame.held.push(held.collect());
        let done_now = spans.iter().filter(|span| (span.end.0 - now - 1.0).abs() < 1e-9);
        frame.messages.extend(done_now.filter_map(|span| message(span, shape, device)));
    }
    frame
}

/// A micro-batch on a device: its running pass, or the chunks whose activations it has saved. They
/// stay in memory until the last pass that needs them.
fn held(spans: &[&Span], num_chunks: usize, now: f64) -> Held {
    if let Some(span) = spans.iter().find(|span| span.start.0 <= now && now < span.end.0) {
        return Held { text: format!("[{}]", span.task), share: 1.0 };
    }
    let is_over = |span: &&&Span| span.end.0 <= now;
    let count = |is_counted: fn(Pass) -> bool| {
        spans.iter().filter(is_over).filter(|span| is_counted(span.task.pass)).count()
    };
    let begun = count(|pass| pass == Pass::Forward);
    let ended = count(|pass| matches!(pass, Pass::Backward | Pass::WeightGrad));
    match begun - ended {
        0 => Held { text: "·".to_owned(), share: 0.0 },
        1 => Held { text: "saved".to_owned(), share: 0.5 / num_chunks as f64 },
        more => {
            Held { text: format!("{more} saved"), share: 0.5 * more as f64 / num_chunks as f64 }
        }
    }
}

/// Message of a pass to the device with the next virtual stage, or with the one before it.
fn message(span: &Span, shape: Shape, device: usize) -> Option<Message> {
    let Shape { num_devices, num_chunks, .. } = shape;
    let stage = span.task.chunk * num_devices + device;
    let (next, tensor) = match span.task.pass {
        Pass::Forward => (stage + 1, "activations"),
        Pass::Backward | Pass::InputGrad => (stage.checked_sub(1)?, "gradients"),
        Pass::WeightGrad => return None,
    };
    let content = format!("{tensor} of micro-batch {}", span.task.microbatch);
    (next < num_chunks * num_devices).then(|| Message {
        source: device,
        target: next % num_devices,
        content,
        bytes: Bytes(0),
    })
}
