//! An SVG under construction: lines, text, markers and bars on a white sheet.

use std::fmt::Write;

use crate::palette;

/// Pixels of a character at the default size, an upper estimate for digits and lower case.
const CHARACTER: f64 = 7.2;

/// Title lines of a chart.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Title {
    /// The finding, or the subject.
    pub title: String,
    /// One line below it.
    pub subtitle: String,
    /// The parameters that the chart was made with, in small print; may be empty.
    pub setting: String,
}

impl Title {
    /// Title and subtitle without a setting.
    pub fn new(title: impl Into<String>, subtitle: impl Into<String>) -> Self {
        Self { title: title.into(), subtitle: subtitle.into(), setting: String::new() }
    }

    /// Adds the line of parameters.
    pub fn setting(self, setting: impl Into<String>) -> Self {
        Self { setting: setting.into(), ..self }
    }
}

/// Which end of a text lies at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The left end.
    Start,
    /// The middle.
    Middle,
    /// The right end.
    End,
}

/// A drawing under construction.
#[derive(Debug)]
pub struct Canvas {
    svg: String,
    width: f64,
}

impl Canvas {
    /// A white sheet of a size, with its title lines in the top 70 pixels.
    pub fn new((width, height): (f64, f64), title: &Title) -> Self {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"white\"/>\n"
        );
        let mut canvas = Self { svg, width };
        // A long title shrinks instead of leaving the sheet.
        let size = if title.title.chars().count() > 85 { 14 } else { 17 };
        let style = format!("font-size=\"{size}\" font-weight=\"bold\"");
        canvas.styled((24.0, 28.0), Anchor::Start, &style, &title.title);
        canvas.styled(
            (24.0, 48.0),
            Anchor::Start,
            &format!("fill=\"{}\"", palette::AXIS),
            &title.subtitle,
        );
        if !title.setting.is_empty() {
            let size = match title.setting.chars().count() {
                0..=170 => 11,
                171..=210 => 9,
                _ => 7,
            };
            let style = format!("fill=\"{}\" font-size=\"{size}\"", palette::SOFT);
            canvas.styled((24.0, 63.0), Anchor::Start, &style, &title.setting);
        }
        canvas
    }

    /// Adds SVG text as it is.
    pub fn raw(&mut self, svg: &str) {
        self.svg += svg;
    }

    /// The finished SVG.
    pub fn finish(self) -> String {
        self.svg + "</svg>\n"
    }

    /// Text in the default style.
    pub fn text(&mut self, position: (f64, f64), anchor: Anchor, text: &str) {
        self.styled(position, anchor, "", text);
    }

    /// Text with SVG attributes.
    pub fn styled(&mut self, (x, y): (f64, f64), anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{text}</text>"
        );
    }

    /// Text that reads upwards, for a vertical axis.
    pub fn rotated(&mut self, (x, y): (f64, f64), text: &str) {
        let style = format!("font-size=\"13\" transform=\"rotate(-90 {x:.1} {y:.1})\"");
        self.styled((x, y), Anchor::Middle, &style, text);
    }

    /// A thin straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str) {
        let _ = writeln!(
            self.svg,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through points, in the colour and dashes of its series.
    pub fn series_line(&mut self, points: &[(f64, f64)], series: usize) {
        let style =
            format!("stroke-width=\"2.2\" stroke-dasharray=\"{}\"", palette::dashes(series));
        self.polyline(points, palette::colour(series), &style);
    }

    /// A line through points with SVG attributes.
    pub fn polyline(&mut self, points: &[(f64, f64)], colour: &str, style: &str) {
        let _ = writeln!(
            self.svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {style}/>",
            coordinates(points)
        );
    }

    /// A pale area, such as a confidence band.
    pub fn area(&mut self, points: &[(f64, f64)], series: usize) {
        let _ = writeln!(
            self.svg,
            "<polygon points=\"{}\" fill=\"{}\" fill-opacity=\"0.18\"/>",
            coordinates(points),
            palette::colour(series)
        );
    }

    /// Width of the sheet.
    pub fn width(&self) -> f64 {
        self.width
    }

    /// The marker of a series, with a tooltip.
    pub fn marker(&mut self, (x, y): (f64, f64), series: usize, is_filled: bool, tooltip: &str) {
        let colour = palette::colour(series);
        // The shapes repeat after five series; later ones are hollow.
        let fill = if is_filled && series < 5 { colour } else { "white" };
        let style = format!("fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.5\"");
        let (tooltip, corners) = (escape(tooltip), palette::marker(series));
        let _ = if corners.is_empty() {
            writeln!(
                self.svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.2\" {style}><title>{tooltip}</title>\
                 </circle>"
            )
        } else {
            let points: Vec<_> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
            writeln!(
                self.svg,
                "<polygon points=\"{}\" {style}><title>{tooltip}</title></polygon>",
                coordinates(&points)
            )
        };
    }

    /// A small pale dot, with a tooltip.
    pub fn dot(&mut self, (x, y): (f64, f64), colour: &str, tooltip: &str) {
        let _ = writeln!(
            self.svg,
            "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.4\" fill=\"{colour}\" \
             opacity=\"0.45\"><title>{}</title></circle>",
            escape(tooltip)
        );
    }

    /// A cross, with a tooltip.
    pub fn cross(&mut self, (x, y): (f64, f64), colour: &str, tooltip: &str) {
        let (l, r, t, b) = (x - 5.0, x + 5.0, y - 5.0, y + 5.0);
        let _ = writeln!(
            self.svg,
            "<path d=\"M{l:.1} {t:.1}L{r:.1} {b:.1}M{l:.1} {b:.1}L{r:.1} {t:.1}\" \
             stroke=\"{colour}\" stroke-width=\"2\"><title>{}</title></path>",
            escape(tooltip)
        );
    }

    /// A black ring around a point.
    pub fn ring(&mut self, (x, y): (f64, f64)) {
        let _ = writeln!(
            self.svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\" fill=\"none\" stroke=\"black\" \
             stroke-width=\"1.5\"/>"
        );
    }

    /// A filled rectangle, with a tooltip; `style` adds SVG attributes.
    pub fn bar(
        &mut self,
        position: (f64, f64),
        size: (f64, f64),
        fill: &str,
        style: &str,
        tooltip: &str,
    ) {
        let _ = writeln!(
            self.svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{fill}\" \
             stroke=\"{}\" stroke-width=\"0.6\" {style}><title>{}</title></rect>",
            position.0,
            position.1,
            size.0.max(0.0),
            size.1,
            palette::AXIS,
            escape(tooltip)
        );
    }
}

fn coordinates(points: &[(f64, f64)]) -> String {
    let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

/// Pixels that a text takes at the default size, at most.
pub fn text_width(text: &str) -> f64 {
    CHARACTER * text.chars().count() as f64
}

/// Text with the characters of markup replaced.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut canvas = Canvas::new((100.0, 50.0), &Title::new("a<b", "x & y"));
        canvas.text((0.0, 0.0), Anchor::Start, "\"q\" > 1");
        let svg = canvas.finish();
        assert!(svg.contains("a&lt;b") && svg.contains("x &amp; y"));
        assert!(svg.contains("&quot;q&quot; &gt; 1"));
    }

    #[test]
    fn every_series_of_many_can_be_drawn() {
        let mut canvas = Canvas::new((100.0, 50.0), &Title::default());
        for series in 0..20 {
            canvas.series_line(&[(0.0, 0.0), (1.0, 1.0)], series);
            canvas.marker((0.0, 0.0), series, true, "tip");
        }
        assert_eq!(canvas.finish().matches("<title>tip</title>").count(), 20);
    }
}
