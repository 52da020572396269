//! A grid of shaded cells over two parameters; every cell carries its number.

use crate::canvas::{Anchor, Canvas, Title, text_width};
use crate::palette;

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 130.0;
const TOP: f64 = 76.0;
const CELL: f64 = 40.0;

/// One cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// Index of its row.
    pub row: usize,
    /// Index of its column.
    pub column: usize,
    /// Value that decides the shade.
    pub value: f64,
    /// The value as text.
    pub text: String,
}

/// Cells over two parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeatMap {
    /// Title lines.
    pub title: Title,
    /// The horizontal parameter, and the quantity in the cells.
    pub x_label: String,
    /// The vertical parameter.
    pub y_label: String,
    /// Values of the horizontal parameter.
    pub columns: Vec<String>,
    /// Values of the vertical parameter.
    pub rows: Vec<String>,
    /// The cells.
    pub cells: Vec<Cell>,
}

impl HeatMap {
    /// Draws the map.
    pub fn svg(&self) -> String {
        let width = ((WIDTH - LEFT - 24.0) / self.columns.len().max(1) as f64).min(120.0);
        // The vertical label needs the height of its text.
        let needed = text_width(&self.y_label) + 16.0;
        let height = CELL.max(needed / self.rows.len().max(1) as f64);
        let bottom = TOP + height * self.rows.len() as f64;
        let mut canvas = Canvas::new((WIDTH, bottom + 70.0), &self.title);
        let finite = || self.cells.iter().map(|cell| cell.value).filter(|value| value.is_finite());
        let (low, high) = (finite().fold(f64::MAX, f64::min), finite().fold(f64::MIN, f64::max));
        for cell in &self.cells {
            let share = if high > low { (cell.value - low) / (high - low) } else { 0.5 };
            let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 1.0 };
            let position = (LEFT + width * cell.column as f64, TOP + height * cell.row as f64);
            let name = |names: &[String], index: usize| names.get(index).cloned();
            let column = name(&self.columns, cell.column).unwrap_or_default();
            let row = name(&self.rows, cell.row).unwrap_or_default();
            let tooltip = format!("{column}, {row}: {}", cell.text);
            canvas.bar(position, (width, height), &shade(share), "", &tooltip);
            let ink = if share > 0.55 { "fill=\"white\"" } else { "" };
            let middle = (position.0 + width / 2.0, position.1 + height / 2.0 + 4.0);
            canvas.styled(middle, Anchor::Middle, ink, &cell.text);
        }
        for (index, name) in self.rows.iter().enumerate() {
            let y = TOP + height * (index as f64 + 0.5) + 4.0;
            canvas.text((LEFT - 8.0, y), Anchor::End, name);
        }
        for (index, name) in self.columns.iter().enumerate() {
            let x = LEFT + width * (index as f64 + 0.5);
            canvas.text((x, bottom + 18.0), Anchor::Middle, name);
        }
        let style = "font-size=\"13\"";
        canvas.styled((LEFT, bottom + 54.0), Anchor::Start, style, &self.x_label);
        canvas.rotated((22.0, f64::midpoint(TOP, bottom)), &self.y_label);
        canvas.finish()
    }
}

/// Fill of a cell, by its share of the largest.
pub fn shade(share: f64) -> String {
    palette::blend(palette::HEAT, share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_has_its_number_and_names() {
        let cell = |row, column, value: f64| Cell { row, column, value, text: format!("{value}") };
        let map = HeatMap {
            columns: vec!["8".into(), "16".into()],
            rows: vec!["1".into()],
            cells: vec![cell(0, 0, 1.0), cell(0, 1, f64::INFINITY)],
            ..HeatMap::default()
        };
        let svg = map.svg();
        assert!(svg.contains("8, 1: 1") && svg.contains("16, 1: inf"));
    }
}
