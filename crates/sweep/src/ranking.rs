//! Runs of a sweep in the order of their results.

use crate::halving::{Score, order};
use crate::metric::Metric;
use crate::outcome::{Outcome, Status};
use crate::plan::{Plan, Run};

/// Metrics that a table has besides the one that ranks runs.
const OTHER_METRICS: &[Metric] =
    &[Metric::ValidationLoss, Metric::FinalLoss, Metric::Suboptimality, Metric::Accuracy];

/// One run and its result.
#[derive(Debug)]
pub struct Row<'a> {
    /// The run.
    pub run: &'a Run,
    /// The last rung in which it took part.
    pub rung: usize,
    /// Its result.
    pub outcome: Outcome,
    /// Its score by the metric of the sweep.
    pub score: Score,
}

/// All runs, best first.
#[derive(Debug)]
pub struct Ranking<'a> {
    /// The sweep.
    pub plan: &'a Plan,
    /// Best first.
    pub rows: Vec<Row<'a>>,
}

impl<'a> Ranking<'a> {
    /// Sorts the rows: later rungs first, better scores first, then in the order of the plan.
    pub fn new(plan: &'a Plan, mut rows: Vec<Row<'a>>) -> Self {
        let index = |row: &Row<'a>| plan.runs.iter().position(|run| run == row.run).unwrap_or(0);
        rows.sort_by(|a, b| {
            let by_score = order((index(a), a.score), (index(b), b.score));
            b.rung.cmp(&a.rung).then(by_score)
        });
        Self { plan, rows }
    }

    /// The best run, unless all have diverged.
    pub fn best(&self) -> Option<&Row<'a>> {
        self.rows.first().filter(|row| row.score.is_some())
    }

    /// The metrics that some run has; the one that ranks runs is the first.
    pub fn metrics(&self) -> Vec<Metric> {
        let by = self.plan.by;
        let is_known = |metric: &&Metric| {
            self.rows.iter().any(|row| row.outcome.figures.contains_key(metric.name()))
        };
        let others = OTHER_METRICS.iter().filter(|metric| **metric != by).filter(is_known);
        [by].into_iter().chain(others.copied()).collect()
    }

    /// `done`, `diverged`, or `dropped` by successive halving.
    pub fn status(&self, row: &Row<'_>) -> &'static str {
        match row.outcome.status {
            Status::Diverged => "diverged",
            Status::Done if row.rung + 1 < self.plan.rungs.len() => "dropped",
            Status::Done => "done",
        }
    }
}
