//! Bytes of a run that was recorded: its decisions, replayed through the programs of its steps.
//!
//! Timing and data decide which steps a worker of elastic servers takes part in, which ranks a
//! straggler policy leaves out, how it divides leaves among workers, which embedding rows are
//! exchanged, how many of them a worker's cache and the replicas of servers spare it, which updates
//! are skipped, and which requests are repeated since a server was lost. With these decisions the
//! bytes of every rank are exact. A number of local steps that was chosen is part of the recipe in
//! the run folder.

use super::range::{RunForecast, plain_step, with_least_rows};
use super::step_calls::plan_at;
use super::{ByteRange, Interconnect, StepInputs, StepKind};
use lockstep_config::units::Bytes;
use lockstep_config::{Consistency, Recipe};
use lockstep_model::Blueprint;
use lockstep_parallel::parameter_server::repeated_request::repeated_bytes;
use lockstep_parallel::parameter_server::{RepeatedRequest, RowRequests};
use lockstep_parallel::step_program::{RankPlan, ServerStep, row_request_bytes};
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
    /// By step and rank: embedding rows that its micro-batches select, none on a rank that was left
    /// out; empty unless they are exchanged sparsely.
    pub rows_by_step: Vec<Vec<usize>>,
    /// Requests about embedding rows of each worker that pulls; empty unless servers send rows one
    /// by one.
    pub row_requests_by_worker: Vec<RowRequests>,
    /// Number of steps of each worker that pushes without a gradient, as it was not finite; empty
    /// without servers.
    pub skips_by_worker: Vec<u64>,
    /// Requests that workers repeated at another server.
    pub repeats: Vec<RepeatedRequest>,
    /// Leaves of each worker, by the first step of every division but the recipe's; embedding rows
    /// are not sparse then.
    pub divisions: BTreeMap<u64, Vec<usize>>,
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
    let changes = changed_bytes(&forecast, decisions);
    if recipe.sync.server.consistency == Consistency::Elastic && recipe.num_servers() > 0 {
        return of_recorded_pulls(&mut forecast, decisions, &changes);
    }
    of_recorded_steps(&forecast, decisions, &changes)
}

/// Bytes by which pushes without a gradient and repeated requests change those of each worker.
fn changed_bytes(forecast: &RunForecast<'_>, decisions: &RecordedDecisions) -> Vec<i64> {
    let (recipe, blueprint) = (forecast.recipe, forecast.blueprint);
    let mut changes = vec![0; recipe.run.workers];
    if recipe.num_servers() == 0 {
        return changes;
    }
    let rank_of = |pusher: usize| pusher * group_len(recipe);
    let step =
        ServerStep { loads: true, saves: true, has_least_rows: true, ..ServerStep::default() };
    let kind = StepKind { servers: Some(step), ..StepKind::default() };
    let [taken, skipped] = [false, true].map(|is_skipped| {
        forecast.of_inputs(&kind, StepInputs { is_skipped, ..StepInputs::default() })
    });
    for (pusher, num) in decisions.skips_by_worker.iter().enumerate() {
        let rank = rank_of(pusher);
        changes[rank] -= (*num * (taken[rank].low.0 - skipped[rank].low.0)).cast_signed();
    }
    for repeat in &decisions.repeats {
        let (plan, rank) = (plan_at(recipe, blueprint, 0), rank_of(repeat.worker));
        let program = RankPlan::new(&plan, blueprint, rank).training_of(recipe, &kind);
        changes[rank] += repeated_bytes(repeat, &program, recipe.run.workers);
    }
    changes
}

fn changed(bytes: Bytes, change: i64) -> Bytes {
    Bytes(bytes.0.checked_add_signed(change).expect("no more bytes are spared than sent"))
}

