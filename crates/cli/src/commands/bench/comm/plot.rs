//! A chart of bus bandwidth over message size, both axes logarithmic, with the limit of memory.
//!
//! One line for each operation (and algorithm, where several were requested), its limit dashed in
//! the same colour, and the algorithm at each point where it changes.

use super::report::{Row, heading};
use lockstep_config::units::{Bytes, BytesPerSecond};
use lockstep_plot::{Axis, LineChart, Point, PointMark, Series, Title};

/// Draws the rows of a measurement.
pub(super) fn draw(rows: &[Row]) -> String {
    let lines = lines(rows);
    let num_lines = lines.len();
    let mut series = Vec::new();
    for (style, (name, rows)) in lines.iter().enumerate() {
        let limit = |row: &&Row| Point::new(row.bytes as f64, row.limit_bus_bytes_per_second);
        let limits = rows.iter().map(limit).filter(|point| point.y > 0.0).collect();
        let limit_name = if style == 0 { "limit: sweep over memory" } else { "" };
        series.push(Series::reference(limit_name, limits, style));
        series.push(Series::line(name.as_str(), points(rows, num_lines)));
    }
    LineChart {
        title: Title::new(
            "Bus bandwidth over message size",
            rows.first().map(heading).unwrap_or_default(),
        ),
        x: Axis::new("message size", |bytes| Bytes(bytes as u64).to_string()).log().powers_of_two(),
        y: Axis::new("bus bandwidth", |speed| BytesPerSecond(speed).to_string()).log(),
        series,
        notes: vec!["median of the slowest rank".to_owned(), "labels: the algorithm".to_owned()],
    }
    .svg()
}

fn points(rows: &[&Row], num_lines: usize) -> Vec<Point> {
    let mut last_algorithm = "";
    let mut points = Vec::new();
    for row in rows {
        // With many lines only where the algorithm changes: labels would cover each other.
        let is_labelled = num_lines <= 2 || row.algorithm != last_algorithm;
        last_algorithm = &row.algorithm;
        points.push(Point {
            tooltip: tooltip(row),
            label: if is_labelled { row.algorithm.clone() } else { String::new() },
            mark: if row.verified { PointMark::Filled } else { PointMark::Hollow },
            ..Point::new(row.bytes as f64, row.bus_bytes_per_second)
        });
    }
    points
}

/// Rows of one line, by ascending size, with the line's name.
fn lines(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut all: Vec<Vec<&Row>> = Vec::new();
    for row in rows.iter().filter(|row| row.bytes > 0 && row.bus_bytes_per_second > 0.0) {
        match all.last_mut() {
            Some(line) if line.iter().all(|r| r.op == row.op && r.bytes < row.bytes) => {
                line.push(row);
            }
            _ => all.push(vec![row]),
        }
    }
    let num_of = |op: &str| all.iter().filter(|line| line[0].op == op).count();
    let name = |row: &Row| {
        let Row { op, algorithm, .. } = row;
        if num_of(op) > 1 { format!("{op}, {algorithm}") } else { op.clone() }
    };
    let names: Vec<String> = all.iter().map(|line| name(line[0])).collect();
    names.into_iter().zip(all).collect()
}

fn tooltip(row: &Row) -> String {
    let Row { op, algorithm, median_us, .. } = row;
    let (size, speed) = (Bytes(row.bytes as u64), BytesPerSecond(row.bus_bytes_per_second));
    let verified = if row.verified { "" } else { ", WRONG" };
    format!("{op} of {size} by {algorithm}: {median_us:.2} µs, {speed}{verified}")
}
