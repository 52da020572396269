//! A timeline: micro-batches one below the other, what is done as bars that differ by shade and hatching.

use super::axis::Axis;
use super::canvas::{Anchor, Canvas};
use crate::card::{Card, Unit};
use crate::timeline::{Doing, Timeline};

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 96.0;
const MICROBATCH: f64 = 20.0;
/// Micro-batches beyond which a picture would be a wall.
const MOST_MICROBATCHES: usize = 48;
/// Pixels of a letter inside a bar, about.
const LETTER: f64 = 6.5;

/// Stripes, so that sums and waiting are told from computing without colours.
const PATTERNS: &str = "<defs>\
    <pattern id=\"sum\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#ffe3c2\"/>\
    <rect width=\"2.4\" height=\"6\" fill=\"#f2a25f\"/></pattern>\
    <pattern id=\"wait\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
    <rect width=\"6\" height=\"6\" fill=\"white\"/>\
    <circle cx=\"2\" cy=\"2\" r=\"0.9\" fill=\"#777777\"/></pattern></defs>\n";

const fn fill(doing: Doing) -> &'static str {
    match doing {
        Doing::Compute | Doing::Forward => "#c9dff0",
        Doing::Backward => "#2f6595",
        Doing::Weights => "#8fb3d1",
        Doing::Sum => "url(#sum)",
        Doing::Wait => "url(#wait)",
    }
}

/// The picture.
pub(super) fn draw(card: &Card, timeline: &Timeline) -> String {
    let microbatches = &timeline.microbatches[..timeline.microbatches.len().min(MOST_MICROBATCHES)];
    let bottom = TOP + MICROBATCH * microbatches.len() as f64;
    let mut canvas = Canvas::new(WIDTH, bottom + 62.0, &timeline.title, card.title);
    canvas.raw(PATTERNS);
    let times = [0.0, timeline.end()];
    let places = (LEFT, WIDTH - RIGHT);
    let axis = Axis::around(times.into_iter(), false, Unit::Seconds, places);
    for (value, words) in axis.ticks() {
        let x = axis.place(value);
        canvas.rule((x, TOP), (x, bottom), "#e6e6e6");
        canvas.text((x, bottom + 18.0), Anchor::Middle, &words);
    }
    for (index, microbatch) in microbatches.iter().enumerate() {
        let y = TOP + MICROBATCH * index as f64;
        canvas.text((LEFT - 8.0, y + 14.0), Anchor::End, &microbatch.name);
        for span in &microbatch.spans {
            let (start, end) = (axis.place(span.start.0), axis.place(span.end.0));
            let said = format!(
                "{} {}: {} to {}",
                span.doing.words(),
                span.words,
                Unit::Seconds.show(span.start.0),
                Unit::Seconds.show(span.end.0)
            );
            canvas.bar((start, y + 2.0), (end - start, MICROBATCH - 4.0), fill(span.doing), &said);
            let needed = LETTER * span.words.chars().count() as f64;
            if !span.words.is_empty() && end - start > needed {
                let ink = match span.doing {
                    Doing::Backward => "fill=\"white\" font-size=\"10\"",
                    _ => "font-size=\"10\"",
                };
                let middle = (f64::midpoint(start, end), y + 13.5);
                canvas.styled(middle, Anchor::Middle, ink, &span.words);
            }
        }
    }
    canvas.rule((LEFT, bottom), (WIDTH - RIGHT, bottom), "#444444");
    legend(&mut canvas, timeline);
    let left_out = timeline.microbatches.len() - microbatches.len();
    let more =
        if left_out > 0 { format!("; {left_out} more micro-batches") } else { String::new() };
    let place = (f64::midpoint(LEFT, WIDTH - RIGHT), bottom + 46.0);
    canvas.styled(place, Anchor::Middle, "font-size=\"13\"", &format!("time{more}"));
    canvas.finish()
}

/// What there is in the picture, side by side above it.
fn legend(canvas: &mut Canvas, timeline: &Timeline) {
    let has = |doing: &Doing| {
        timeline
            .microbatches
            .iter()
            .flat_map(|microbatch| &microbatch.spans)
            .any(|span| span.doing == *doing)
    };
    let mut x = LEFT;
    for doing in Doing::ALL.into_iter().filter(has) {
        canvas.bar((x, 66.0), (26.0, 14.0), fill(doing), doing.words());
        canvas.text((x + 33.0, 77.0), Anchor::Start, doing.words());
        x += 60.0 + 6.8 * doing.words().chars().count() as f64;
    }
}
