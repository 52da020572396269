//! Local SGD (Stich 2019) and DiLoCo (Douillard et al. 2023): ranks step locally and average their
//! weights once a round.
//!
//! A round of K steps starts from weights that all ranks share. Each rank steps by the gradients of
//! its own part of every batch, with its own optimizer and without communication. At the end of the
//! round the weight *changes* are averaged, weighted by the ranks' parts of the batch; averaging
//! changes instead of weights keeps unchanged weights bit-identical. Bytes sent per step are 1/K of
//! an all-reduce in every step. The outer optimizer either applies the mean change directly or uses
//! its negative as the gradient of Nesterov momentum (DiLoCo).
//!
//! The replica *drift* ‖xᵢ − x̄‖² is measured at the end of every round.
//!
//! With two levels (*hierarchical* local SGD, Lin et al. 2020) ranks of a group, such as those of a
//! host, also average among themselves several times a round over their fast links.
//!
//! A round of one step averages nothing: with all-reduced gradients all ranks take the same step,
//! which for plain SGD is the mean of their separate steps without its rounding. So K = 1 is the
//! data-parallel run, bit for bit, with any optimizer.

pub mod auto_steps;
mod streaming;

pub use streaming::params_of_fragment;

use crate::distance::squared_distance;
use crate::measurements::{Drift, Measurements};
use crate::step_program::{ELEMENT, StepBuilder, StepKind, StepTasks};
use crate::strategy::{StateLayout, Strategy, StrategyContext, StrategyPlan, StrategyStart};
use lockstep_comm::{Comm, CommError, Counters, Reduction};
use lockstep_config::{AverageScope, Outer, Recipe};
use lockstep_mesh::{Axis, Group};
use lockstep_optim::Optimizer;
use lockstep_schedule::Op;
use lockstep_schedule::step::{Averaged, Call, Contents, Lengths, Queue, TaskOp};
use lockstep_tensor::{Cpu, nesterov};
use std::collections::BTreeMap;
use std::ops::Range;

const LINK: Queue = Queue::Link(Axis::Data);

/// Exchanges of a step: the end of a round, an average within groups, the outer optimizer after
/// a round of one step, and fragments from `FRAGMENT` on.
const ROUND: u64 = 0;
const GROUP: u64 = 1;
const OUTER: u64 = 2;
const FRAGMENT: u64 = 3;

/// Outer optimizer of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OuterOptimizer {
    /// Applies the mean change.
    Average,
    /// Nesterov momentum on the negative mean change.
    Nesterov { lr: f32, momentum: f32 },
}

/// Local SGD of a run.
pub struct LocalSgdPlan {
    recipe: Recipe,
}

impl LocalSgdPlan {
    /// Local SGD of a recipe.
    pub fn new(recipe: &Recipe) -> Self {
        Self { recipe: recipe.clone() }
    }

    fn rule(&self) -> OuterOptimizer {
        match self.recipe.sync.outer {
            Outer::None => OuterOptimizer::Average,
            Outer::Nesterov => OuterOptimizer::Nesterov {
                lr: self.recipe.sync.outer_lr as f32,
                momentum: self.recipe.sync.outer_momentum as f32,
            },
        }
    }

    fn averages_state(&self) -> bool {
        self.recipe.sync.average == AverageScope::State
    }

    /// Workers of the group of `worker`.
    fn group_of(&self, worker: usize, num_workers: usize) -> Range<usize> {
        let size = self.recipe.sync.group_workers;
        let first = worker / size * size;
        first..(first + size).min(num_workers)
    }

    /// Kind of a round of one step: all workers take the same step.
    fn one_step_round(&self) -> StepKind {
        let has_outer = self.rule() != OuterOptimizer::Average;
        StepKind { due: has_outer.then_some(OUTER).into_iter().collect(), ..StepKind::reduce() }
    }

    /// Adds averages of all buckets over some workers, and of the optimizer state.
    fn average(
        &self,
        step: &mut StepBuilder<'_>,
        workers: Range<usize>,
        op: fn(u32) -> Averaged,
        state: fn(u32) -> Averaged,
        is_measured: bool,
    ) {
        let group = step.workers(workers);
        let call =
            |len| Call { group, op: Op::AllReduce, lengths: Lengths::Even(len), element: ELEMENT };
        for (bucket, len) in step.full_buckets() {
            let params = step.params_of(bucket);
            let measured = is_measured.then(|| step.buffer(Contents::Statistics, 1));
            let op = TaskOp::Average(op(bucket as u32));
            let mut task = step.task(op, LINK).updates(params).calls(call(len));
            if let Some(measured) = measured {
                task = task.adds(measured);
            }
            let _ = task;
        }
        if !self.averages_state() {
            return;
        }
        let mut number = 0;
        for slot in step.optimizer_slots() {
            let contents = Contents::OptimizerState { bucket: slot.block as u32 };
            let optimizer_state = step.persistent(contents, 0);
            for _ in 0..Optimizer::num_states(self.recipe.optim.name) {
                let op = TaskOp::Average(state(number));
                step.task(op, LINK).updates(optimizer_state).calls(call(slot.grads.len()));
                number += 1;
            }
        }
    }

