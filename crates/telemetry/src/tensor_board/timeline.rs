//! Image of the tasks of a sampled step: a row for each kind of task, time from left to right.

use std::fmt::Write;

use super::png::Raster;

/// Columns of the image, and of the step in it.
const WIDTH: usize = 1200;

/// Height of a row, and the part of it that a span fills.
const ROW: usize = 20;
const BAR: usize = 16;

/// Lines across the rows, at equal distances.
const NUM_LINES: usize = 10;

/// Background and lines, then colours of neighbouring rows (Okabe and Ito 2008).
const PALETTE: [[u8; 3]; 9] = [
    [255, 255, 255],
    [221, 221, 221],
    [0, 114, 178],
    [230, 159, 0],
    [0, 158, 115],
    [213, 94, 0],
    [86, 180, 233],
    [204, 121, 167],
    [0, 0, 0],
];
const LINE: u8 = 1;
const FIRST_COLOUR: usize = 2;

/// A PNG file and what its rows mean.
#[derive(Debug)]
pub(super) struct TimelineImage {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) file: Vec<u8>,
    pub(super) description: String,
}

/// Draws spans: task, action, start and duration in seconds since the start of the step. None
/// without spans that take time.
pub(super) fn draw(spans: &[(u32, String, f64, f64)]) -> Option<TimelineImage> {
    let end = spans.iter().map(|(_, _, start, duration)| start + duration).fold(0.0, f64::max);
    if end <= 0.0 || !end.is_finite() {
        return None;
    }
    let mut rows: Vec<&str> = Vec::new();
    for (_, action, _, _) in spans {
        let kind = kind_of(action);
        if !rows.contains(&kind) {
            rows.push(kind);
        }
    }
    let mut image = Raster::new(WIDTH, rows.len() * ROW);
    for line in 1..NUM_LINES {
        let column = WIDTH * line / NUM_LINES;
        image.fill(column..column + 1, 0..image.height(), LINE);
    }
    let column = |seconds: f64| (seconds / end * WIDTH as f64) as usize;
    for (_, action, start, duration) in spans {
        let row = rows.iter().position(|kind| *kind == kind_of(action)).expect("listed above");
        let first = column(*start).min(WIDTH - 1);
        // The shortest span is seen too.
        let columns = first..column(start + duration).max(first + 1);
        let colour = FIRST_COLOUR + row % (PALETTE.len() - FIRST_COLOUR);
        let top = row * ROW + (ROW - BAR) / 2;
        image.fill(columns, top..top + BAR, colour as u8);
    }
    let mut description = "Rows from the top:".to_owned();
    for (row, kind) in rows.iter().enumerate() {
        let comma = if row > 0 { "," } else { "" };
        let _ = write!(description, "{comma} {kind}");
    }
    let milliseconds = 1e3 * end;
    let between = milliseconds / NUM_LINES as f64;
    let _ = write!(description, ". Width: {milliseconds:.3} ms; lines every {between:.3} ms.");
    let (width, height) = (image.width(), image.height());
    Some(TimelineImage { width, height, file: image.encode(&PALETTE), description })
}

/// Kind of an action: its words in front of the first number, without that number's name.
fn kind_of(action: &str) -> &str {
    let digit = action.find(|letter: char| letter.is_ascii_digit());
    let Some(digit) = digit else { return action };
    let name = action[..digit].trim_end();
    match name.rsplit_once(' ') {
        Some((kind, unit)) if NAMES.contains(&unit) => kind,
        _ => name,
    }
}

/// Names in front of numbers.
const NAMES: &[&str] =
    &["block", "boundary", "chunk", "matrix", "microbatch", "number", "pair", "part", "to"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_an_action_without_its_numbers() {
        for (action, kind) in [
            ("forward block 3 microbatch 1", "forward"),
            ("input gradient block 0 microbatch 2", "input gradient"),
            ("reduce 2", "reduce"),
            ("gather parameters 11", "gather parameters"),
            ("load batch", "load batch"),
            ("7", ""),
        ] {
            assert_eq!(kind_of(action), kind, "{action}");
        }
    }

    #[test]
    fn every_kind_has_a_row_and_every_span_its_columns() {
        let span = |action: &str, start, duration| (0, action.to_owned(), start, duration);
        let spans = [
            span("forward block 0 microbatch 0", 0.0, 0.5),
            span("reduce 0", 0.5, 0.0),
            span("forward block 1 microbatch 0", 0.75, 0.25),
        ];
        let found = draw(&spans).expect("the step takes time");
        assert_eq!((found.width, found.height), (WIDTH, 2 * ROW));
        let expected =
            "Rows from the top: forward, reduce. Width: 1000.000 ms; lines every 100.000 ms.";
        assert_eq!(found.description, expected);
        assert!(draw(&[]).is_none() && draw(&spans[1..1]).is_none());
        assert!(draw(&[span("reduce 0", 0.0, 0.0)]).is_none(), "no time passes");
    }
}
