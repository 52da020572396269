//! Spans of time, one track a rank, device or link.

use crate::axis::Axis;
use crate::canvas::{Anchor, Canvas, Title, text_width};
use crate::palette;

/// Width of a picture; up to the second, as wide as its labels need.
const WIDTHS: (f64, f64) = (1200.0, 1800.0);
const RIGHT: f64 = 32.0;
const TOP: f64 = 96.0;
/// Font sizes of labels inside bars, from small to large.
const FONT_SIZES: (f64, f64) = (6.5, 10.0);
/// Width of a digit relative to the font size.
const DIGIT: f64 = 0.6;

/// Hatching, so that activities differ in print without colour.
fn patterns() -> String {
    let ([ground, stripe], dots) = (palette::HATCHING, palette::DOTS);
    let pattern = "width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"";
    format!(
        "<defs><pattern id=\"hatched\" {pattern} patternTransform=\"rotate(45)\">\
         <rect width=\"6\" height=\"6\" fill=\"{ground}\"/>\
         <rect width=\"2.4\" height=\"6\" fill=\"{stripe}\"/></pattern>\
         <pattern id=\"dotted\" {pattern}><rect width=\"6\" height=\"6\" fill=\"white\"/>\
         <circle cx=\"2\" cy=\"2\" r=\"0.9\" fill=\"{dots}\"/></pattern></defs>\n"
    )
}

/// Filling of the spans of an activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// A colour with black text.
    Light(&'static str),
    /// A colour with white text.
    Dark(&'static str),
    /// Diagonal stripes: communication.
    Hatched,
    /// Dots: waiting.
    Dotted,
}

impl Fill {
    fn svg(self) -> &'static str {
        match self {
            Self::Light(colour) | Self::Dark(colour) => colour,
            Self::Hatched => "url(#hatched)",
            Self::Dotted => "url(#dotted)",
        }
    }
}

/// An activity, such as a forward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// Name in the legend.
    pub name: String,
    /// Filling of its spans.
    pub fill: Fill,
}

/// A span of time.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Index of its activity.
    pub activity: usize,
    /// Start, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// Short text inside the bar, drawn where it fits.
    pub label: String,
    /// Text that appears while the pointer is over the bar.
    pub tooltip: String,
    /// Opacity from 0 to 1.
    pub opacity: f64,
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Track {
    /// Name of the rank, device or link.
    pub name: String,
    /// Spans in ascending order.
    pub spans: Vec<Span>,
}

/// Tracks over one axis of time.
#[derive(Debug)]
pub struct Timeline {
    /// Title lines.
    pub title: Title,
    /// Axis of time.
    pub axis: Axis,
    /// Activities, in the order of the legend.
    pub activities: Vec<Activity>,
    /// The tracks.
    pub tracks: Vec<Track>,
    /// Number of tracks that were left out, named beside the axis.
    pub num_hidden: usize,
    /// Height of a track in pixels.
    pub track_height: f64,
}

impl Timeline {
    /// Draws the timeline.
    pub fn svg(&self) -> String {
        let tracks = &self.tracks;
        let left = tracks.iter().map(|track| text_width(&track.name)).fold(60.0, f64::max) + 16.0;
        let bottom = TOP + self.track_height * tracks.len() as f64;
        let width = self.width(left);
        let right = width - RIGHT;
        let mut canvas = Canvas::new((width, bottom + 62.0), &self.title);
        canvas.raw(&patterns());
        let spans = || tracks.iter().flat_map(|track| &track.spans);
        let times = spans().map(|span| span.end).chain([0.0]);
        let axis = self.axis.fit(times, (left, right));
        for (x, label) in axis.ticks() {
            canvas.line((x, TOP), (x, bottom), palette::GRID);
            canvas.text((x, bottom + 18.0), Anchor::Middle, &label);
        }
        for (index, track) in tracks.iter().enumerate() {
            let y = TOP + self.track_height * index as f64;
            let baseline = y + self.track_height / 2.0 + 4.0;
            canvas.text((left - 8.0, baseline), Anchor::End, &track.name);
            for span in &track.spans {
                let ends = (axis.pixel(span.start), axis.pixel(span.end));
                self.draw_span(&mut canvas, span, ends, y);
            }
        }
        canvas.line((left, bottom), (right, bottom), palette::AXIS);
        self.legend(&mut canvas, left);
        let more = match self.num_hidden {
            0 => String::new(),
            hidden => format!("; {} of {} tracks drawn", tracks.len(), tracks.len() + hidden),
        };
        let position = (f64::midpoint(left, right), bottom + 46.0);
        let label = format!("{}{more}", axis.label());
        canvas.styled(position, Anchor::Middle, "font-size=\"13\"", &label);
        canvas.finish()
    }