    fn average_fragment(&self, step: &mut StepBuilder<'_>, fragment: usize) {
        let num_fragments = self.recipe.sync.fragments;
        let params: Vec<_> =
            params_of_fragment(step.blueprint(), fragment, num_fragments).collect();
        let len: usize = params.iter().map(|(_, param)| param.len()).sum();
        if len == 0 {
            return;
        }
        let mut buckets: Vec<usize> =
            params.iter().map(|(block, _)| step.bucket_of(*block)).collect();
        buckets.dedup();
        let buffers: Vec<_> = buckets.into_iter().map(|bucket| step.params_of(bucket)).collect();
        let group = step.workers(0..self.recipe.run.workers);
        let call = Call { group, op: Op::AllReduce, lengths: Lengths::Even(len), element: ELEMENT };
        let op = TaskOp::Average(Averaged::Fragment(fragment as u32));
        let mut task = step.task(op, LINK).calls(call);
        for buffer in buffers {
            task = task.updates(buffer);
        }
    }
}

impl StepTasks for LocalSgdPlan {
    fn add_after_update(&self, kind: &StepKind, step: &mut StepBuilder<'_>) {
        let workers = self.recipe.run.workers;
        if kind.due.contains(&GROUP) {
            let own = self.group_of(step.rank(), workers);
            self.average(step, own, Averaged::BucketInGroup, Averaged::StateInGroup, false);
        }
        for fragment in kind.due.iter().filter_map(|due| due.checked_sub(FRAGMENT)) {
            self.average_fragment(step, fragment as usize);
        }
        if kind.due.contains(&ROUND) {
            self.average(step, 0..workers, Averaged::Bucket, Averaged::State, true);
            step.gather_statistics(1);
        }
        if kind.due.contains(&OUTER) {
            for (bucket, _) in step.full_buckets() {
                let params = step.params_of(bucket);
                let op = TaskOp::OuterUpdate { bucket: bucket as u32 };
                step.task(op, Queue::Compute).updates(params);
            }
        }
    }
}

impl StrategyPlan for LocalSgdPlan {
    fn kind_at(&self, step: u64) -> StepKind {
        let recipe = &self.recipe;
        if step < recipe.first_round() {
            return StepKind::reduce();
        }
        let Range { start, end } = recipe.round_at(step);
        if end - start == 1 {
            return self.one_step_round();
        }
        let mut due = Vec::new();
        if step + 1 == end {
            due.push(ROUND);
        }
        if recipe.is_group_sync_due(step + 1) {
            due.push(GROUP);
        }
        due.extend(recipe.fragments_due(step + 1).map(|fragment| FRAGMENT + fragment as u64));
        StepKind { due, ..StepKind::local() }
    }

    /// Long runs of one kind are not walked, since a run may have millions of steps.
    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        let recipe = &self.recipe;
        let mut counts = BTreeMap::new();
        let mut add = |kind: StepKind, count: u64| {
            if count > 0 {
                *counts.entry(kind).or_insert(0) += count;
            }
        };
        let meets_inside = recipe.sync.group_workers > 1 || recipe.sync.fragments > 1;
        add(StepKind::reduce(), recipe.first_round().min(steps));
        for round in recipe.rounds() {
            let len = round.end - round.start;
            if meets_inside {
                round.for_each(|step| add(self.kind_at(step), 1));
            } else if len == 1 {
                add(self.one_step_round(), 1);
            } else {
                add(StepKind::local(), len - 1);
                add(StepKind { due: vec![ROUND], ..StepKind::local() }, 1);
            }
        }
        counts
    }

    fn start(&self, at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        let (data, shares) = (at.groups.data(), &at.plan.shares);
        let (worker, num_workers) = (data.group_rank(), data.group_size());
        let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
        let averaging_group = |comm: Comm, workers_of: Range<usize>| AveragingGroup {
            comm: comm.canonical(),
            weight: shares[worker] as f32 / shares[workers_of].iter().sum::<usize>() as f32,
        };
        let group = match self.recipe.sync.group_workers {
            0 | 1 => None,
            size => {
                let ranks = |first| self.group_of(first, num_workers).map(|n| data.ranks()[n]);
                let partition = (0..num_workers).step_by(size);
                let partition: Vec<_> = partition.map(|n| Group::new(ranks(n).collect())).collect();
                let comm = data.split(&partition, "group")?;
                Some(averaging_group(comm, self.group_of(worker, num_workers)))
            }
        };
        let zeros = || at.buckets.list.iter().map(|bucket| vec![0.0; bucket.len]).collect();
        let rule = self.rule();
        let velocity = if rule == OuterOptimizer::Average { Vec::new() } else { zeros() };
        Ok(Some(Box::new(LocalSgd {
            all: averaging_group(data.summing(&each, "rounds")?, 0..num_workers),
            group,
            rule,
            shares: shares.clone(),
            worker,
            recipe: self.recipe.clone(),
            anchors: zeros(),
            velocity,
            buffer: vec![0.0; at.buckets.max_len()],
            distance: 0.0,
            moved: 0.0,
            drift: None,
        })))
    }
}

