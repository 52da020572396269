//! The few shapes that our drawings are made of. An SVG is text, so it is written as text.

use std::fmt::Write as _;

/// Colours that people with any kind of colour vision tell apart.
pub(crate) const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444"];

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

/// Words as XML has them.
pub(crate) fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
