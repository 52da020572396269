//! Colours, dashes and marker shapes, by the number of a series.

/// Colours that remain distinct under every common colour-vision deficiency (Okabe and Ito 2008).
pub const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8a6d00", "#444444"];

/// Dashes, so that lines differ in print without colour.
const DASHES: [&str; 7] = ["", "8 4", "2 3", "10 3 2 3", "5 5", "12 4", "1 4"];

/// Corners of the marker shapes; the first, a circle, has none.
const MARKERS: [&[(f64, f64)]; 5] = [
    &[],
    &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
    &[(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)],
    &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
    &[(0.0, 5.5), (5.0, -4.0), (-5.0, -4.0)],
];

/// Colour of a series.
pub const fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

/// Dash pattern of a series; the first is solid.
pub const fn dashes(series: usize) -> &'static str {
    DASHES[series % DASHES.len()]
}

/// Corners of a series' marker around its centre; none for a circle.
pub const fn marker(series: usize) -> &'static [(f64, f64)] {
    MARKERS[series % MARKERS.len()]
}
