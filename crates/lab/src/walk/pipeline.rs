//! Walk through a pipeline schedule: a frame lasts one forward pass, a backward pass two frames.

use super::{Frame, Held, Message, Walk};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_planner::timeline::{PassTimes, StageTimes, simulate};
use lockstep_schedule::pipeline::{Kind, Pass, Shape, build};

/// Walks through a schedule with twice as many micro-batches as devices.
pub(super) fn walk(kind: Kind, num_devices: usize) -> Walk {
    let num_microbatches = 2 * num_devices;
    let shape = Shape { num_devices, num_chunks: 1, num_microbatches };
    let pipeline = build(kind, shape).expect("the engine builds it for any size");
    let one = Seconds(1.0);
    let stage = StageTimes { forward: one, input_grad: one, weight_grad: one };
    let times = PassTimes::even(shape, stage, Seconds(0.0));
    let timeline = simulate(&pipeline, &times).expect("no deadlock");
    let end = timeline.seconds().0 as usize;
    let frames = (0..end).map(|tick| {
        let now = tick as f64;
        let mut frame = Frame {
            title: format!("time {tick}"),
            messages: Vec::new(),
            held: Vec::new(),
            sent: vec![Bytes(0); num_devices],
        };
        for (device, spans) in timeline.devices.iter().enumerate() {
            let mut held = vec![Held { text: "·".to_owned(), share: 0.0 }; num_microbatches];
            for span in spans {
                let cell = &mut held[span.task.microbatch];
                let is_now = span.start.0 <= now && now < span.end.0;
                let is_over = span.end.0 <= now;
                let is_forward = span.task.pass == Pass::Forward;
                if is_now {
                    *cell = Held { text: format!("[{}]", span.task), share: 1.0 };
                } else if is_over {
                    // Activations stay in memory until the backward pass.
                    let text = if is_forward { "saved" } else { "·" };
                    *cell =
                        Held { text: text.to_owned(), share: if is_forward { 0.5 } else { 0.0 } };
                }
                let target = if is_forward { device.checked_add(1) } else { device.checked_sub(1) };
                let is_done_now = (span.end.0 - now - 1.0).abs() < 1e-9;
                if let Some(target) = target.filter(|t| is_done_now && *t < num_devices) {
                    let tensor = if is_forward { "activations" } else { "gradients" };
                    let content = format!("{tensor} of micro-batch {}", span.task.microbatch);
                    frame.messages.push(Message {
                        source: device,
                        target,
                        content,
                        bytes: Bytes(0),
                    });
                }
            }
            frame.held.push(held);
        }
        frame
    });
    let frames = frames.collect();
    let title = format!("{kind}, {num_devices} devices, {num_microbatches} micro-batches");
    let cells = "in the cells: running pass, or saved activations";
    Walk { title, row: "device", column: "micro-batch", cells, frames }
}
