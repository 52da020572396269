//! A pipeline's timeline as SVG.

use lockstep_config::units::Seconds;
use lockstep_plot::{
    Activity, Axis, Fill, Span as PlotSpan, Timeline as Chart, Title, Track, palette,
};
use lockstep_schedule::pipeline::Pass;

use super::{Span, Timeline};

/// Name and filling of every pass, in the order of the legend.
const PASSES: [(Pass, &str, Fill); 4] = [
    (Pass::Forward, "forward", Fill::Dark(palette::task(0))),
    (Pass::Backward, "backward", Fill::Light(palette::task(1))),
    (Pass::InputGrad, "input gradient", Fill::Light(palette::task(2))),
    (Pass::WeightGrad, "weight gradient", Fill::Dark(palette::task(3))),
];

/// Draws a timeline under a title with its shape, step time and bubble.
pub fn svg(timeline: &Timeline) -> String {
    let shape = timeline.pipeline.shape;
    let live = (0..timeline.devices.len()).map(|device| timeline.peak_live_microbatches(device));
    let title = format!(
        "{}: {} devices, {} micro-batches",
        timeline.pipeline.kind, shape.num_devices, shape.num_microbatches
    );
    let subtitle = format!(
        "{} per step, bubble {:.2} %, at most {} live micro-batches on a device",
        timeline.seconds(),
        100.0 * timeline.bubble(),
        live.fold(0.0, f64::max),
    );
    svg_with_title(timeline, &title, &subtitle)
}

/// Draws a timeline under a given title.
pub fn svg_with_title(timeline: &Timeline, title: &str, subtitle: &str) -> String {
    let activity = |(_, name, fill): (Pass, &str, Fill)| Activity { name: name.to_owned(), fill };
    let track = |(device, spans): (usize, &Vec<Span>)| Track {
        name: format!("device {device}"),
        spans: spans.iter().map(|span| plot_span(timeline, span)).collect(),
    };
    Chart {
        title: Title::new(title, subtitle),
        axis: Axis::new("time", |seconds| Seconds(seconds).to_string()),
        activities: PASSES.map(activity).to_vec(),
        tracks: timeline.devices.iter().enumerate().map(track).collect(),
        num_hidden: 0,
        track_height: 30.0,
    }
    .svg()
}

fn plot_span(timeline: &Timeline, span: &Span) -> PlotSpan {
    let Span { task, start, end } = *span;
    let num_chunks = timeline.pipeline.shape.num_chunks as f64;
    PlotSpan {
        activity: PASSES.iter().position(|row| row.0 == task.pass).expect("every pass is listed"),
        start: start.0,
        end: end.0,
        label: task.microbatch.to_string(),
        tooltip: format!("{task}, {start} to {end}"),
        // Later virtual stages of a device are paler, so that interleaving shows.
        opacity: 1.0 - 0.5 * task.chunk as f64 / num_chunks,
    }
}
