//! Horizontal bars, one a row: its name at the left, its number at the end.

use crate::canvas::{Anchor, Canvas, Title};
use crate::palette;

const WIDTH: f64 = 1080.0;
const TOP: f64 = 76.0;
const ROW: f64 = 26.0;
const LEFT: f64 = 300.0;
const RIGHT: f64 = 150.0;
/// Rows beyond this number are left out; the last line counts them.
const MAX_ROWS: usize = 60;

/// One bar.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Bar {
    /// Name of the row.
    pub name: String,
    /// Length; not drawn if it is not finite.
    pub value: f64,
    /// Half of the confidence interval; 0 for none.
    pub half_width: f64,
    /// The value as text.
    pub text: String,
}

/// Bars of one quantity.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BarChart {
    /// Title lines.
    pub title: Title,
    /// Quantity and unit.
    pub label: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

impl BarChart {
    /// Draws the chart.
    pub fn svg(&self) -> String {
        let shown = &self.bars[..self.bars.len().min(MAX_ROWS)];
        let height = TOP + ROW * shown.len() as f64 + 50.0;
        let mut canvas = Canvas::new((WIDTH, height), &self.title);
        let finite = shown.iter().map(|bar| bar.value.abs()).filter(|value| value.is_finite());
        let scale = (WIDTH - LEFT - RIGHT) / finite.fold(0.0_f64, f64::max).max(1e-300);
        for (row, bar) in shown.iter().enumerate() {
            let y = TOP + ROW * row as f64;
            canvas.text((LEFT - 10.0, y + 16.0), Anchor::End, &bar.name);
            let length = if bar.value.is_finite() { scale * bar.value.abs() } else { 0.0 };
            // Two shades in turn keep neighbours apart without colour.
            let fill = palette::BARS[row % 2];
            canvas.bar((LEFT, y), (length, ROW - 7.0), fill, "", &bar.text);
            let half = scale * bar.half_width;
            if half > 0.0 {
                let middle = y + (ROW - 7.0) / 2.0;
                let (from, to) = (LEFT + length - half, LEFT + length + half);
                canvas.line((from, middle), (to, middle), palette::LIGHT.ink);
            }
            canvas.text((LEFT + length + half + 8.0, y + 16.0), Anchor::Start, &bar.text);
        }
        let num_hidden = self.bars.len() - shown.len();
        let more = if num_hidden > 0 { format!("; {num_hidden} more rows") } else { String::new() };
        let position = (f64::midpoint(LEFT, WIDTH - RIGHT), height - 18.0);
        let label = format!("{}{more}", self.label);
        canvas.styled(position, Anchor::Middle, "font-size=\"13\"", &label);
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_carry_their_numbers_and_infinite_ones_are_not_drawn() {
        let bar = |value: f64| Bar { name: "a".into(), value, text: "x".into(), ..Bar::default() };
        let bars = vec![bar(1.0), bar(f64::INFINITY), Bar { half_width: 0.1, ..bar(2.0) }];
        let svg = BarChart { bars, label: "seconds".into(), ..BarChart::default() }.svg();
        assert_eq!(svg.matches(">x<").count(), 6, "as text and as tooltip");
        assert!(!svg.contains("inf") && !svg.contains("NaN"));
    }

    #[test]
    fn rows_that_are_left_out_are_counted() {
        let bars = vec![Bar::default(); MAX_ROWS + 3];
        let svg = BarChart { bars, label: "s".into(), ..BarChart::default() }.svg();
        assert!(svg.contains("s; 3 more rows"));
    }
}
