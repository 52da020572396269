//! Text rendering of a timeline: a row per device, time from left to right.
//!
//! A pass is its letter and the number of its micro-batch, followed by a line as long as its
//! duration; dots are the bubble. Where there is no room for numbers, letters alone are drawn.

use super::{Span, Timeline};
use std::fmt::Write;

/// Draws a timeline at most `num_columns` wide.
pub fn draw(timeline: &Timeline, num_columns: usize) -> String {
    let digits = timeline.devices.len().saturating_sub(1).to_string().len();
    let width = num_columns.saturating_sub(digits + 2).max(1);
    let mut text = String::new();
    let scale = scale(timeline, width);
    let width = (timeline.seconds().0 * scale).round() as usize;
    for (device, spans) in timeline.devices.iter().enumerate() {
        let row = row(spans, scale, width);
        let _ = writeln!(text, "{device:>digits$}  {row}");
    }
    text
}

/// Columns per second: a whole number for the shortest pass, where there is room, so that equal
/// passes look equal.
fn scale(timeline: &Timeline, width: usize) -> f64 {
    let lengths = timeline.devices.iter().flatten().map(|span| (span.end - span.start).0);
    let shortest = lengths.filter(|length| *length > 0.0).fold(f64::INFINITY, f64::min);
    let exact = width as f64 / timeline.seconds().0;
    let whole = (exact * shortest + 1e-9).floor() / shortest;
    if whole > 0.0 { whole } else { exact }
}

fn row(spans: &[Span], scale: f64, width: usize) -> String {
    let mut cells = vec!['·'; width];
    for span in spans {
        let column = |seconds: f64| ((seconds * scale).round() as usize).min(width);
        let (start, end) = (column(span.start.0), column(span.end.0));
        let label = span.task.to_string();
        let has_room = label.chars().count() < end - start;
        let text = if has_room { label } else { label.chars().take(1).collect() };
        let line = text.chars().chain(std::iter::repeat('─'));
        cells[start..end].iter_mut().zip(line).for_each(|(cell, sign)| *cell = sign);
        // A gap separates neighbours with labels.
        if has_room {
            cells[end - 1] = ' ';
        }
    }
    cells.into_iter().collect::<String>().trim_end().to_owned()
}
