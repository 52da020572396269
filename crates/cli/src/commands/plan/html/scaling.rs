//! Throughput over devices, both axes logarithmic, beside ideal scaling.

use lockstep_planner::search::scaling::{Curve, Point as ScalingPoint};
use lockstep_plot::{Axis, LineChart, Point, Series, Title};

/// Draws a curve with its ideal.
pub(in crate::commands::plan) fn picture(title: &str, curve: &Curve) -> String {
    let Some(first) = curve.points.first() else { return "<p>no layout fits</p>\n".into() };
    let last = curve.points.last().map_or(first.devices, |point| point.devices);
    let ideal = |devices: u64| {
        let speed = first.sequences_per_second * devices as f64 / first.devices as f64;
        Point::new(devices as f64, speed)
    };
    let points = curve.points.iter().map(point).collect();
    let devices = curve.points.iter().map(|point| point.devices as f64).collect();
    let notes = curve.pays_up_to.map(|devices| {
        vec![
            format!("pays up to {devices} devices:"),
            "each doubling gains at least".to_owned(),
            "half of the ideal".to_owned(),
        ]
    });
    LineChart {
        title: Title::new(title, "throughput and share of ideal scaling of the best layouts"),
        x: Axis::new("devices", |value| format!("{value}")).log().ticks_at(devices),
        y: Axis::new("sequences per second", |value| format!("{value}")).log(),
        series: vec![
            Series::reference("ideal", vec![ideal(first.devices), ideal(last)], 6),
            Series::line("best layouts", points),
        ],
        notes: notes.unwrap_or_default(),
    }
    .svg()
}

fn point(point: &ScalingPoint) -> Point {
    let ScalingPoint { layout, batch, step_seconds, .. } = point;
    Point {
        tooltip: format!("{layout}: global batch {batch}, {step_seconds:.3} s per step"),
        label: format!("{:.1}, {:.0} %", point.sequences_per_second, 100.0 * point.efficiency),
        ..Point::new(point.devices as f64, point.sequences_per_second)
    }
}
