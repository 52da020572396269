//! Steps that took longer than the median, with what they waited for, and who was last.

use super::facts::{RunFacts, StepFacts};
use super::statistics::median_of;
use serde::Serialize;

/// Factor over the median from which on a step is slow.
pub const SLOW_STEP: f64 = 1.1;
/// Most slow steps that are listed.
const MAX_LISTED: usize = 8;

/// A slow step of rank 0.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlowStep {
    /// Number of completed steps.
    pub step: u64,
    /// Duration.
    pub seconds: f64,
    /// Time beyond the median step.
    pub excess_seconds: f64,
    /// Part that exceeds its own median by most: `data`, `communication`, `waiting_for_rank` or
    /// `compute`, which is everything else.
    pub waited_for: &'static str,
    /// Time by which that part exceeds its median.
    pub waited_seconds: f64,
}

/// Slow steps, the slowest first. The first step of a run allocates and connects, and is none.
pub(super) fn slow_steps(facts: &RunFacts, median: f64) -> Vec<SlowStep> {
    let later = facts.steps.get(1..).unwrap_or_default();
    let medians = PARTS.map(|(_, part)| median_of(later, part));
    let mut slow: Vec<&StepFacts> =
        later.iter().filter(|step| step.seconds > SLOW_STEP * median).collect();
    slow.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    slow.truncate(MAX_LISTED);
    let of_step = |step: &&StepFacts| {
        let excess =
            PARTS.iter().zip(medians).map(|((name, part), usual)| (*name, part(step) - usual));
        let (waited_for, waited_seconds) =
            excess.max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are parts");
        let StepFacts { step, seconds, .. } = **step;
        SlowStep { step, seconds, excess_seconds: seconds - median, waited_for, waited_seconds }
    };
    slow.iter().map(of_step).collect()
}

/// Names of the parts of a step, and their durations.
type Part = (&'static str, fn(&StepFacts) -> f64);
const PARTS: [Part; 4] = [
    ("data", |step| step.data),
    ("communication", |step| step.exposed),
    ("waiting_for_rank", |step| step.waiting),
    ("compute", |step| step.seconds - step.data - step.exposed - step.waiting),
];

/// Traced steps in which each rank ended its passes last.
pub(super) fn last_rank_counts(facts: &RunFacts) -> Vec<usize> {
    if facts.traced.is_empty() {
        return Vec::new();
    }
    let mut counts = vec![0; facts.recipe.run.workers];
    for traced in facts.traced.iter().filter(|traced| traced.ranks.len() > 1) {
        let ranks = traced.ranks.iter();
        let last = ranks.max_by(|a, b| a.passes_end_seconds.total_cmp(&b.passes_end_seconds));
        if let Some(count) = last.and_then(|last| counts.get_mut(last.rank)) {
            *count += 1;
        }
    }
    counts
}
