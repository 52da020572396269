//! A cluster's plan as one page: memory, timeline, scaling. It needs nothing from elsewhere.

use super::cluster::Asked;
use lockstep_estimate::memory::Memory;
use lockstep_estimate::search::scaling::Curve;
use lockstep_estimate::search::{Choice, Found};
use lockstep_estimate::time;
use lockstep_planner::timeline::svg;
use std::fmt::Write;

/// Colours of parts that people can tell apart who cannot tell red from green.
const PARTS: [(&str, &str); 6] = [
    ("weights", "#4477aa"),
    ("gradients", "#66ccee"),
    ("optimizer", "#228833"),
    ("activations", "#ddaa33"),
    ("for a moment", "#bb5566"),
    ("buffers", "#aa3377"),
];
const WIDTH: f64 = 900.0;
const STYLE: &str = "body{font-family:sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;\
    color:#222}pre{background:#f4f4f4;padding:1em;overflow-x:auto}svg{max-width:100%}\
    h2{margin-top:2em}";

/// The page. `text` is the report for people, which stands on it as it is.
pub(super) fn page(asked: &Asked, found: &Found, curves: &[(&str, &Curve)], text: &str) -> String {
    let title = format!("{} on {}", asked.model.name, asked.cluster.name);
    let title = escaped(&title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<pre>{}</pre>\n",
        escaped(text)
    );
    page += "<h2>Memory of the fullest device</h2>\n";
    page += &memory(asked, &found.best);
    if let Some(picture) = found.best.first().and_then(|choice| timeline(asked, choice)) {
        page += "<h2>The best layout's pipeline, its first microbatches</h2>\n";
        page += &picture;
    }
    for (name, curve) in curves {
        let _ = writeln!(page, "<h2>{}</h2>", escaped(name));
        page += &scaling(curve);
    }
    page + "</body></html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// One bar for each layout, with the device's memory as a line.
fn memory(asked: &Asked, choices: &[Choice]) -> String {
    let capacity = asked.cluster.device.memory_bytes();
    let most = choices.iter().map(|choice| choice.memory.total()).fold(capacity, f64::max);
    let (left, row) = (330.0, 30.0);
    let scale = (WIDTH - left - 90.0) / most;
    let height = row * choices.len() as f64 + 60.0;
    let mut text = opening(height);
    for (index, (name, colour)) in PARTS.iter().enumerate() {
        let x = left + 95.0 * index as f64;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"6\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"15\">{name}</text>",
            x + 14.0
        );
    }
    for (index, choice) in choices.iter().enumerate() {
        let y = 30.0 + row * index as f64;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 15.0,
            escaped(&choice.layout.brief())
        );
        let mut x = left;
        for (bytes, (name, colour)) in parts(&choice.memory).into_iter().zip(PARTS) {
            let width = scale * bytes;
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"22\" \
                 fill=\"{colour}\"><title>{name}: {:.2} GiB</title></rect>",
                gib(bytes)
            );
            x += width;
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\">{:.1} GiB</text>",
            x + 6.0,
            y + 15.0,
            gib(choice.memory.total())
        );
    }
    let line = left + scale * capacity;
    let _ = writeln!(
        text,
        "<line x1=\"{line:.1}\" y1=\"24\" x2=\"{line:.1}\" y2=\"{:.1}\" stroke=\"#222\" \
         stroke-dasharray=\"4 3\"/><text x=\"{line:.1}\" y=\"{:.1}\" text-anchor=\"middle\">\
         {:.0} GiB</text>\n</svg>",
        height - 22.0,
        height - 6.0,
        gib(capacity)
    );
    text
}

const fn parts(memory: &Memory) -> [f64; 6] {
    [
        memory.weights,
        memory.gradients,
        memory.optimizer,
        memory.activations,
        memory.peak,
        memory.buffers,
    ]
}

fn gib(bytes: f64) -> f64 {
    bytes / f64::from(1_u32 << 30)
}

fn opening(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" font-family=\"sans-serif\" font-size=\"12\">\n"
    )
}

/// The pipeline, if the best layout has one.
fn timeline(asked: &Asked, choice: &Choice) -> Option<String> {
    if choice.layout.pipeline < 2 {
        return None;
    }
    let job = asked.question().job(choice.layout);
    Some(svg(&time::timeline(&job, &asked.calibration)?))
}

/// Speed against devices, both in steps of twice as many, with the line of perfect scaling.
fn scaling(curve: &Curve) -> String {
    let Some(first) = curve.points.first() else { return "<p>nothing fits</p>\n".into() };
    let (left, bottom, top) = (90.0, 240.0, 20.0);
    let doublings = |devices: u64| (devices as f64 / first.devices as f64).log2();
    let most = curve.points.last().map_or(1.0, |point| doublings(point.devices)).max(1.0);
    let x = |devices: u64| left + (WIDTH - 2.0 * left) * doublings(devices) / most;
    let y = |speed: f64| {
        let times = (speed / first.sequences_per_second).log2();
        bottom - (bottom - top) * (times / most).clamp(-0.1, 1.0)
    };
    let mut text = opening(bottom + 60.0);
    let _ = writeln!(
        text,
        "<line x1=\"{left}\" y1=\"{bottom}\" x2=\"{:.1}\" y2=\"{top}\" stroke=\"#999\" \
         stroke-dasharray=\"4 3\"/>",
        WIDTH - left
    );
    let line: Vec<String> = curve
        .points
        .iter()
        .map(|p| format!("{:.1},{:.1}", x(p.devices), y(p.sequences_per_second)))
        .collect();
    let _ = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"#4477aa\" stroke-width=\"2\"/>",
        line.join(" ")
    );
    for point in &curve.points {
        let (x, y) = (x(point.devices), y(point.sequences_per_second));
        let _ = writeln!(
            text,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"#4477aa\"><title>{}: {:.3} s a \
             step</title></circle>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1}/s, {:.0} %</text>\n\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            escaped(&point.layout),
            point.step_seconds,
            y - 9.0,
            point.sequences_per_second,
            100.0 * point.efficiency,
            bottom + 18.0,
            point.devices
        );
    }
    if let Some(devices) = curve.pays_up_to {
        let _ = writeln!(
            text,
            "<text x=\"{left}\" y=\"{:.1}\">devices; pays up to {devices}</text>",
            bottom + 42.0
        );
    }
    text + "</svg>\n"
}
