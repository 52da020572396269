//! Speed against devices, both in doublings, beside perfect scaling.

use super::{escaped, opening};
use lockstep_estimate::search::scaling::{Curve, Point};
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 430.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 350.0;
const BLUE: &str = "#4477aa";
const GREY: &str = "#888888";

/// Where numbers of devices and speeds stand.
struct Axes {
    devices: [f64; 2],
    speeds: [f64; 2],
}

impl Axes {
    /// From the first point to the last, and to what perfect scaling would reach.
    fn new(first: &Point, points: &[Point]) -> Self {
        let last = points.last().map_or(first.devices, |point| point.devices) as f64;
        let devices = [first.devices as f64, last.max(2.0 * first.devices as f64)];
        let ideal = first.sequences_per_second * devices[1] / devices[0];
        let speeds = points.iter().map(|point| point.sequences_per_second);
        let (low, high) = speeds.fold((first.sequences_per_second, ideal), |(low, high), speed| {
            (low.min(speed), high.max(speed))
        });
        // Room for what stands below the lowest point.
        Self { devices, speeds: [0.7 * low, 1.1 * high] }
    }

    fn x(&self, devices: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * place(devices, self.devices)
    }

    fn y(&self, speed: f64) -> f64 {
        BOTTOM - (BOTTOM - TOP) * place(speed, self.speeds)
    }
}

/// How far a number is on its way from one to another, in doublings.
fn place(number: f64, [from, to]: [f64; 2]) -> f64 {
    (number / from).log2() / (to / from).log2()
}

/// Round numbers between two: 1, 2 and 5 times powers of ten.
fn round_between([from, to]: [f64; 2]) -> Vec<f64> {
    let (low, high) = (from.log10().floor() as i32, to.log10().ceil() as i32);
    let all =
        (low..=high).flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(power)));
    all.filter(|number| (from..=to).contains(number)).collect()
}

/// The curve with axes, what its lines are, and where it stops paying.
pub(super) fn picture(title: &str, curve: &Curve) -> String {
    let Some(first) = curve.points.first() else { return "<p>nothing fits</p>\n".into() };
    let axes = Axes::new(first, &curve.points);
    let mut text = opening(WIDTH, HEIGHT);
    grid(&axes, &curve.points, &mut text);
    let ideal = first.sequences_per_second * axes.devices[1] / axes.devices[0];
    let _ = writeln!(
        text,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{GREY}\" \
         stroke-dasharray=\"5 4\"/>",
        axes.x(axes.devices[0]),
        axes.y(first.sequences_per_second),
        axes.x(axes.devices[1]),
        axes.y(ideal)
    );
    let place = |p: &Point| (axes.x(p.devices as f64), axes.y(p.sequences_per_second));
    let line: Vec<String> = curve
        .points
        .iter()
        .map(|point| {
            let (x, y) = place(point);
            format!("{x:.1},{y:.1}")
        })
        .collect();
    let _ = writeln!(
        text,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{BLUE}\" stroke-width=\"2\"/>",
        line.join(" ")
    );
    for point in &curve.points {
        dot(point, place(point), &mut text);
    }
    legend(title, curve, &mut text);
    text + "</svg>\n"
}

/// Lines of the axes with their numbers and what they count.
fn grid(axes: &Axes, points: &[Point], text: &mut String) {
    for speed in round_between(axes.speeds) {
        let y = axes.y(speed);
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{speed}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0
        );
    }
    for point in points {
        let x = axes.x(point.devices as f64);
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            BOTTOM + 5.0,
            BOTTOM + 20.0,
            point.devices
        );
    }
    let middle = TOP.midpoint(BOTTOM);
    let _ = writeln!(
        text,
        "<polyline points=\"{LEFT},{TOP} {LEFT},{BOTTOM} {:.1},{BOTTOM}\" fill=\"none\" \
         stroke=\"#222\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">devices</text>\
         <text x=\"24\" y=\"{middle}\" text-anchor=\"middle\" \
         transform=\"rotate(-90 24 {middle})\">sequences a second</text>",
        WIDTH - RIGHT,
        LEFT.midpoint(WIDTH - RIGHT),
        BOTTOM + 42.0
    );
}

/// A point, its speed and how much of the first one's a device has; the layout under the mouse.
fn dot(point: &Point, (x, y): (f64, f64), text: &mut String) {
    // Beside the line that it lies below or above.
    let (name_x, name_y, anchor) = if point.efficiency > 1.005 {
        (x - 7.0, y - 7.0, "end")
    } else {
        (x + 7.0, y + 15.0, "start")
    };
    let _ = writeln!(
        text,
        "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{BLUE}\"><title>{}: batch {}, {:.3} s \
         a step</title></circle>\
         <text x=\"{name_x:.1}\" y=\"{name_y:.1}\" text-anchor=\"{anchor}\">{:.1}, {:.0} %</text>",
        escaped(&point.layout),
        point.batch,
        point.step_seconds,
        point.sequences_per_second,
        100.0 * point.efficiency
    );
}

/// What it is and what the lines are, in rows above the picture; below it where more do not pay.
fn legend(title: &str, curve: &Curve, text: &mut String) {
    let _ = writeln!(
        text,
        "<text x=\"{LEFT}\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{}</text>\n\
         <line x1=\"{LEFT}\" y1=\"38\" x2=\"{:.1}\" y2=\"38\" stroke=\"{BLUE}\" \
         stroke-width=\"2\"/><circle cx=\"{:.1}\" cy=\"38\" r=\"4\" fill=\"{BLUE}\"/>\
         <text x=\"{:.1}\" y=\"42\">best layouts: sequences a second, and the share of ideal \
         speed</text>\n\
         <line x1=\"{LEFT}\" y1=\"58\" x2=\"{:.1}\" y2=\"58\" stroke=\"{GREY}\" \
         stroke-dasharray=\"5 4\"/>\
         <text x=\"{:.1}\" y=\"62\">ideal: as many times the speed as devices</text>",
        escaped(title),
        LEFT + 30.0,
        LEFT + 15.0,
        LEFT + 38.0,
        LEFT + 30.0,
        LEFT + 38.0
    );
    if let Some(devices) = curve.pays_up_to {
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"{:.1}\" fill=\"#444444\">pays up to {devices} devices: each \
             doubling brings at least half as much speed again</text>",
            BOTTOM + 66.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_halfway_in_doublings_stands_halfway() {
        assert!((place(4.0, [1.0, 16.0]) - 0.5).abs() < 1e-12);
        assert_eq!(round_between([3.0, 120.0]), [5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(round_between([0.15, 0.6]), [0.2, 0.5]);
    }
}