    /// Width in which all labels fit that do so in a picture of some allowed width.
    fn width(&self, left: f64) -> f64 {
        let spans = || self.tracks.iter().flat_map(|track| &track.spans);
        let end = spans().map(|span| span.end).fold(0.0, f64::max);
        let needed = |span: &Span| {
            let pixels = 1.0 + FONT_SIZES.0 * DIGIT * span.label.chars().count() as f64;
            // The axis leaves some room behind the last span.
            left + RIGHT + 1.08 * end * pixels / (span.end - span.start)
        };
        let labelled = spans().filter(|span| !span.label.is_empty()).map(needed);
        labelled.filter(|width| *width <= WIDTHS.1).fold(WIDTHS.0, f64::max)
    }

    fn draw_span(&self, canvas: &mut Canvas, span: &Span, (start, end): (f64, f64), y: f64) {
        let height = self.track_height - 4.0;
        let fill = self.activities[span.activity].fill;
        let opacity = if span.opacity < 1.0 {
            format!("fill-opacity=\"{:.2}\"", span.opacity)
        } else {
            String::new()
        };
        canvas.bar((start, y + 2.0), (end - start, height), fill.svg(), &opacity, &span.tooltip);
        let (smallest, largest) = FONT_SIZES;
        let size = (end - start - 1.0) / (DIGIT * span.label.chars().count() as f64);
        if !span.label.is_empty() && size >= smallest {
            let size = size.min(largest);
            let is_dark = matches!(fill, Fill::Dark(_)) && span.opacity > 0.7;
            let ink = if is_dark { "fill=\"white\" " } else { "" };
            let middle = (f64::midpoint(start, end), y + self.track_height / 2.0 + 0.35 * size);
            let style = format!("{ink}font-size=\"{size:.1}\"");
            canvas.styled(middle, Anchor::Middle, &style, &span.label);
        }
    }

    /// The activities that occur, side by side.
    fn legend(&self, canvas: &mut Canvas, left: f64) {
        let mut x = left;
        for (index, activity) in self.activities.iter().enumerate() {
            let mut spans = self.tracks.iter().flat_map(|track| &track.spans);
            if spans.any(|span| span.activity == index) {
                canvas.bar((x, 68.0), (26.0, 14.0), activity.fill.svg(), "", &activity.name);
                canvas.text((x + 33.0, 79.0), Anchor::Start, &activity.name);
                x += 48.0 + text_width(&activity.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_activities_and_hidden_tracks_are_drawn() {
        let span = |activity, start, end| Span {
            activity,
            start,
            end,
            label: "12".into(),
            tooltip: "micro-batch 12".into(),
            opacity: 1.0,
        };
        let kind = |name: &str, fill| Activity { name: name.into(), fill };
        let track = |name: &str| Track { name: name.into(), spans: vec![span(0, 0.0, 1.0)] };
        let timeline = Timeline {
            title: Title::new("1F1B", ""),
            axis: Axis::new("time", |value| format!("{value} s")),
            activities: vec![
                kind("forward", Fill::Dark(palette::task(0))),
                kind("wait", Fill::Dotted),
            ],
            tracks: vec![track("device 0"), track("device 47")],
            num_hidden: 62,
            track_height: 20.0,
        };
        let svg = timeline.svg();
        assert!(svg.contains(">device 0<") && svg.contains(">device 47<"));
        assert!(svg.contains("time; 2 of 64 tracks drawn"));
        assert!(svg.contains(">forward<") && !svg.contains(">wait<"), "only what occurs");
        assert_eq!(svg.matches(">12<").count(), 2);
    }

    #[test]
    fn labels_shrink_and_the_picture_widens_before_labels_are_left_out() {
        // At 1200 pixels, 100 spans have about 10 pixels each, and 120 about 9, where labels of
        // three digits need a wider picture.
        let span = |index: usize| Span {
            activity: 0,
            start: index as f64,
            end: index as f64 + 1.0,
            label: index.to_string(),
            tooltip: String::new(),
            opacity: 1.0,
        };
        let drawn = |num_spans: usize| {
            let timeline = Timeline {
                title: Title::new("passes", ""),
                axis: Axis::new("time", |_| String::new()),
                activities: vec![Activity { name: "forward".into(), fill: Fill::Hatched }],
                tracks: vec![Track {
                    name: "device 0".into(),
                    spans: (0..num_spans).map(span).collect(),
                }],
                num_hidden: 0,
                track_height: 20.0,
            };
            let svg = timeline.svg();
            (0..num_spans).filter(|index| svg.contains(&format!(">{index}<"))).count()
        };
        assert_eq!((drawn(100), drawn(120)), (100, 120));
        assert!(drawn(1000) < 1000, "labels that do not fit are left out");
    }
}