/// Mean over all steps with their inputs. Rows that are not known may be any.
fn of_recorded_steps(
    forecast: &RunForecast<'_>,
    decisions: &RecordedDecisions,
    changes: &[i64],
) -> Vec<ByteRange> {
    let RecordedDecisions { skipped_steps, rows_by_step, divisions, .. } = decisions;
    let num_steps = forecast.recipe.train.steps.max(1);
    let requested = requested_bytes(forecast, decisions);
    let needs_rows = forecast.has_sparse_rows();
    let mut known = BTreeMap::new();
    let mut sums = vec![ByteRange::default(); forecast.recipe.run.workers];
    for step in 0..num_steps {
        let kind = StepKind::at(forecast.recipe, step);
        let rows_by_rank = rows_by_step.get(step as usize).map(Vec::as_slice);
        // Workers of servers skip steps alone.
        let is_skipped = kind.servers.is_none() && skipped_steps.contains(&step);
        let division = divisions.range(..=step).next_back();
        let leaves_by_worker = division.map(|(_, leaves)| leaves.as_slice());
        let is_requested = kind.servers.is_some() && sends_rows(forecast.recipe);
        let is_reduced = needs_rows && kind.is_reduced();
        let is_known = (rows_by_rank.is_some() || !(is_requested || is_reduced))
            && (requested.is_some() || !is_requested);
        let key = (kind, rows_by_rank, is_skipped, leaves_by_worker);
        let of_step = known.entry(key).or_insert_with_key(|key| {
            let kind = &key.0;
            if is_known {
                let kind = if is_requested { with_least_rows(kind) } else { kind.clone() };
                forecast.of_inputs(&kind, StepInputs { rows_by_rank, is_skipped, leaves_by_worker })
            } else {
                forecast.count(kind, &[is_skipped])
            }
        });
        for (sum, of_step) in sums.iter_mut().zip(of_step) {
            *sum = sum.plus(of_step.low, of_step.high);
        }
    }
    let requested = requested.filter(|_| !rows_by_step.is_empty()).unwrap_or_default();
    for (sum, bytes) in sums.iter_mut().step_by(group_len(forecast.recipe)).zip(requested) {
        *sum = sum.plus(bytes, bytes);
    }
    let mean = |(sum, change): (ByteRange, &i64)| {
        let over = |bytes: Bytes| Bytes(changed(bytes, *change).0 / num_steps);
        ByteRange { low: over(sum.low), high: over(sum.high) }
    };
    sums.into_iter().zip(changes).map(mean).collect()
}

/// Steps of elastic servers that each worker has pulled and pushed for; the mean is over those
/// that it has pushed for.
fn of_recorded_pulls(
    forecast: &mut RunForecast<'_>,
    decisions: &RecordedDecisions,
    changes: &[i64],
) -> Vec<ByteRange> {
    let group_len = group_len(forecast.recipe);
    // Workers of a host group gather the rows of each step among themselves.
    let requested = requested_bytes(forecast, decisions).filter(|_| group_len == 1);
    let is_recorded = requested.is_some() && sends_rows(forecast.recipe);
    let kind = |kind: &StepKind| if is_recorded { with_least_rows(kind) } else { kind.clone() };
    let classes: Vec<_> = StepKind::of_run(forecast.recipe).into_iter().collect();
    let classes: Vec<_> = classes.iter().map(|(it, count)| (kind(it), *count)).collect();
    let [taken, missed] =
        [false, true].map(|is_missed| forecast.of_kind(&kind(&plain_step(is_missed))));
    let num_steps: u64 = classes.iter().map(|(_, count)| count).sum();
    let requested = requested.unwrap_or_default();
    let sums = forecast.sum(&classes).into_iter().enumerate();
    sums.map(|(worker, sum)| {
        let pusher = worker / group_len;
        let rows = requested.get(pusher).copied().unwrap_or_default();
        let pushes = decisions.pushes_by_worker[pusher];
        let without_push = decisions.pulls_by_worker[pusher] - pushes;
        let bytes = |all: Bytes, taken: Bytes, missed: Bytes| {
            let other = all.0 - taken.0 * num_steps + rows.0;
            let all = Bytes(other + taken.0 * pushes + missed.0 * without_push);
            Bytes(changed(all, changes[worker]).0 / pushes.max(1))
        };
        let (taken, missed) = (taken[worker], missed[worker]);
        ByteRange {
            low: bytes(sum.low, taken.low, missed.low),
            high: bytes(sum.high, taken.high, missed.high),
        }
    })
    .collect()
}

/// Whether servers send embedding rows one by one.
fn sends_rows(recipe: &Recipe) -> bool {
    recipe.num_servers() > 0 && recipe.sync.server.rows.sparse
}

/// Workers of a host group.
fn group_len(recipe: &Recipe) -> usize {
    recipe.run.workers / recipe.num_pushers()
}

/// Bytes of the recorded requests about rows, by worker that pulls; `None` if they were not
/// recorded.
fn requested_bytes(
    forecast: &RunForecast<'_>,
    decisions: &RecordedDecisions,
) -> Option<Vec<Bytes>> {
    let all = &decisions.row_requests_by_worker;
    let bytes =
        |requests: &RowRequests| row_request_bytes(*requests, forecast.recipe, forecast.blueprint);
    (!all.is_empty()).then(|| all.iter().map(bytes).collect())
}
