//! Who does what when: one micro-batch a worker, device or link, with what it does as spans of time.

use lockstep_config::units::Seconds;

/// What a span is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// All that a worker computes in a step.
    Compute,
    /// Forward.
    Forward,
    /// Backward.
    Backward,
    /// The part of backward that only this device needs.
    Weights,
    /// Its part of a sum.
    Sum,
    /// Waiting for others.
    Wait,
}

impl Doing {
    /// All of them, in the order of a legend.
    pub const ALL: [Self; 6] =
        [Self::Compute, Self::Forward, Self::Backward, Self::Weights, Self::Sum, Self::Wait];

    /// How it is called.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Compute => "computes",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Weights => "weight gradients",
            Self::Sum => "all-reduce",
            Self::Wait => "waits for others",
        }
    }
}

/// A while.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// What is done.
    pub doing: Doing,
    /// From when.
    pub start: Seconds,
    /// To when.
    pub end: Seconds,
    /// A short word inside of it, such as the number of a microbatch.
    pub words: String,
}

impl Span {
    /// A while without a word.
    pub fn new(doing: Doing, start: f64, end: f64) -> Self {
        Self { doing, start: Seconds(start), end: Seconds(end), words: String::new() }
    }

    /// With a number inside.
    pub fn saying(self, number: usize) -> Self {
        Self { words: number.to_string(), ..self }
    }
}

/// What one does.
#[derive(Debug, Clone, PartialEq)]
pub struct Microbatch {
    /// Who.
    pub name: String,
    /// In the order of time.
    pub spans: Vec<Span>,
}

/// What all do.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// What it shows.
    pub title: String,
    /// One below the other.
    pub microbatches: Vec<Microbatch>,
}

impl Timeline {
    /// When everything is over.
    pub fn end(&self) -> f64 {
        let ends = self
            .microbatches
            .iter()
            .flat_map(|microbatch| &microbatch.spans)
            .map(|span| span.end.0);
        ends.fold(0.0, f64::max)
    }

    /// The share of all micro-batches' time that is spent on something.
    pub fn share(&self, doing: Doing) -> f64 {
        let spans = self.microbatches.iter().flat_map(|microbatch| &microbatch.spans);
        let spent: f64 =
            spans.filter(|span| span.doing == doing).map(|span| span.end.0 - span.start.0).sum();
        spent / (self.end() * self.microbatches.len() as f64)
    }
}
