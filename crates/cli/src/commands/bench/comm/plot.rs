//! Bus bandwidth over size as a picture, both axes logarithmic, with the limit of memory.
//!
//! An SVG is text, so it is written as text. One line for every operation (and algorithm, where
//! several were asked for), the limit beside it in the same colour and dashed, and the name of the
//! algorithm at every point: where the library chose, that is where the line bends.

use super::report::{Row, heading};
use crate::svg::{COLOURS, escaped, path, rule, text};
use lockstep_config::units::{Bytes, BytesPerSecond};
use std::fmt::Write;

const WIDTH: f64 = 1080.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 240.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 64.0;

/// One line of the picture.
struct Series<'a> {
    name: String,
    rows: Vec<&'a Row>,
    colour: &'static str,
}

/// The picture.
pub(super) fn draw(rows: &[Row]) -> String {
    let series = series(rows);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = rows.first().map(heading).unwrap_or_default();
    text(
        &mut svg,
        (LEFT, 28.0),
        "font-size=\"17\" font-weight=\"bold\"",
        "Bus bandwidth over size",
    );
    text(&mut svg, (LEFT, 48.0), "fill=\"#444444\"", &title);
    if series.is_empty() {
        text(&mut svg, (LEFT, HEIGHT / 2.0), "", "nothing moved, so there is nothing to draw");
    } else {
        let frame = Frame::around(&series);
        frame.axes(&mut svg);
        for (index, line) in series.iter().enumerate() {
            frame.line(&mut svg, line, index, series.len());
        }
        legend(&mut svg, &series);
    }
    svg += "</svg>\n";
    svg
}

/// Rows that belong to one line: sizes ascend within it.
fn series(rows: &[Row]) -> Vec<Series<'_>> {
    let mut all: Vec<Vec<&Row>> = Vec::new();
    for row in rows.iter().filter(|row| row.bytes > 0 && row.bus_bytes_per_second > 0.0) {
        match all.last_mut() {
            Some(line) if line.iter().all(|r| r.op == row.op && r.bytes < row.bytes) => {
                line.push(row);
            }
            _ => all.push(vec![row]),
        }
    }
    let is_compared =
        |rows: &[&Row]| all.iter().filter(|other| other[0].op == rows[0].op).count() > 1;
    let name = |rows: &[&Row]| {
        let Row { op, algorithm, .. } = rows[0];
        if is_compared(rows) { format!("{op}, {algorithm}") } else { op.clone() }
    };
    let named: Vec<String> = all.iter().map(|rows| name(rows)).collect();
    let coloured = all.into_iter().zip(named).enumerate();
    coloured
        .map(|(index, (rows, name))| Series { name, rows, colour: COLOURS[index % COLOURS.len()] })
        .collect()
}

