//! Spans of time, one track a rank, device or link.

use crate::axis::Axis;
use crate::canvas::{Anchor, Canvas, Title, text_width};

const WIDTH: f64 = 1200.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 96.0;
/// Pixels of a digit inside a bar.
const DIGIT: f64 = 6.5;

/// Hatching, so that activities differ in print without colour.
const PATTERNS: &str = "<defs>\
    <pattern id=\"hatched\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#ffe3c2\"/>\
    <rect width=\"2.4\" height=\"6\" fill=\"#f2a25f\"/></pattern>\
    <pattern id=\"dotted\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
    <rect width=\"6\" height=\"6\" fill=\"white\"/>\
    <circle cx=\"2\" cy=\"2\" r=\"0.9\" fill=\"#777777\"/></pattern></defs>\n";

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
    /// Tracks drawn at most; the axis counts the others.
    pub max_tracks: usize,
    /// Height of a track in pixels.
    pub track_height: f64,
}

impl Timeline {
    /// Draws the timeline.
    pub fn svg(&self) -> String {
        let tracks = &self.tracks[..self.tracks.len().min(self.max_tracks)];
        let left = tracks.iter().map(|track| text_width(&track.name)).fold(60.0, f64::max) + 16.0;
        let bottom = TOP + self.track_height * tracks.len() as f64;
        let mut canvas = Canvas::new((WIDTH, bottom + 62.0), &self.title);
        canvas.raw(PATTERNS);
        let spans = || tracks.iter().flat_map(|track| &track.spans);
        let times = spans().map(|span| span.end).chain([0.0]);
        let axis = self.axis.fit(times, (left, WIDTH - RIGHT));
        for (x, label) in axis.ticks() {
            canvas.line((x, TOP), (x, bottom), "#e6e6e6");
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
        canvas.line((left, bottom), (WIDTH - RIGHT, bottom), "#444444");
        self.legend(&mut canvas, left);
        let num_hidden = self.tracks.len() - tracks.len();
        let more =
            if num_hidden > 0 { format!("; {num_hidden} more tracks") } else { String::new() };
        let position = (f64::midpoint(left, WIDTH - RIGHT), bottom + 46.0);
        let label = format!("{}{more}", axis.label());
        canvas.styled(position, Anchor::Middle, "font-size=\"13\"", &label);
        canvas.finish()
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
        let needed = DIGIT * span.label.chars().count() as f64 + 2.0;
        if !span.label.is_empty() && end - start >= needed {
            let is_dark = matches!(fill, Fill::Dark(_)) && span.opacity > 0.7;
            let ink = if is_dark { "fill=\"white\" font-size=\"10\"" } else { "font-size=\"10\"" };
            let middle = (f64::midpoint(start, end), y + self.track_height / 2.0 + 3.5);
            canvas.styled(middle, Anchor::Middle, ink, &span.label);
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
            activities: vec![kind("forward", Fill::Dark("#2f6595")), kind("wait", Fill::Dotted)],
            tracks: vec![track("device 0"), track("device 1"), track("device 2")],
            max_tracks: 2,
            track_height: 20.0,
        };
        let svg = timeline.svg();
        assert!(svg.contains(">device 1<") && !svg.contains(">device 2<"));
        assert!(svg.contains("time; 1 more tracks"));
        assert!(svg.contains(">forward<") && !svg.contains(">wait<"), "only what occurs");
        assert_eq!(svg.matches(">12<").count(), 2);
    }
}
