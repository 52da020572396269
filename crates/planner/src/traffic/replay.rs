//! Bytes of a run that was recorded: its decisions, replayed through the programs of its steps.
//!
//! Timing and data decide which steps a worker of elastic servers takes part in, which ranks a
//! straggler policy leaves out, which embedding rows are exchanged and which updates are skipped.
//! With these decisions the bytes of every rank are exact. A number of local steps that was chosen
//! is part of the recipe in the run folder.

use super::range::{RunForecast, plain_step};
use super::{ByteRange, Interconnect, StepInputs, StepKind};
use lockstep_config::units::Bytes;
use lockstep_config::{Consistency, Recipe};
use lockstep_model::Blueprint;
use lockstep_parallel::step_program::SelectedRows;
use std::collections::{BTreeMap, BTreeSet};

/// Decisions of a run that timing or data made, as its events and its tokens tell them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordedDecisions {
    /// Number of pulls for a step by each worker that pulls; empty unless servers are elastic.
    pub pulls_by_worker: Vec<u64>,
    /// Number of pushes by each of them.
    pub pushes_by_worker: Vec<u64>,
    /// Steps whose update was skipped, counted from 0.
    pub skipped_steps: BTreeSet<u64>,
    /// By step and rank: embedding rows with a gradient, none on a rank that was left out; empty
    /// unless they are exchanged sparsely.
    pub rows_by_step: Vec<Vec<usize>>,
    /// By step: rows that workers pull and push one by one; empty unless they do. With a row cache
    /// or replicated rows the bytes remain a range.
    pub selected_by_step: Vec<SelectedRows>,
}

/// Bytes of every rank in the mean of the steps that it took part in, from the programs of these
/// steps and recorded decisions.
pub fn wire_replay(
    recipe: &Recipe,
    blueprint: &Blueprint,
    interconnect: &Interconnect,
    decisions: &RecordedDecisions,
) -> Vec<ByteRange> {
    let mut forecast = RunForecast::new(recipe, blueprint, interconnect);
    if recipe.sync.server.consistency == Consistency::Elastic && recipe.num_servers() > 0 {
        let classes: Vec<(StepKind, u64)> = StepKind::of_run(recipe).into_iter().collect();
        return of_recorded_pulls(&mut forecast, &classes, decisions);
    }
    of_recorded_steps(&forecast, decisions)
}

/// Mean over all steps with their inputs. Rows that are not known may be any.
fn of_recorded_steps(forecast: &RunForecast<'_>, decisions: &RecordedDecisions) -> Vec<ByteRange> {
    let RecordedDecisions { skipped_steps, rows_by_step, selected_by_step, .. } = decisions;
    let num_steps = forecast.recipe.train.steps.max(1);
    let keys = &forecast.recipe.sync.server.rows;
    let needs_selected = keys.sparse && forecast.recipe.num_servers() > 0;
    let (is_pulled, needs_rows) =
        (keys.cache == 0 && keys.replicated == 0, forecast.has_sparse_rows());
    let mut known = BTreeMap::new();
    let mut sums = vec![ByteRange::default(); forecast.recipe.run.workers];
    for step in 0..num_steps {
        let kind = StepKind::at(forecast.recipe, step);
        let rows_by_rank = rows_by_step.get(step as usize).map(Vec::as_slice);
        let selected_rows = selected_by_step.get(step as usize);
        let is_skipped = skipped_steps.contains(&step);
        let inputs = StepInputs { rows_by_rank, selected_rows, is_skipped };
        let is_known = (rows_by_rank.is_some() || !needs_rows || !kind.is_reduced())
            && (selected_rows.is_some() && is_pulled || !needs_selected);
        let key = (kind, rows_by_rank, selected_rows, is_skipped);
        let of_step = known.entry(key).or_insert_with_key(|(kind, ..)| {
            if is_known {
                forecast.of_inputs(kind, inputs)
            } else {
                forecast.count(kind, &[is_skipped])
            }
        });
        for (sum, of_step) in sums.iter_mut().zip(of_step) {
            sum.low += of_step.low;
            sum.high += of_step.high;
        }
    }
    let over = |bytes: Bytes| Bytes(bytes.0 / num_steps);
    sums.into_iter().map(|sum| ByteRange { low: over(sum.low), high: over(sum.high) }).collect()
}

/// Steps of elastic servers that each worker has pulled and pushed for; the mean is over those
/// that it has pushed for.
fn of_recorded_pulls(
    forecast: &mut RunForecast<'_>,
    classes: &[(StepKind, u64)],
    decisions: &RecordedDecisions,
) -> Vec<ByteRange> {
    let [taken, missed] = [false, true].map(|is_missed| forecast.of_kind(&plain_step(is_missed)));
    let num_steps: u64 = classes.iter().map(|(_, count)| count).sum();
    let group_len = forecast.recipe.run.workers / forecast.recipe.num_pushers();
    let sums = forecast.sum(classes).into_iter().enumerate();
    sums.map(|(worker, sum)| {
        let pusher = worker / group_len;
        let pushes = decisions.pushes_by_worker[pusher];
        let without_push = decisions.pulls_by_worker[pusher] - pushes;
        let bytes = |all: Bytes, taken: Bytes, missed: Bytes| {
            let other = all.0 - taken.0 * num_steps;
            Bytes((other + taken.0 * pushes + missed.0 * without_push) / pushes.max(1))
        };
        let (taken, missed) = (taken[worker], missed[worker]);
        ByteRange {
            low: bytes(sum.low, taken.low, missed.low),
            high: bytes(sum.high, taken.high, missed.high),
        }
    })
    .collect()
}
