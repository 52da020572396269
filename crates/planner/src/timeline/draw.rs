//! A timeline as text: a row for each device, time from left to right.
//!
//! A pass is its letter and the number of its microbatch, followed by a line as long as it takes;
//! dots are idle time. Where there is no room for numbers, letters alone are drawn.

use super::{Span, Timeline};
use std::fmt::Write;

/// Draws a timeline at most so many columns wide.
pub fn draw(timeline: &Timeline, num_columns: usize) -> String {
    let digits = timeline.devices.len().saturating_sub(1).to_string().len();
    let width = num_columns.saturating_sub(digits + 2).max(1);
    let mut text = String::new();
    for (device, spans) in timeline.devices.iter().enumerate() {
        let row = row(timeline, spans, width);
        let _ = writeln!(text, "{device:>digits$}  {row}");
    }
    text
}

fn row(timeline: &Timeline, spans: &[Span], width: usize) -> String {
    let scale = width as f64 / timeline.seconds().0;
    let mut cells = vec!['·'; width];
    for span in spans {
        let column = |seconds: f64| ((seconds * scale).round() as usize).min(width);
        let (start, end) = (column(span.start.0), column(span.end.0));
        let label = span.task.to_string();
        let has_room = label.chars().count() < end - start;
        let text = if has_room { label } else { label.chars().take(1).collect() };
        let line = text.chars().chain(std::iter::repeat('─'));
        cells[start..end].iter_mut().zip(line).for_each(|(cell, sign)| *cell = sign);
        // A gap keeps neighbours apart where labels are drawn.
        if has_room {
            cells[end - 1] = ' ';
        }
    }
    cells.into_iter().collect::<String>().trim_end().to_owned()
}
