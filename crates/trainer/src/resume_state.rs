//! Position from which training starts or resumes.

use lockstep_config::Recipe;
use lockstep_data::Cursor;
use std::path::PathBuf;

/// Position from which training starts.
pub struct ResumeState {
    /// First step to run.
    pub step: u64,
    /// Position in the data.
    pub cursor: Cursor,
    /// Losses of the finished steps, with capacity for all steps.
    pub losses: Vec<f64>,
    /// Duration of the finished steps in seconds.
    pub seconds: f64,
    /// Checkpoint that the run resumes from.
    pub from: Option<PathBuf>,
    /// Warnings about unusable checkpoints.
    pub warnings: Vec<String>,
}

impl ResumeState {
    /// Position at the start of a new run.
    pub(crate) fn new(recipe: &Recipe) -> Self {
        let num_steps = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
        Self {
            step: 0,
            cursor: Cursor::start(),
            losses: Vec::with_capacity(num_steps),
            seconds: 0.0,
            from: None,
            warnings: Vec::new(),
        }
    }
}

/// First lines in which two sorted lists of settings differ.
pub(crate) fn first_difference(before: &str, now: &str) -> (String, String) {
    let only = |text: &str, other: &str| {
        let line = text.lines().find(|line| !other.lines().any(|other| other == *line));
        line.map_or_else(|| "nothing".to_owned(), str::to_owned)
    };
    (only(before, now), only(now, before))
}
