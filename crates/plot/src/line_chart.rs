//! Lines over a parameter, with confidence bands and a legend at the right.

use crate::axis::Axis;
use crate::canvas::{Anchor, Canvas, Title};
use crate::frame::{self, Edges, Series};
use crate::palette;

const SIZE: (f64, f64) = (1080.0, 600.0);
const EDGES: Edges = Edges { left: 96.0, right: 830.0, top: 76.0, bottom: 536.0 };

/// Series over a parameter.
#[derive(Debug)]
pub struct LineChart {
    /// Title lines.
    pub title: Title,
    /// The parameter.
    pub x: Axis,
    /// The quantity.
    pub y: Axis,
    /// Lines; every one that is no reference gets the style of its position.
    pub series: Vec<Series>,
    /// Small print below the legend.
    pub notes: Vec<String>,
}

impl LineChart {
    /// Draws the chart.
    pub fn svg(mut self) -> String {
        let lines = self.series.iter_mut().filter(|series| !series.is_reference);
        for (index, series) in lines.enumerate() {
            series.style = index;
        }
        let mut canvas = Canvas::new(SIZE, &self.title);
        let is_empty = self.series.iter().all(|series| series.points.is_empty());
        if is_empty {
            let middle = (EDGES.left, f64::midpoint(EDGES.top, EDGES.bottom));
            canvas.text(middle, Anchor::Start, "no points to draw");
            return canvas.finish();
        }
        frame::draw(&mut canvas, EDGES, &self.x, &self.y, &self.series);
        let (x, mut y) = (EDGES.right + 18.0, EDGES.top + 14.0);
        for series in self.series.iter().filter(|series| !series.name.is_empty()) {
            frame::legend_entry(&mut canvas, (x, y), series);
            y += 20.0;
        }
        for note in &self.notes {
            let style = format!("fill=\"{}\" font-size=\"11\"", palette::AXIS);
            canvas.styled((x, y + 16.0), Anchor::Start, &style, note);
            y += 16.0;
        }
        canvas.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Point, PointMark};

    fn chart(series: Vec<Series>) -> String {
        LineChart {
            title: Title::new("t", "s"),
            x: Axis::new("workers", |value| format!("{value}")).log(),
            y: Axis::new("seconds", |value| format!("{value} s")),
            series,
            notes: vec!["95 % confidence".to_owned()],
        }
        .svg()
    }

    #[test]
    fn lines_bands_and_legend_are_drawn() {
        let band = Point { half_width: 0.5, ..Point::new(4.0, 2.0) };
        let points = vec![Point::new(1.0, 1.0), band];
        let ideal = vec![Point::new(1.0, 1.0), Point::new(4.0, 4.0)];
        let svg =
            chart(vec![Series::line("measured", points), Series::reference("ideal", ideal, 0)]);
        assert_eq!(svg.matches("fill-opacity").count(), 1, "one band");
        for text in [">measured<", ">ideal<", ">workers<", ">seconds<", ">95 % confidence<"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn infinite_and_failed_points_are_named_and_not_placed() {
        let never = Point::new(2.0, f64::INFINITY);
        let failed = Point { mark: PointMark::Failed, ..Point::new(4.0, f64::NAN) };
        let svg = chart(vec![Series::line("a", vec![Point::new(1.0, 1.0), never, failed])]);
        assert!(svg.contains("a: never"));
        assert_eq!(svg.matches("<path").count(), 1, "one cross");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn a_curve_of_many_points_is_one_line_with_a_marker_in_the_legend_only() {
        let points: Vec<(f64, f64)> = (1..1000).map(|x| (f64::from(x), 1.0)).collect();
        let svg = chart(vec![Series::curve("loss", &points)]);
        assert_eq!((svg.matches("<circle").count(), svg.matches("<title>loss").count()), (1, 1));
    }

    #[test]
    fn small_points_name_themselves_and_lie_below_the_lines() {
        let dot = |x: f64| Point {
            mark: PointMark::Small,
            tooltip: format!("layout {x}"),
            ..Point::new(x, 2.0)
        };
        let line = Series::line("front", vec![Point::new(1.0, 1.0), Point::new(4.0, 3.0)]);
        let cloud = Series { is_joined: false, ..Series::line("all", vec![dot(2.0), dot(3.0)]) };
        let svg = chart(vec![line, cloud]);
        assert_eq!(svg.matches("class=\"dot\"").count(), 2);
        assert!(svg.find(">layout 3<") < svg.find("<polyline"), "the line is drawn later: {svg}");
    }

    #[test]
    fn vertical_axis_that_does_not_start_at_0_has_a_break() {
        let strokes = |low: f64| {
            let points = vec![Point::new(1.0, low), Point::new(4.0, 1.0)];
            chart(vec![Series::line("a", points)]).matches(palette::AXIS).count()
        };
        assert_eq!(strokes(0.9), strokes(0.1) + 2);
    }

    #[test]
    fn a_chart_without_points_says_so() {
        assert!(chart(vec![]).contains("no points to draw"));
    }
}
