//! Step times over the run: a slow tail, and communication that becomes slower.

use super::{EXPOSED, Measured, quarters};
use crate::diagnosis::facts::StepFacts;
use lockstep_config::units::Seconds;

/// 99th percentile of the step time over the median from which on single steps matter: a deadline
/// there, or bounded staleness, begins to pay.
pub(super) const TAIL: f64 = 1.2;
/// Steps from which on a hundredth of them is more than one.
const FEWEST_STEPS: usize = 200;
/// Exposed communication late in the run over that early in it.
pub(super) const SLOWER: f64 = 1.5;
/// Steps whose quarters have stable medians.
const FEWEST_OF_TREND: usize = 32;

/// Compares the 99th percentile of the step time with the median.
pub(super) fn slow_tail(run: &Measured<'_>) -> Option<String> {
    let steps = run.facts.steps.get(1..)?;
    if steps.len() < FEWEST_STEPS {
        return None;
    }
    let mut seconds: Vec<f64> = steps.iter().map(|step| step.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let at = |share: f64| seconds[(share * (seconds.len() - 1) as f64) as usize];
    let [half, most] = [0.5, 0.99].map(at);
    let is_slow = most > TAIL * half && run.findings.is_lasting(most - half);
    is_slow.then(|| {
        format!(
            "a hundredth of the steps take {} or more, {:.2} times the median",
            Seconds(most),
            most / half
        )
    })
}

/// Compares the exposed communication of the second quarter of the run with that of the last one.
pub(super) fn slower_network(run: &Measured<'_>) -> Option<String> {
    let steps = &run.facts.steps;
    if steps.len() < FEWEST_OF_TREND {
        return None;
    }
    let [before, after] = quarters(steps, |step: &StepFacts| step.exposed);
    let rise = after - before;
    let is_trend = after > SLOWER * before
        && run.findings.share(rise) >= EXPOSED
        && run.findings.is_lasting(rise);
    is_trend.then(|| {
        format!(
            "exposed communication grew from {} per step early in the run to {}",
            Seconds(before),
            Seconds(after)
        )
    })
}
