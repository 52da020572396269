//! The median step of a run and the time of each rank in it.

use super::facts::{RankFacts, RunFacts, StepFacts};
use super::statistics::{mean_of, median_of};
use serde::Serialize;

/// Time of a rank in the median step, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RankTime {
    /// Rank.
    pub rank: usize,
    /// Forward and backward passes.
    pub compute_seconds: f64,
    /// Optimizer, norms, and whatever else the rank does between its calls.
    pub optimizer_seconds: f64,
    /// Wait for data.
    pub data_seconds: f64,
    /// Exposed communication, without the wait for later ranks; in a pipeline with its bubble.
    pub exposed_communication_seconds: f64,
    /// Wait for later ranks.
    pub waiting_for_rank_seconds: f64,
}

impl RankTime {
    /// Time in which the rank works.
    pub fn busy(&self) -> f64 {
        self.compute_seconds + self.optimizer_seconds + self.data_seconds
    }
}

/// The median step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MeasuredStep {
    /// Duration.
    pub(super) seconds: f64,
    /// Ranks; only rank 0 for a run without a summary.
    pub(super) ranks: Vec<RankTime>,
    /// Stall for checkpoints, divided by the number of steps.
    pub(super) checkpoint: f64,
}

impl MeasuredStep {
    /// Median over all steps but the first, which allocates and connects; `None` without steps.
    pub(super) fn of(facts: &RunFacts) -> Option<Self> {
        let steps = match &facts.steps[..] {
            [] => return None,
            [only] => std::slice::from_ref(only),
            [_, later @ ..] => later,
        };
        let seconds = median_of(steps, |step| step.seconds);
        let alone = [rank_of_steps(steps, seconds)];
        let known = if facts.ranks.is_empty() { &alone[..] } else { &facts.ranks[..] };
        let rank = |(rank, facts_of_rank): (usize, &RankFacts)| {
            let RankFacts { compute: [_, compute, _], data, exposed, waiting } = *facts_of_rank;
            // Medians need not add up, and an emulated device computes while its worker waits.
            let excess = (compute + data + exposed + waiting - seconds).max(0.0);
            let less_waiting = excess.min(waiting);
            let waiting = waiting - less_waiting;
            let exposed = exposed - (excess - less_waiting).min(exposed);
            let rest = (seconds - compute - data - exposed - waiting).max(0.0);
            // The host issues the passes of an accelerator and waits for them later.
            let (compute, optimizer) =
                if facts.is_accelerated { (compute + rest, 0.0) } else { (compute, rest) };
            RankTime {
                rank,
                compute_seconds: compute,
                optimizer_seconds: optimizer,
                data_seconds: data,
                exposed_communication_seconds: exposed,
                waiting_for_rank_seconds: waiting,
            }
        };
        let stalls = facts.checkpoints.iter().fold(0.0, |sum, at| sum + at.stall);
        Some(Self {
            seconds,
            ranks: known.iter().enumerate().map(rank).collect(),
            checkpoint: stalls / facts.steps.len() as f64,
        })
    }

    /// Step with its share of the checkpoints.
    pub(super) fn total(&self) -> f64 {
        self.seconds + self.checkpoint
    }

    /// Mean of a time over the ranks.
    pub(super) fn mean(&self, time: impl Fn(&RankTime) -> f64) -> f64 {
        mean_of(&self.ranks, time)
    }

    /// Wait that persistent differences between ranks do not explain: in each step another rank is
    /// the last.
    pub(super) fn chance_wait(&self) -> f64 {
        let longest = self.ranks.iter().map(RankTime::busy).fold(0.0, f64::max);
        let explained = longest - self.mean(RankTime::busy);
        (self.mean(|rank| rank.waiting_for_rank_seconds) - explained).max(0.0)
    }
}

/// Rank 0 by its step events, which do not separate passes from the rest of its work.
fn rank_of_steps(steps: &[StepFacts], seconds: f64) -> RankFacts {
    let data = median_of(steps, |step| step.data);
    let exposed = median_of(steps, |step| step.exposed);
    let waiting = median_of(steps, |step| step.waiting);
    RankFacts {
        compute: [(seconds - data - exposed - waiting).max(0.0); 3],
        data,
        exposed,
        waiting,
    }
}
