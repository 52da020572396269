//! SVG is text, so pictures are written as text: lines, words, marks, on a white sheet.

use std::fmt::Write;

/// A picture that is being drawn.
pub(crate) struct Canvas {
    svg: String,
}

/// Where words stand relative to their place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Colours that people with any kind of colour vision tell apart.
pub const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8a6d00", "#444444"];

/// Dashes, so that lines are told apart without colours too.
const DASHES: [&str; 7] = ["", "8 4", "2 3", "10 3 2 3", "5 5", "12 4", "1 4"];

impl Canvas {
    /// A white sheet with a title, and smaller words below it.
    pub(crate) fn new(width: f64, height: f64, title: &str, below: &str) -> Self {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        let mut canvas = Self { svg };
        // A long finding still has to fit.
        let size = if title.chars().count() > 85 { 14 } else { 17 };
        let style = format!("font-size=\"{size}\" font-weight=\"bold\"");
        canvas.styled((24.0, 28.0), Anchor::Start, &style, title);
        canvas.styled((24.0, 48.0), Anchor::Start, "fill=\"#444444\"", below);
        canvas
    }

    /// What a picture was made with, below the words below the title; as small as it takes.
    pub(crate) fn setting(&mut self, words: &str) {
        let size = match words.chars().count() {
            0..=170 => 11,
            171..=210 => 9,
            _ => 7,
        };
        let style = format!("fill=\"#666666\" font-size=\"{size}\"");
        self.styled((24.0, 63.0), Anchor::Start, &style, words);
    }

    /// Something that is SVG already.
    pub(crate) fn raw(&mut self, svg: &str) {
        self.svg += svg;
    }

    /// The text of the picture.
    pub(crate) fn finish(self) -> String {
        self.svg + "</svg>\n"
    }

    /// Words.
    pub(crate) fn text(&mut self, place: (f64, f64), anchor: Anchor, words: &str) {
        self.styled(place, anchor, "", words);
    }

    /// Words in a style.
    pub(crate) fn styled(&mut self, (x, y): (f64, f64), at: Anchor, style: &str, words: &str) {
        let anchor = match at {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let words = escaped(words);
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{words}</text>"
        );
    }

    /// Words that go upwards.
    pub(crate) fn turned(&mut self, (x, y): (f64, f64), words: &str) {
        let style = format!("font-size=\"13\" transform=\"rotate(-90 {x:.1} {y:.1})\"");
        self.styled((x, y), Anchor::Middle, &style, words);
    }

    /// A thin straight line.
    pub(crate) fn rule(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        let _ = writeln!(
            self.svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through points, in the colour and dashes of its number.
    pub(crate) fn path(&mut self, points: &[(f64, f64)], number: usize) {
        let (colour, dashes) = (COLOURS[number % 7], DASHES[number % 7]);
        let _ = writeln!(
            self.svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.2\" \
             stroke-dasharray=\"{dashes}\"/>",
            places(points)
        );
    }

    /// A pale field between two lines.
    pub(crate) fn band(&mut self, points: &[(f64, f64)], number: usize) {
        let _ = writeln!(
            self.svg,
            "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.18\"/>",
            places(points),
            COLOURS[number % 7]
        );
    }

    /// A mark whose shape goes by its number, with words for those who point at it.
    pub(crate) fn mark(&mut self, (x, y): (f64, f64), number: usize, words: &str) {
        let corners: &[(f64, f64)] = match number % 5 {
            1 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
            2 => &[(0.0, -5.5), (5.0, 4.0), (-5.0, 4.0)],
            3 => &[(0.0, -5.5), (5.5, 0.0), (0.0, 5.5), (-5.5, 0.0)],
            4 => &[(0.0, 5.5), (5.0, -4.0), (-5.0, -4.0)],
            _ => &[],
        };
        let (colour, words) = (COLOURS[number % 7], escaped(words));
        let shape = if corners.is_empty() {
            format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.2\"")
        } else {
            let points: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
            format!("<polygon points=\"{}\"", places(&points))
        };
        let end = if corners.is_empty() { "circle" } else { "polygon" };
        let fill = if number >= 5 { "white" } else { colour };
        let _ = writeln!(
            self.svg,
            "{shape} fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.5\"><title>{words}\
             </title></{end}>"
        );
    }

    /// A filled rectangle, with words for those who point at it.
    pub(crate) fn bar(&mut self, place: (f64, f64), size: (f64, f64), fill: &str, words: &str) {
        let _ = writeln!(
            self.svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\" \
             stroke=\"#444444\" stroke-width=\"0.6\"><title>{}</title></rect>",
            place.0,
            place.1,
            size.0.max(0.0),
            size.1,
            escaped(words)
        );
    }
}

fn places(points: &[(f64, f64)]) -> String {
    let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    places.join(" ")
}

/// Words that are no markup.
pub fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
