//! SVG rendering of a timeline, self-contained: no external fonts or scripts.

use super::{Span, Timeline};
use lockstep_schedule::pipeline::Pass;
use std::fmt::Write;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 64.0;
const ROW: f64 = 30.0;
const BAR: f64 = 24.0;
/// Least width of a bar with a label.
const MIN_LABEL: f64 = 13.0;

/// Colours of passes: distinguishable with red-green blindness, and in grey.
const fn colour(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "#4477aa",
        Pass::Backward => "#ddaa33",
        Pass::InputGrad => "#66ccee",
        Pass::WeightGrad => "#bb5566",
    }
}

const fn name(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "forward",
        Pass::Backward => "backward",
        Pass::InputGrad => "input gradient",
        Pass::WeightGrad => "weight gradient",
    }
}

/// Draws a timeline with its own title.
pub fn svg(timeline: &Timeline) -> String {
    let shape = timeline.pipeline.shape;
    let peak = (0..timeline.devices.len()).map(|device| timeline.peak_live_microbatches(device));
    let title = format!(
        "{}: {} devices, {} micro-batches",
        timeline.pipeline.kind, shape.num_devices, shape.num_microbatches
    );
    let subtitle = format!(
        "{} per step, bubble {:.2} %, at most {} live micro-batches per device",
        timeline.seconds(),
        100.0 * timeline.bubble(),
        peak.fold(0.0, f64::max),
    );
    svg_with_title(timeline, &title, &subtitle)
}

/// Draws a timeline under a given title and subtitle.
pub fn svg_with_title(timeline: &Timeline, title: &str, subtitle: &str) -> String {
    let num_devices = timeline.devices.len() as f64;
    let height = TOP + ROW * num_devices + 44.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    header(timeline, title, subtitle, &mut text);
    let scale = (WIDTH - LEFT - RIGHT) / timeline.seconds().0;
    for (device, spans) in timeline.devices.iter().enumerate() {
        let y = TOP + ROW * device as f64;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">device {device}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"#eeeeee\"/>",
            LEFT - 8.0,
            y + 16.5,
            scale * timeline.seconds().0,
        );
        for span in spans {
            bar(timeline, span, y, scale, &mut text);
        }
    }
    axis(timeline, TOP + ROW * num_devices + 6.0, scale, &mut text);
    text + "</svg>\n"
}

/// Title, subtitle and legend.
fn header(timeline: &Timeline, title: &str, subtitle: &str, text: &mut String) {
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n\
         <text x=\"{LEFT}\" y=\"40\" fill=\"#444444\">{subtitle}</text>",
    );
    let mut x = WIDTH - RIGHT;
    let passes = [Pass::WeightGrad, Pass::InputGrad, Pass::Backward, Pass::Forward];
    let used = |pass: &Pass| {
        let mut tasks = timeline.pipeline.programs.iter().flatten();
        tasks.any(|task| task.pass == *pass)
    };
    for pass in passes.into_iter().filter(used) {
        let label = name(pass);
        x -= 7.0 * label.len() as f64 + 34.0;
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"12\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"22\">{label}</text>",
            colour(pass),
            x + 18.0,
        );
    }
}

fn bar(timeline: &Timeline, span: &Span, y: f64, scale: f64, text: &mut String) {
    let (x, width) = (LEFT + scale * span.start.0, scale * (span.end.0 - span.start.0));
    let task = span.task;
    // Later virtual stages of a device are paler, to show interleaving.
    let opacity = 1.0 - 0.5 * task.chunk as f64 / timeline.pipeline.shape.num_chunks as f64;
    let _ = write!(
        text,
        "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{BAR}\" fill=\"{}\" \
         fill-opacity=\"{opacity:.2}\" stroke=\"white\" stroke-width=\"0.7\"><title>{task}, {} to \
         {}</title></rect>",
        colour(task.pass),
        span.start,
        span.end,
    );
    let label = task.microbatch.to_string();
    if width >= MIN_LABEL.max(8.0 * label.len() as f64) {
        let ink = if matches!(task.pass, Pass::Forward | Pass::WeightGrad) && opacity > 0.7 {
            "white"
        } else {
            "black"
        };
        let _ = write!(
            text,
            "<text x=\"{:.2}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"{ink}\">{label}</text>",
            x + width / 2.0,
            y + 16.5,
        );
    }
    text.push('\n');
}

/// Time axis with ten ticks.
fn axis(timeline: &Timeline, y: f64, scale: f64, text: &mut String) {
    let all = timeline.seconds();
    for tick in 0..=10 {
        let seconds = all * (f64::from(tick) / 10.0);
        let x = LEFT + scale * seconds.0;
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"#888888\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444444\">{seconds}\
             </text>",
            y + 5.0,
            y + 19.0,
        );
    }
}
