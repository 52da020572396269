//! The least and the most bytes that every rank moves in a run's mean step.
//!
//! Both ends are equal where the recipe decides the traffic. Timing decides how many steps a worker
//! of elastic parameter servers takes part in, and the length of rounds with `sync.local_steps =
//! "auto"`; tokens decide the embedding rows that are exchanged, and straggler policies whose; the
//! loss scale decides which updates are skipped. A run in which ranks are lost and steps are
//! repeated is not forecast.

use super::{Interconnect, StepInputs, StepKind, may_skip_updates, step_calls, total};
use lockstep_config::units::Bytes;
use lockstep_config::{Consistency, Recipe, SyncMode};
use lockstep_mesh::{Axis, Rank};
use lockstep_model::Blueprint;
use lockstep_parallel::local_sgd::auto_steps::MAX_LOCAL_STEPS;
use lockstep_parallel::step_program::{RankPlan, ServerStep};
use lockstep_parallel::{Leaves, ReplicaPlan};
use std::collections::BTreeMap;

/// Bytes that a rank moves in the mean step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteRange {
    /// At least.
    pub low: Bytes,
    /// At most.
    pub high: Bytes,
}

impl ByteRange {
    /// Range of an exact forecast.
    pub const fn exactly(bytes: Bytes) -> Self {
        Self { low: bytes, high: bytes }
    }

    /// Whether the recipe alone decides the bytes.
    pub fn is_exact(&self) -> bool {
        self.low == self.high
    }

    /// Whether a measured number of bytes is within the range.
    pub fn contains(&self, bytes: Bytes) -> bool {
        (self.low..=self.high).contains(&bytes)
    }

    /// Range of a sum with a number between these two.
    pub(super) fn plus(self, low: Bytes, high: Bytes) -> Self {
        Self { low: self.low + low, high: self.high + high }
    }

    /// Range that contains both.
    fn or(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// Bytes of every rank in the mean step of a run, for any bucket length that may be chosen at
/// start-up. Embedding rows that are exchanged sparsely may be any.
pub fn wire_range(
    recipe: &Recipe,
    blueprint: &Blueprint,
    interconnect: &Interconnect,
) -> Vec<ByteRange> {
    let mut forecast = RunForecast::new(recipe, blueprint, interconnect);
    let classes: Vec<(StepKind, u64)> = StepKind::of_run(recipe).into_iter().collect();
    let keys = &recipe.sync;
    match keys.mode {
        SyncMode::ParameterServer if keys.server.consistency == Consistency::Elastic => {
            forecast.of_elastic_servers(&classes)
        }
        SyncMode::LocalSgd if keys.local_steps_is_auto => forecast.of_any_local_steps(),
        _ => forecast.mean(&classes),
    }
}

/// Total bytes of kinds of steps, by rank.
pub(super) struct RunForecast<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) blueprint: &'a Blueprint,
    interconnect: &'a Interconnect,
    known: BTreeMap<StepKind, Vec<ByteRange>>,
}

impl<'a> RunForecast<'a> {
    /// Forecast of a recipe's run.
    pub(super) const fn new(
        recipe: &'a Recipe,
        blueprint: &'a Blueprint,
        interconnect: &'a Interconnect,
    ) -> Self {
        Self { recipe, blueprint, interconnect, known: BTreeMap::new() }
    }

    /// Bytes of a step.
    pub(super) fn of_kind(&mut self, kind: &StepKind) -> Vec<ByteRange> {
        if let Some(known) = self.known.get(kind) {
            return known.clone();
        }
        let outcomes = if may_skip_updates(self.recipe) { &[false, true][..] } else { &[false] };
        let found = self.count(kind, outcomes);
        self.known.insert(kind.clone(), found.clone());
        found
    }

    /// Bytes of a step with any embedding rows, whose update has one of these outcomes: it happens
    /// (`false`) or is skipped.
    pub(super) fn count(&self, kind: &StepKind, outcomes: &[bool]) -> Vec<ByteRange> {
        let least = with_least_rows(kind);
        let plans = step_calls::plans_at(self.recipe, self.blueprint, 0);
        let rows = if kind.is_reduced() { self.extreme_rows(&plans[0]) } else { Vec::new() };
        let ends = plans.iter().flat_map(|plan| {
            let of_rows = rows.iter().map(move |rows| (plan, kind, Some(&rows[..])));
            [(plan, kind, None), (plan, &least, None)].into_iter().chain(of_rows)
        });
        let all = ends.flat_map(|(plan, kind, rows_by_rank)| {
            let inputs = StepInputs { rows_by_rank, ..StepInputs::default() };
            let outcomes =
                outcomes.iter().map(move |&is_skipped| StepInputs { is_skipped, ..inputs });
            outcomes.map(move |inputs| self.of_plan(plan, kind, inputs))
        });
        all.reduce(joined).expect("there is a plan")
    }

    /// Bytes of a step with known inputs, for any bucket length that may be chosen at start-up.
    pub(super) fn of_inputs(&self, kind: &StepKind, inputs: StepInputs<'_>) -> Vec<ByteRange> {
        let plans = step_calls::plans_at(self.recipe, self.blueprint, 0);
        let all = plans.iter().map(|plan| self.of_plan(plan, kind, inputs));
        all.reduce(joined).expect("there is a plan")
    }

