//! Horizontal bars made of parts, over one axis, with an optional limit.

use crate::axis::Axis;
use crate::canvas::{Anchor, Canvas, Title, text_width};
use crate::palette;

/// Width of the bars, height of a row, and the space above and below.
const BARS: f64 = 640.0;
const ROW: f64 = 30.0;
const TOP: f64 = 108.0;
const BELOW: f64 = 60.0;

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct StackedBar {
    /// Name of the row.
    pub name: String,
    /// Value of each part, in the order of the chart's parts.
    pub values: Vec<f64>,
}

/// Bars of the same parts.
#[derive(Debug)]
pub struct StackedBars {
    /// Title lines.
    pub title: Title,
    /// Axis of the values.
    pub axis: Axis,
    /// Prints a value for the end of a bar and for tooltips.
    pub format: fn(f64) -> String,
    /// Name and colour of each part.
    pub parts: Vec<(&'static str, &'static str)>,
    /// The bars.
    pub bars: Vec<StackedBar>,
    /// A dashed line at a value, with its name.
    pub limit: Option<(f64, String)>,
}

impl StackedBars {
    /// Draws the chart.
    pub fn svg(&self) -> String {
        let names = self.bars.iter().map(|bar| text_width(&bar.name));
        let left = names.fold(120.0, f64::max) + 16.0;
        let bottom = TOP + ROW * self.bars.len() as f64;
        let mut canvas = Canvas::new((left + BARS + 100.0, bottom + BELOW), &self.title);
        self.legend(&mut canvas);
        let totals = || self.bars.iter().map(|bar| bar.values.iter().sum::<f64>());
        let ends = totals().chain(self.limit.iter().map(|limit| limit.0)).chain([0.0]);
        let axis = self.axis.fit(ends, (left, left + BARS));
        for (x, label) in axis.ticks() {
            canvas.line((x, TOP), (x, bottom + 4.0), palette::GRID);
            canvas.text((x, bottom + 20.0), Anchor::Middle, &label);
        }
        let middle = (left + BARS / 2.0, bottom + 44.0);
        canvas.styled(middle, Anchor::Middle, "font-size=\"13\"", &axis.label());
        for (row, bar) in self.bars.iter().enumerate() {
            let y = TOP + ROW * row as f64 + 4.0;
            canvas.text((left - 8.0, y + 15.0), Anchor::End, &bar.name);
            let mut end = 0.0;
            for (value, (name, colour)) in bar.values.iter().zip(&self.parts) {
                let (from, to) = (axis.pixel(end), axis.pixel(end + value));
                let tooltip = format!("{name}: {}", (self.format)(*value));
                canvas.bar((from, y), (to - from, 22.0), colour, "", &tooltip);
                end += value;
            }
            let text = (self.format)(end);
            // Beside the line of the limit, never across it.
            let position = axis.pixel(end.max(self.limit_beside(end))) + 6.0;
            canvas.text((position, y + 15.0), Anchor::Start, &text);
        }
        if let Some((value, name)) = &self.limit {
            let x = axis.pixel(*value);
            let style = "stroke-width=\"1.5\" stroke-dasharray=\"4 3\"";
            canvas.polyline(&[(x, TOP - 8.0), (x, bottom)], palette::LIGHT.ink, style);
            canvas.text((x, TOP - 12.0), Anchor::Middle, name);
        }
        canvas.finish()
    }

    /// The limit, where the text at the end of a bar would cross its line.
    fn limit_beside(&self, end: f64) -> f64 {
        self.limit
            .as_ref()
            .map_or(0.0, |(limit, _)| if end < *limit && end > 0.88 * limit { *limit } else { 0.0 })
    }

    fn legend(&self, canvas: &mut Canvas) {
        let mut x = 24.0;
        for (name, colour) in &self.parts {
            canvas.bar((x, 66.0), (12.0, 12.0), colour, "", name);
            canvas.text((x + 17.0, 76.0), Anchor::Start, name);
            x += 17.0 + text_width(name) + 14.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_limit_and_totals_are_drawn() {
        let chart = StackedBars {
            title: Title::new("Memory", ""),
            axis: Axis::new("GiB", |value| format!("{value}")),
            format: |value| format!("{value:.1} GiB"),
            parts: vec![("weights", palette::part(0)), ("optimizer", palette::part(2))],
            bars: vec![StackedBar { name: "TP2 DP4".into(), values: vec![10.0, 20.0] }],
            limit: Some((80.0, "80 GiB".into())),
        };
        let svg = chart.svg();
        for text in ["weights: 10.0 GiB", "optimizer: 20.0 GiB", ">30.0 GiB<", ">80 GiB<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
