//! Timelines: the activities of workers, devices and links as spans of time, one track each.

use lockstep_config::units::Seconds;

/// The activity of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// The whole computation of a step.
    Compute,
    /// The forward pass.
    Forward,
    /// The backward pass.
    Backward,
    /// The weight gradient.
    WeightGrad,
    /// An all-reduce.
    AllReduce,
    /// Waiting for other ranks.
    Wait,
}

impl Activity {
    /// All activities, in the order of a legend.
    pub const ALL: [Self; 6] = [
        Self::Compute,
        Self::Forward,
        Self::Backward,
        Self::WeightGrad,
        Self::AllReduce,
        Self::Wait,
    ];

    /// Name in the legend.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::WeightGrad => "weight gradient",
            Self::AllReduce => "all-reduce",
            Self::Wait => "wait",
        }
    }
}

/// A span of time.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The activity.
    pub activity: Activity,
    /// Start.
    pub start: Seconds,
    /// End.
    pub end: Seconds,
    /// Short text inside of it, such as the number of a micro-batch.
    pub label: String,
}

impl Span {
    /// A span without a label.
    pub fn new(activity: Activity, start: f64, end: f64) -> Self {
        Self { activity, start: Seconds(start), end: Seconds(end), label: String::new() }
    }

    /// Labels the span with a number.
    pub fn numbered(self, number: usize) -> Self {
        Self { label: number.to_string(), ..self }
    }
}

/// The spans of one worker, device or link.
#[derive(Debug, Clone, PartialEq)]
pub struct Track {
    /// Name of the worker, device or link.
    pub name: String,
    /// Spans in ascending order.
    pub spans: Vec<Span>,
}

/// All tracks.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// Title of the chart.
    pub title: String,
    /// The tracks, from top to bottom.
    pub tracks: Vec<Track>,
    /// Indices of the tracks that the title is about: they are drawn even where not all are.
    pub named: Vec<usize>,
}

impl Timeline {
    /// End of the last span.
    pub fn end(&self) -> f64 {
        let ends = self.tracks.iter().flat_map(|track| &track.spans).map(|span| span.end.0);
        ends.fold(0.0, f64::max)
    }

    /// Indices of at most `max` tracks to draw, in order: those of the title, then the first ones.
    pub fn drawn(&self, max: usize) -> Vec<usize> {
        let others = (0..self.tracks.len()).filter(|index| !self.named.contains(index));
        let mut drawn: Vec<usize> = self.named.iter().copied().chain(others).take(max).collect();
        drawn.sort_unstable();
        drawn
    }

    /// Share of the time of all tracks that one activity takes.
    pub fn share(&self, activity: Activity) -> f64 {
        let spans = self.tracks.iter().flat_map(|track| &track.spans);
        let spent: f64 = spans
            .filter(|span| span.activity == activity)
            .map(|span| span.end.0 - span.start.0)
            .sum();
        spent / (self.end() * self.tracks.len() as f64)
    }
}
