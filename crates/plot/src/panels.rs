//! Several small charts in a grid: every run a point in every panel, one panel a parameter.

use crate::axis::Axis;
use crate::canvas::{Anchor, Canvas, Title};
use crate::frame::{self, Edges, Series};
use crate::palette;

const PANEL: (f64, f64) = (520.0, 400.0);
const EDGES: Edges = Edges { left: 96.0, right: 496.0, top: 56.0, bottom: 336.0 };
const HEADER: f64 = 52.0;
/// Height of a line of a legend.
const LINE: f64 = 18.0;
const PANELS_PER_ROW: usize = 2;

/// One chart of the grid.
#[derive(Debug)]
pub struct Panel {
    /// The parameter.
    pub x: Axis,
    /// The quantity.
    pub y: Axis,
    /// Series with the styles that they have in every panel.
    pub series: Vec<Series>,
}

/// Panels with one title and one note.
#[derive(Debug)]
pub struct PanelGrid {
    /// Title lines.
    pub title: Title,
    /// The panels.
    pub panels: Vec<Panel>,
    /// Small print at the bottom.
    pub note: String,
}

impl PanelGrid {
    /// Draws the grid.
    pub fn svg(&self) -> String {
        let num_columns = self.panels.len().clamp(1, PANELS_PER_ROW);
        let num_named = |panel: &Panel| panel.series.iter().filter(|s| !s.name.is_empty()).count();
        let num_lines = self.panels.iter().map(num_named).max().unwrap_or(0);
        let height = PANEL.1 + LINE * num_lines as f64;
        let num_rows = self.panels.len().div_ceil(num_columns);
        let width = PANEL.0 * num_columns as f64;
        let total = HEADER + height * num_rows as f64 + 2.0 * LINE;
        let mut canvas = Canvas::new((width, total), &self.title);
        for (index, panel) in self.panels.iter().enumerate() {
            let x = PANEL.0 * (index % num_columns) as f64;
            let y = HEADER + height * (index / num_columns) as f64;
            canvas.raw(&format!("<g transform=\"translate({x} {y})\">\n"));
            frame::draw(&mut canvas, EDGES, &panel.x, &panel.y, &panel.series);
            let named = panel.series.iter().filter(|series| !series.name.is_empty());
            for (line, series) in named.enumerate() {
                let y = PANEL.1 + LINE * line as f64;
                frame::legend_entry(&mut canvas, (EDGES.left, y), series);
            }
            canvas.raw("</g>\n");
        }
        let style = format!("fill=\"{}\" font-size=\"11\"", palette::AXIS);
        canvas.styled((24.0, total - 12.0), Anchor::Start, &style, &self.note);
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Point, PointMark};

    #[test]
    fn every_panel_has_its_axes_and_points() {
        let panel = |label: &str| {
            let best = Point { mark: PointMark::Best, ..Point::new(1.0, 0.5) };
            let hollow = Point { mark: PointMark::Hollow, ..Point::new(0.0, 0.9) };
            Panel {
                x: Axis::categories(label, vec!["sgd".into(), "adamw".into()]),
                y: Axis::new("loss", |value| format!("{value}")),
                series: vec![Series::line("group", vec![best, hollow])],
            }
        };
        let panels = vec![panel("optim.name"), panel("optim.lr"), panel("train.batch")];
        let svg = PanelGrid { title: Title::default(), panels, note: "ring: best".into() }.svg();
        for text in [">optim.name<", ">optim.lr<", ">train.batch<", ">ring: best<"] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(svg.matches("r=\"10\"").count(), 3, "a ring in each panel");
        assert_eq!(svg.matches("<g ").count(), 3);
    }
}
