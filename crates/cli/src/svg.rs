//! The few shapes that our drawings are made of. An SVG is text, so it is written as text.

use std::fmt::Write as _;

pub(crate) use lockstep_plot::{escape as escaped, palette::COLOURS};

/// Straight lines from point to point.
pub(crate) fn path(svg: &mut String, points: &[(f64, f64)], colour: &str, style: &str) {
    let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {style}/>",
        places.join(" ")
    );
}

/// A thin straight line.
pub(crate) fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    path(svg, &[from, to], colour, "stroke-width=\"1\"");
}

/// Words with their left end, unless the style says otherwise, at a place.
pub(crate) fn text(svg: &mut String, (x, y): (f64, f64), style: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{words}</text>");
}