/// A communicator of ranks that average, and this rank's weight: its part of their batch.
struct AveragingGroup {
    comm: Comm,
    weight: f32,
}

/// Local SGD state of a rank.
struct LocalSgd {
    recipe: Recipe,
    all: AveragingGroup,
    /// Ranks of this group.
    group: Option<AveragingGroup>,
    rule: OuterOptimizer,
    /// Leaves of each worker, and this worker.
    shares: Vec<usize>,
    worker: usize,
    /// Weights at the start of the round, by bucket.
    anchors: Vec<Vec<f32>>,
    /// Momentum of the outer optimizer, by bucket; equal on all ranks.
    velocity: Vec<Vec<f32>>,
    /// Mean change of a bucket in flight.
    buffer: Vec<f32>,
    /// Distance from the mean and change of the mean, summed over the buckets averaged so far.
    distance: f64,
    moved: f64,
    drift: Option<Drift>,
}

impl LocalSgd {
    /// Factor of this worker's change at the end of a round: the mean number of local steps over
    /// its own number (FedNova, Wang et al. 2020), so that its samples weigh as much as with equal
    /// numbers.
    fn change_scale(&self, step: u64) -> f32 {
        if self.recipe.sync.worker_steps.is_empty() {
            return 1.0;
        }
        let round = self.recipe.round_at(step);
        let taken = |worker| {
            let until = |step| self.recipe.steps_taken(worker, step);
            (until(round.end) - until(round.start)) as f64
        };
        let all = self.shares.iter().sum::<usize>() as f64;
        let parts = self.shares.iter().map(|share| *share as f64 / all);
        let mean: f64 = parts.enumerate().map(|(n, part)| part * taken(n)).sum();
        (mean / taken(self.worker)) as f32
    }

    /// Replaces a bucket by the outer optimizer's step on the ranks' changes, which are averaged
    /// over all ranks unless all have made the same.
    fn outer_step(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        is_shared: bool,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        let weight = self.all.weight * self.change_scale(at.step);
        let params = at.store.own_params_mut(bucket);
        let anchor = &mut self.anchors[bucket][..];
        self.buffer.resize(self.buffer.len().max(params.len()), 0.0);
        let mean = &mut self.buffer[..params.len()];
        // From here on `params` holds this rank's change.
        params.iter_mut().zip(&*anchor).for_each(|(param, start)| *param -= start);
        mean.copy_from_slice(params);
        if !is_shared {
            for change in &mut *mean {
                *change *= weight;
            }
            self.all.comm.all_reduce(mean, Reduction::Sum)?;
            self.distance += squared_distance(params, mean);
            self.moved += squared_distance(mean, &[]);
        }
        let velocity = self.velocity.get_mut(bucket).map(Vec::as_mut_slice);
        apply(cpu, self.rule, anchor, mean, velocity);
        params.copy_from_slice(anchor);
        Ok(())
    }

    /// Averages a bucket within the group, inside a round.
    fn average_in_group(
        &mut self,
        bucket: usize,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        let Self { group: Some(group), anchors, buffer, .. } = self else { return Ok(()) };
        let (params, anchor) = (at.store.own_params_mut(bucket), &anchors[bucket]);
        buffer.resize(buffer.len().max(params.len()), 0.0);
        let mean = &mut buffer[..params.len()];
        for ((mean, param), start) in mean.iter_mut().zip(&*params).zip(anchor) {
            *mean = (param - start) * group.weight;
        }
        group.comm.all_reduce(mean, Reduction::Sum)?;
        for ((param, start), mean) in params.iter_mut().zip(anchor).zip(&*mean) {
            *param = start + mean;
        }
        Ok(())
    }