/// What lies where: both axes in powers, the horizontal one of two, the vertical one of ten.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    fn around(series: &[Series<'_>]) -> Self {
        let rows = || series.iter().flat_map(|line| &line.rows);
        let span = |values: &mut dyn Iterator<Item = f64>| {
            values
                .fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
        };
        let x = span(&mut rows().map(|row| (row.bytes as f64).log2()));
        let speeds = rows().flat_map(|row| [row.bus_bytes_per_second, limit_of(row)]);
        let y = span(&mut speeds.filter(|&speed| speed > 0.0).map(f64::log10));
        // Room for names above and for a single point, and whole halves of a power of ten.
        let x = if x.1 - x.0 < 1.0 { (x.0 - 1.0, x.1 + 1.0) } else { (x.0 - 0.4, x.1 + 0.4) };
        let y = ((2.0 * (y.0 - 0.1)).floor() / 2.0, (2.0 * (y.1 + 0.1)).ceil() / 2.0);
        Self { x, y }
    }

    fn rank_env(&self, bytes: f64, speed: f64) -> (f64, f64) {
        let share = |value: f64, (low, high): (f64, f64)| (value - low) / (high - low);
        let x = LEFT + share(bytes.log2(), self.x) * (WIDTH - LEFT - RIGHT);
        let y = HEIGHT - BOTTOM - share(speed.log10(), self.y) * (HEIGHT - TOP - BOTTOM);
        (x, y)
    }

    fn axes(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let (first, last) = (self.x.0.ceil() as i32, self.x.1.floor() as i32);
        // At most a dozen labels.
        let step = ((last - first) / 11 + 1).max(1);
        for power in (first..=last).step_by(step as usize) {
            let bytes = f64::from(power).exp2();
            let (x, _) = self.rank_env(bytes, 1.0);
            rule(svg, (x, TOP), (x, bottom), "#e4e4e4");
            let label = Bytes(bytes as u64).to_string();
            text(svg, (x, bottom + 20.0), "text-anchor=\"middle\"", &label);
        }
        for power in self.y.0.floor() as i32..=self.y.1.ceil() as i32 {
            for digit in [1.0, 2.0, 5.0] {
                let speed = digit * 10_f64.powi(power);
                if (self.y.0..=self.y.1).contains(&speed.log10()) {
                    let (_, y) = self.rank_env(1.0, speed);
                    let shade = if digit < 2.0 { "#c8c8c8" } else { "#ececec" };
                    rule(svg, (LEFT, y), (right, y), shade);
                    let label = BytesPerSecond(speed).to_string();
                    text(svg, (LEFT - 8.0, y + 4.0), "text-anchor=\"end\"", &label);
                }
            }
        }
        rule(svg, (LEFT, bottom), (right, bottom), "#444444");
        rule(svg, (LEFT, TOP), (LEFT, bottom), "#444444");
        let middle = f64::midpoint(LEFT, right);
        let centred = "text-anchor=\"middle\" font-size=\"13\"";
        text(svg, (middle, HEIGHT - 18.0), centred, "size of the vector");
        let turned = format!("{centred} transform=\"rotate(-90 18 {:.0})\"", HEIGHT / 2.0);
        text(svg, (18.0, HEIGHT / 2.0), &turned, "bus bandwidth");
    }

    /// One series: the limit first, so that what was measured lies on top of it.
    fn line(&self, svg: &mut String, line: &Series<'_>, index: usize, num_series: usize) {
        let limit: Vec<(f64, f64)> = line
            .rows
            .iter()
            .filter(|row| limit_of(row) > 0.0)
            .map(|row| self.rank_env(row.bytes as f64, limit_of(row)))
            .collect();
        let dashes = "stroke-dasharray=\"6 4\" stroke-width=\"1.5\" opacity=\"0.75\"";
        path(svg, &limit, line.colour, dashes);
        let points: Vec<(f64, f64)> = line
            .rows
            .iter()
            .map(|row| self.rank_env(row.bytes as f64, row.bus_bytes_per_second))
            .collect();
        path(svg, &points, line.colour, "stroke-width=\"2.5\"");
        let mut last_named = "";
        for (row, &(x, y)) in line.rows.iter().zip(&points) {
            let fill = if row.verified { line.colour } else { "white" };
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{fill}\" stroke=\"{}\" \
                 stroke-width=\"2\"><title>{}</title></circle>",
                line.colour,
                escaped(&words(row)),
            );
            // With many lines, only where the algorithm changes: names would cover each other.
            if num_series <= 2 || row.algorithm != last_named {
                let below = if index.is_multiple_of(2) { 20.0 } else { -12.0 };
                // White around the letters first: they stay readable across lines.
                let centred = "text-anchor=\"middle\" font-size=\"11\"";
                let around = format!("{centred} stroke=\"white\" stroke-width=\"4\"");
                text(svg, (x, y + below), &around, &row.algorithm);
                let style = format!("{centred} fill=\"{}\"", line.colour);
                text(svg, (x, y + below), &style, &row.algorithm);
                last_named = &row.algorithm;
            }
        }
    }
}

/// The limit as a bandwidth of the same kind.
fn limit_of(row: &Row) -> f64 {
    row.limit_bus_bytes_per_second
}

fn words(row: &Row) -> String {
    let Row { op, algorithm, median_us, .. } = row;
    let (size, speed) = (Bytes(row.bytes as u64), BytesPerSecond(row.bus_bytes_per_second));
    let verified = if row.verified { "" } else { ", WRONG" };
    format!("{op} of {size} by {algorithm}: {median_us:.2} us, {speed}{verified}")
}

/// Beside the picture, where it covers nothing.
fn legend(svg: &mut String, series: &[Series<'_>]) {
    let x = WIDTH - RIGHT + 20.0;
    let mut y = TOP + 12.0;
    for line in series {
        path(svg, &[(x, y - 4.0), (x + 28.0, y - 4.0)], line.colour, "stroke-width=\"2.5\"");
        text(svg, (x + 36.0, y), "", &line.name);
        y += 20.0;
    }
    let dashes = "stroke-dasharray=\"6 4\" stroke-width=\"1.5\"";
    let colour = if series.len() == 1 { series[0].colour } else { "#444444" };
    path(svg, &[(x, y - 4.0), (x + 28.0, y - 4.0)], colour, dashes);
    text(svg, (x + 36.0, y), "", "limit: sweep over memory");
    let notes = ["medians of the slowest rank", "at each point: the algorithm"];
    for (index, note) in notes.iter().enumerate() {
        let rank_env = (x, y + 32.0 + 18.0 * index as f64);
        text(svg, rank_env, "fill=\"#444444\" font-size=\"11\"", note);
    }
}
