//! The part that charts over two axes share: a frame with ticks, series, bands and markers.

use crate::axis::{Axis, Fitted};
use crate::canvas::{Anchor, Canvas, text_width};
use crate::palette;

/// Pixels from an end of the axis within which a centred text would leave the frame.
const EDGE: f64 = 50.0;

/// How a point is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PointMark {
    /// The marker of its series.
    #[default]
    Filled,
    /// The marker without filling: incomplete or unverified.
    Hollow,
    /// The marker with a ring around it: the best.
    Best,
    /// A cross above the frame: there is no finite value.
    Failed,
    /// A small pale dot: one of very many.
    Small,
    /// No marker: one of the many points of a curve.
    Bare,
}

/// One point of a series.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Point {
    /// Value along the horizontal axis.
    pub x: f64,
    /// Value along the vertical axis; infinite for an event that never happens.
    pub y: f64,
    /// Half of the confidence interval of `y`; 0 for none.
    pub half_width: f64,
    /// Text that appears while the pointer is over the point.
    pub tooltip: String,
    /// Text beside the point; empty for none.
    pub label: String,
    /// How it is drawn.
    pub mark: PointMark,
}

impl Point {
    /// A point without interval, tooltip or label.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, ..Self::default() }
    }
}

/// Points that are joined by a line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend; empty for none.
    pub name: String,
    /// Points in the order of the line.
    pub points: Vec<Point>,
    /// Number that decides colour, dashes and marker.
    pub style: usize,
    /// Whether the points are joined.
    pub is_joined: bool,
    /// Whether it is a thin dashed line without markers, such as a limit or an ideal.
    pub is_reference: bool,
}

impl Series {
    /// A joined series; its chart gives it a style by its position.
    pub fn line(name: impl Into<String>, points: Vec<Point>) -> Self {
        Self { name: name.into(), points, style: 0, is_joined: true, is_reference: false }
    }

    /// A joined series of many points without markers.
    pub fn curve(name: impl Into<String>, points: &[(f64, f64)]) -> Self {
        let point = |&(x, y): &(f64, f64)| Point { mark: PointMark::Bare, ..Point::new(x, y) };
        Self::line(name, points.iter().map(point).collect())
    }

    /// A thin dashed line in the colour of `style`.
    pub fn reference(name: impl Into<String>, points: Vec<Point>, style: usize) -> Self {
        Self { style, is_reference: true, ..Self::line(name, points) }
    }
}

/// Pixels of the four edges of a frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Edges {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

/// Draws axes and series.
pub(crate) fn draw(canvas: &mut Canvas, edges: Edges, x: &Axis, y: &Axis, series: &[Series]) {
    let points = || series.iter().flat_map(|series| &series.points);
    let horizontal = x.fit(points().map(|point| point.x), (edges.left, edges.right));
    let ends = points().flat_map(|point| [point.y - point.half_width, point.y + point.half_width]);
    let vertical = y.fit(ends, (edges.bottom, edges.top));
    axes(canvas, edges, &horizontal, &vertical);
    // Very many points are background.
    let is_cloud = |series: &&Series| series.points.iter().any(|it| it.mark == PointMark::Small);
    let others = series.iter().filter(|series| !is_cloud(series));
    for series in series.iter().filter(is_cloud).chain(others) {
        draw_series(canvas, edges, series, &horizontal, &vertical);
    }
}

fn axes(canvas: &mut Canvas, edges: Edges, horizontal: &Fitted<'_>, vertical: &Fitted<'_>) {
    let Edges { left, right, top, bottom } = edges;
    for (x, label) in horizontal.ticks() {
        canvas.line((x, top), (x, bottom), palette::GRID);
        canvas.text((x, bottom + 20.0), Anchor::Middle, &label);
    }
    for (y, label) in vertical.ticks() {
        canvas.line((left, y), (right, y), palette::GRID);
        canvas.text((left - 8.0, y + 4.0), Anchor::End, &label);
    }
    canvas.line((left, bottom), (right, bottom), palette::AXIS);
    canvas.line((left, top), (left, bottom), palette::AXIS);
    if vertical.is_truncated() {
        // Two strokes across the foot of the axis: it does not start at 0.
        for y in [bottom - 10.0, bottom - 16.0] {
            canvas.line((left - 6.0, y + 3.0), (left + 6.0, y - 3.0), palette::AXIS);
        }
    }
    let style = "font-size=\"13\"";
    let middle = (f64::midpoint(left, right), bottom + 46.0);
    canvas.styled(middle, Anchor::Middle, style, &horizontal.label());
    canvas.rotated((left - 74.0, f64::midpoint(top, bottom)), &vertical.label());
}