    /// Gathers the distances of all ranks from the mean.
    fn measure_drift(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        let mut all = vec![0.0; self.all.comm.group_size()];
        let (distance, moved) =
            (std::mem::take(&mut self.distance), std::mem::take(&mut self.moved));
        at.control(|comm| comm.all_gather(&[distance], &mut all))?;
        let by_size = all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let (worker, &max) = by_size.expect("at least one worker");
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        self.drift = Some(Drift { mean, max, worker, moved });
        Ok(())
    }
}

/// Moves the weights at the start of a round by the outer optimizer's step on their mean change.
fn apply(
    cpu: &Cpu,
    rule: OuterOptimizer,
    anchor: &mut [f32],
    mean: &mut [f32],
    velocity: Option<&mut [f32]>,
) {
    match (rule, velocity) {
        (OuterOptimizer::Nesterov { lr, momentum }, Some(velocity)) => {
            for change in &mut *mean {
                *change = -*change;
            }
            nesterov::step(cpu, lr, momentum, 0.0, 1.0, anchor, mean, velocity);
        }
        _ => anchor.iter_mut().zip(&*mean).for_each(|(param, change)| *param += change),
    }
}

impl AveragingGroup {
    /// Replaces a tensor of optimizer state by its mean over the ranks.
    fn average_state(&self, number: u32, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        let optimizer = at.optimizer.as_deref_mut().expect("a step has an optimizer");
        let num_states = optimizer.state_names().len();
        let (slot, kind) = (number as usize / num_states, number as usize % num_states);
        let slot = optimizer.slots()[slot].clone();
        let Some(state) = optimizer.state_mut(&slot.name, slot.piece, kind) else { return Ok(()) };
        for value in &mut *state {
            *value *= self.weight;
        }
        self.comm.all_reduce(state, Reduction::Sum)
    }
}

impl Strategy for LocalSgd {
    /// Saves the weights that all ranks start a round from.
    fn begin_step(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        let is_in_round = at.step >= self.recipe.first_round();
        if is_in_round && self.recipe.round_at(at.step).start == at.step {
            for (bucket, anchor) in self.anchors.iter_mut().enumerate() {
                anchor.copy_from_slice(at.store.own_params(bucket));
            }
        }
        Ok(())
    }

    fn run(
        &mut self,
        cpu: &Cpu,
        op: TaskOp,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        match op {
            TaskOp::Average(Averaged::Bucket(bucket)) => {
                self.outer_step(cpu, bucket as usize, false, at)
            }
            TaskOp::OuterUpdate { bucket } => self.outer_step(cpu, bucket as usize, true, at),
            TaskOp::Average(Averaged::BucketInGroup(bucket)) => {
                self.average_in_group(bucket as usize, at)
            }
            TaskOp::Average(Averaged::Fragment(fragment)) => {
                self.average_fragment(cpu, fragment as usize, at)
            }
            TaskOp::Average(Averaged::State(number)) => self.all.average_state(number, at),
            TaskOp::Average(Averaged::StateInGroup(number)) => {
                self.group.as_ref().map_or(Ok(()), |group| group.average_state(number, at))
            }
            TaskOp::Statistics => self.measure_drift(at),
            op => unreachable!("local SGD has no task {op}"),
        }
    }

    /// Outer momentum, which is equal on all ranks between rounds.
    fn visit(
        &mut self,
        at: &StateLayout<'_>,
        visit: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool,
    ) {
        if self.velocity.is_empty() {
            return;
        }
        for (block, param) in at.blueprint.params() {
            let (bucket, range) = at.buckets.place(block, param);
            let values = &mut self.velocity[bucket][range];
            if !visit(&format!("{}.outer", param.name), false, values) {
                return;
            }
        }
    }

    fn counters(&self) -> Counters {
        let groups = [Some(&self.all), self.group.as_ref()].into_iter().flatten();
        groups.fold(Counters::default(), |sum, group| sum.and(&group.comm.counters()))
    }

    fn num_elements(&self) -> [usize; 2] {
        let len = |buckets: &[Vec<f32>]| buckets.iter().map(Vec::len).sum::<usize>();
        [len(&self.velocity), len(&self.anchors) + self.buffer.capacity()]
    }

    fn take_measurements(&mut self) -> Measurements {
        Measurements { drift: self.drift.take(), ..Measurements::default() }
    }
}