    /// Whether gradients of embedding rows are exchanged sparsely.
    pub(super) fn has_sparse_rows(&self) -> bool {
        let plans = step_calls::plans_at(self.recipe, self.blueprint, 0);
        !self.extreme_rows(&plans[0]).is_empty()
    }

    /// Numbers of embedding rows by rank with the least and the most traffic: none, so many that
    /// the table is sent whole, and all tokens of one rank.
    fn extreme_rows(&self, plan: &ReplicaPlan) -> Vec<Vec<usize>> {
        let num_ranks = plan.mesh.num_ranks();
        let is_sparse = |rank| RankPlan::new(plan, self.blueprint, rank).has_sparse_rows();
        if plan.zero > 0 || !(0..num_ranks).any(is_sparse) {
            return Vec::new();
        }
        let assignment = plan.leaf_assignment();
        let one_each = Leaves { microbatches_per_leaf: 1, ..plan.leaves };
        let tokens_per_leaf = plan.leaves.microbatches_per_leaf * plan.microbatch.rows();
        let tokens = |part| assignment.microbatches_of(part, one_each).len() * tokens_per_leaf;
        let of_part = |part: usize| {
            let number = |rank| {
                let is_here = plan.mesh.index(Axis::Data, Rank(rank)) == part;
                if is_here { tokens(part).min(self.recipe.model.vocab) } else { 0 }
            };
            (0..num_ranks).map(number).collect()
        };
        let all = [0, self.recipe.model.vocab].map(|rows| vec![rows; num_ranks]);
        all.into_iter().chain((0..plan.shares.len()).map(of_part)).collect()
    }

    fn of_plan(
        &self,
        plan: &ReplicaPlan,
        kind: &StepKind,
        inputs: StepInputs<'_>,
    ) -> Vec<ByteRange> {
        let shares = inputs.leaves_by_worker.unwrap_or(&plan.shares).to_vec();
        let plan = &ReplicaPlan { shares, ..plan.clone() };
        let calls = step_calls::of_plan(self.recipe, plan, self.blueprint, kind, inputs);
        let moved = super::by_rank(&calls, self.interconnect);
        moved.iter().map(|rank| ByteRange::exactly(total(rank).wire_bytes())).collect()
    }

    /// Totals over classes of steps.
    pub(super) fn sum(&mut self, classes: &[(StepKind, u64)]) -> Vec<ByteRange> {
        let mut sums = vec![ByteRange::default(); self.recipe.run.workers];
        for (kind, count) in classes {
            for (sum, of_kind) in sums.iter_mut().zip(self.of_kind(kind)) {
                *sum = sum.plus(of_kind.low * *count, of_kind.high * *count);
            }
        }
        sums
    }

    fn mean(&mut self, classes: &[(StepKind, u64)]) -> Vec<ByteRange> {
        let num_steps: u64 = classes.iter().map(|(_, count)| count).sum();
        let over = |bytes: Bytes| Bytes(bytes.0 / num_steps);
        let sums = self.sum(classes).into_iter();
        sums.map(|sum| ByteRange { low: over(sum.low), high: over(sum.high) }).collect()
    }

    /// Rounds of any length that a run may choose from its measurements. Longer rounds are fewer,
    /// and each ends with one exchange.
    fn of_any_local_steps(&mut self) -> Vec<ByteRange> {
        let most = MAX_LOCAL_STEPS.min(self.recipe.train.steps.max(1));
        let [often, seldom] = [1, most].map(|local_steps| {
            let classes = StepKind::of_run(&self.recipe.with_local_steps(local_steps));
            self.mean(&classes.into_iter().collect::<Vec<_>>())
        });
        often.into_iter().zip(seldom).map(|(a, b)| a.or(b)).collect()
    }

    /// A worker of elastic servers takes part in some of the steps, and the mean is over those. At
    /// most one more pull finds that the run is over. Initial weights and checkpoints are sent
    /// whatever the worker does.
    fn of_elastic_servers(&mut self, classes: &[(StepKind, u64)]) -> Vec<ByteRange> {
        let [taken, missed] = [false, true].map(|is_missed| self.of_kind(&plain_step(is_missed)));
        let (sums, means) = (self.sum(classes), self.mean(classes));
        let num_steps: u64 = classes.iter().map(|(_, count)| count).sum();
        let each = sums.into_iter().zip(means).zip(taken.into_iter().zip(missed));
        each.map(|((sum, mean), (taken, missed))| {
            let other_low = Bytes(sum.low.0 - taken.low.0 * num_steps);
            let other_high = Bytes(sum.high.0 - taken.high.0 * num_steps);
            ByteRange {
                low: mean.low.min(missed.low + other_low),
                high: taken.high + missed.high + other_high,
            }
        })
        .collect()
    }
}

/// By rank: ranges that contain both.
fn joined(mut all: Vec<ByteRange>, other: Vec<ByteRange>) -> Vec<ByteRange> {
    all.iter_mut().zip(other).for_each(|(all, other)| *all = all.or(other));
    all
}

/// Step of elastic servers without initial weights and checkpoints.
pub(super) fn plain_step(is_missed: bool) -> StepKind {
    let step = ServerStep { is_joint: true, is_missed, ..ServerStep::default() };
    StepKind { servers: Some(step), ..StepKind::default() }
}

/// Step that exchanges as few embedding rows as possible with servers.
pub(super) fn with_least_rows(kind: &StepKind) -> StepKind {
    let least = |step| ServerStep { has_least_rows: true, ..step };
    StepKind { servers: kind.servers.map(least), ..kind.clone() }
}