fn draw_series(
    canvas: &mut Canvas,
    edges: Edges,
    series: &Series,
    horizontal: &Fitted<'_>,
    vertical: &Fitted<'_>,
) {
    let usable: Vec<&Point> = series
        .points
        .iter()
        .filter(|point| horizontal.has(point.x) && vertical.has(point.y))
        .collect();
    let pixel = |point: &Point, y: f64| (horizontal.pixel(point.x), vertical.pixel(y));
    if usable.iter().any(|point| point.half_width > 0.0) {
        let side = |sign: f64| {
            let edge = move |point: &&Point| {
                let end = point.y + sign * point.half_width;
                pixel(point, if vertical.has(end) { end } else { point.y })
            };
            usable.iter().map(edge).collect::<Vec<_>>()
        };
        let (mut outline, mut back) = (side(1.0), side(-1.0));
        back.reverse();
        outline.extend(back);
        canvas.area(&outline, series.style);
    }
    let line: Vec<(f64, f64)> = usable.iter().map(|point| pixel(point, point.y)).collect();
    if series.is_reference {
        let style = "stroke-dasharray=\"6 4\" stroke-width=\"1.5\" opacity=\"0.75\"";
        canvas.polyline(&line, palette::colour(series.style), style);
        return;
    }
    never(canvas, edges, series, horizontal);
    if series.is_joined && line.len() > 1 {
        canvas.series_line(&line, series.style);
    }
    let marked = |(point, _): &(&&Point, &(f64, f64))| point.mark != PointMark::Bare;
    for (point, &(x, y)) in usable.iter().zip(&line).filter(marked) {
        if point.mark == PointMark::Small {
            canvas.dot((x, y), palette::colour(series.style), &point.tooltip);
            continue;
        }
        canvas.marker((x, y), series.style, point.mark != PointMark::Hollow, &point.tooltip);
        if point.mark == PointMark::Best {
            canvas.ring((x, y));
        }
        if !point.label.is_empty() {
            let y = y + if series.style.is_multiple_of(2) { 20.0 } else { -12.0 };
            // White around the letters keeps them readable across lines.
            let outline = "font-size=\"11\" stroke=\"white\" stroke-width=\"4\"";
            canvas.styled((x, y), Anchor::Middle, outline, &point.label);
            let style = format!("font-size=\"11\" fill=\"{}\"", palette::colour(series.style));
            canvas.styled((x, y), Anchor::Middle, &style, &point.label);
        }
    }
    for point in series.points.iter().filter(|point| point.mark == PointMark::Failed) {
        let position = (horizontal.pixel(point.x), edges.top - 16.0);
        canvas.cross(position, palette::colour(series.style), &point.tooltip);
    }
}

/// Events that never happen have no position; a text at the top says so, once for neighbours.
fn never(canvas: &mut Canvas, edges: Edges, series: &Series, horizontal: &Fitted<'_>) {
    let y = edges.top + 14.0 + 13.0 * series.style as f64;
    let mut run: Vec<f64> = Vec::new();
    for (index, point) in series.points.iter().enumerate() {
        let is_never = point.y.is_infinite() && point.mark != PointMark::Failed;
        let is_never = is_never && horizontal.has(point.x);
        if is_never {
            run.push(horizontal.pixel(point.x));
        }
        let is_over = !is_never || index + 1 == series.points.len();
        let (Some(&first), Some(&last), true) = (run.first(), run.last(), is_over) else {
            continue;
        };
        if last > first {
            canvas.series_line(&[(first, y + 4.0), (last, y + 4.0)], series.style);
        }
        let middle = f64::midpoint(first, last);
        let anchor = match middle {
            middle if middle < edges.left + EDGE => Anchor::Start,
            middle if middle > edges.right - EDGE => Anchor::End,
            _ => Anchor::Middle,
        };
        let text = format!("{}: never", series.name);
        canvas.styled((middle, y), anchor, "font-size=\"11\"", &text);
        run.clear();
    }
}

/// One entry of a legend: the line, its marker and its name.
pub(crate) fn legend_entry(canvas: &mut Canvas, (x, y): (f64, f64), series: &Series) {
    let line = [(x, y - 4.0), (x + 30.0, y - 4.0)];
    if series.is_reference {
        let style = "stroke-dasharray=\"6 4\" stroke-width=\"1.5\"";
        canvas.polyline(&line, palette::colour(series.style), style);
    } else {
        if series.is_joined {
            canvas.series_line(&line, series.style);
        }
        canvas.marker((x + 15.0, y - 4.0), series.style, true, &series.name);
    }
    // A long name shrinks into what is left of the sheet.
    let room = canvas.width() - x - 38.0 - 8.0;
    let size = (12.0 * room / text_width(&series.name)).min(12.0);
    if size < 12.0 {
        let style = format!("font-size=\"{size:.1}\"");
        canvas.styled((x + 38.0, y), Anchor::Start, &style, &series.name);
    } else {
        canvas.text((x + 38.0, y), Anchor::Start, &series.name);
    }
}
