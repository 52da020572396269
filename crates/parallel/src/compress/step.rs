//! Gradient compression as a synchronization strategy: tasks of a step, and their arithmetic.

use super::exchange::{Compression, Tensor};
use super::hierarchy::Hierarchy;
use super::{CompressionStats, ExchangePlan, Method, Shape, dgc, one_bit_adam};
use crate::from_recipe;
use crate::measurements::Measurements;
use crate::replica_plan::ReplicaPlan;
use crate::step_program::{ELEMENT, GradientUse, StepBuilder, StepKind, StepTasks};
use crate::strategy::{StateLayout, Strategy, StrategyContext, StrategyPlan, StrategyStart};
use lockstep_comm::{CommError, Traffic};
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use lockstep_model::Blueprint;
use lockstep_optim::Slot;
use lockstep_schedule::Op;
use lockstep_schedule::step::{BufferId, Call, Contents, Lengths, Queue, TaskOp};
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;

const LINK: Queue = Queue::Link(Axis::Data);

/// Due in an uncompressed step of a method with a momentum; other numbers are the step whose
/// messages are exchanged.
const TRACK: u64 = u64::MAX;

/// Compressed exchange of a recipe's gradients, if any.
pub fn exchange_plan(
    recipe: &Recipe,
    plan: &ReplicaPlan,
    blueprint: &Blueprint,
) -> Option<ExchangePlan> {
    let compression = from_recipe::compression_from_recipe(recipe)?;
    let method_of = |param: &str| from_recipe::tensor_method(recipe, &compression, param);
    Some(ExchangePlan::new(compression, plan, blueprint, method_of))
}

/// Compressed exchange of a run's gradients.
pub struct CompressedExchange {
    recipe: Recipe,
    method: Method,
}

impl CompressedExchange {
    /// Exchange of a recipe that compresses.
    pub fn new(recipe: &Recipe) -> Self {
        let method = from_recipe::method_of(recipe).expect("the recipe compresses");
        Self { recipe: recipe.clone(), method }
    }

    /// Step from which on messages are equally long: a ratio that falls makes earlier steps differ.
    fn steady_from(&self) -> u64 {
        match self.method {
            Method::Dgc { warmup_steps, .. } => warmup_steps,
            _ => 0,
        }
    }

    /// Kind of a step before the compression.
    fn warmup(&self) -> StepKind {
        let is_tracked = self.method.has_momentum();
        StepKind { due: is_tracked.then_some(TRACK).into_iter().collect(), ..StepKind::reduce() }
    }
}

impl StepTasks for CompressedExchange {
    fn add_exchange(&self, kind: &StepKind, step: &mut StepBuilder<'_>, grads: &[BufferId]) {
        let Some(&due) = kind.due.first() else { return };
        if due == TRACK {
            let momentum = step.persistent(Contents::Momentum, 0);
            let mut task = step.task(TaskOp::TrackMomentum, Queue::Compute).updates(momentum);
            for grads in grads {
                task = task.updates(*grads);
            }
            return;
        }
        let plan = exchange_plan(&self.recipe, step.plan(), step.blueprint());
        let plan = plan.expect("the recipe compresses");
        let (workers, size) = (self.recipe.run.workers, self.recipe.compress.group_workers.max(1));
        let statistics = step.buffer(Contents::Statistics, 3);
        let first = step.rank() / size * size;
        let in_group = (size > 1).then(|| step.workers(first..first + size));
        let sums = step.buffer(Contents::GroupSums, 0);
        let add = |step: &mut StepBuilder<'_>, op, call, uses: Option<bool>, is_last| {
            let mut task = step.task(op, LINK).calls(call);
            for grads in grads {
                task = task.updates(*grads);
            }
            task = match uses {
                Some(true) => task.writes(sums),
                Some(false) => task.takes(sums),
                None => task,
            };
            if is_last {
                let _ = task.writes(statistics);
            }
        };
        let len = plan.num_params();
        let group_call =
            |group, op| Call { group, op, lengths: Lengths::Even(len), element: ELEMENT };
        if let Some(group) = in_group {
            let call = group_call(group, Op::Reduce { root: 0 });
            add(step, TaskOp::ReduceInGroup, call, Some(true), false);
        }
        if step.rank() == first {
            let group = step.workers((0..workers).step_by(size));
            let calls = plan.calls(due);
            let num_calls = calls.len();
            for (part, planned) in calls.into_iter().enumerate() {
                let (lengths, element) = (Lengths::Even(planned.len), Bytes(planned.element));
                let call = Call { group, op: planned.op, lengths, element };
                let is_last = part + 1 == num_calls && in_group.is_none();
                add(step, TaskOp::Exchange { part: part as u32 }, call, None, is_last);
            }
        }
        if let Some(group) = in_group {
            let call = group_call(group, Op::Broadcast { root: 0 });
            add(step, TaskOp::BroadcastInGroup, call, Some(false), true);
        }
        step.gather_statistics(3);
    }
}

impl StrategyPlan for CompressedExchange {
    fn kind_at(&self, step: u64) -> StepKind {
        if !self.recipe.compress.is_on_in(step) {
            return self.warmup();
        }
        StepKind {
            gradients: GradientUse::Exchanged,
            due: vec![step.min(self.steady_from())],
            ..StepKind::default()
        }
    }

    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        let first = self.recipe.compress.warmup_steps.min(steps);
        let steady_from = self.steady_from().clamp(first, steps);
        let mut counts = BTreeMap::from([(self.warmup(), first)]);
        (first..steady_from).for_each(|step| *counts.entry(self.kind_at(step)).or_insert(0) += 1);
        *counts.entry(self.kind_at(steady_from)).or_insert(0) += steps - steady_from;
        counts.retain(|_, count| *count > 0);
        counts
    }

    /// The first compressed step has the largest messages.
    fn union(&self, steps: u64) -> StepKind {
        let first = self.recipe.compress.warmup_steps;
        match (first, first < steps) {
            (_, false) => self.warmup(),
            (0, true) => self.kind_at(0),
            (_, true) => StepKind { due: self.kind_at(first).due, ..StepKind::reduce() },
        }
    }

    fn start(&self, at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        let plan = from_recipe::compression_from_recipe(&self.recipe);
        let plan = plan.expect("the recipe compresses");
        let hierarchy = Hierarchy::new(at.groups.data(), plan.group)?;
        let num_workers = hierarchy.leaders.group_size();
        let (mut start, mut power) = (0, Vec::new());
        let mut tensors = Vec::new();
        for slot in at.slots() {
            let shape = Shape::of(&slot, at.blueprint);
            let len = shape.len;
            let method = from_recipe::tensor_method(&self.recipe, &plan, &slot.name);
            let method = method.filter(|_| hierarchy.is_writer());
            let method = method.filter(|method| !method.is_dense(&shape, num_workers));
            let first = power.len();
            let mut tensor =
                Tensor { slot, shape, start, method, now: method, power: first..first };
            if let Some(buffer) = tensor.low_rank() {
                power.extend(buffer.first_q(tensor.first_key(plan.seed)));
                tensor.power.end = power.len();
            }
            tensors.push(tensor);
            start += len;
        }
        let (zeros, is_writer) = (|| vec![0.0; start], hierarchy.is_writer());
        Ok(Some(Box::new(Compression {
            plan,
            freezes_at: match plan.method {
                Method::OneBitAdam { .. } => Some(self.recipe.compress.warmup_steps),
                _ => None,
            },
            hierarchy,
            tensors,
            residual: if plan.error_feedback && is_writer { zeros() } else { Vec::new() },
            momentum: if plan.method.has_momentum() { zeros() } else { Vec::new() },
            power,
            uncompressed: zeros(),
            sent: zeros(),
            total: zeros(),
            own: Vec::new(),
            all: Vec::new(),
            buffer: Vec::new(),
            stages: Vec::new(),
            stats: None,
        })))
    }
}

impl Compression {
    /// Copies this rank's unreduced gradients.
    fn load(&mut self, at: &StrategyContext<'_>) {
        for tensor in &self.tensors {
            let grads = &at.store.own_grads(tensor.slot.block)[tensor.slot.grads.clone()];
            self.uncompressed[tensor.flat()].copy_from_slice(grads);
        }
    }

    /// Replaces the gradients by the sum of all ranks' compressed ones.
    fn unload(&self, at: &mut StrategyContext<'_>) {
        for tensor in &self.tensors {
            let total = &self.total[tensor.flat()];
            let grads = at.store.own_grads_mut(tensor.slot.block);
            grads[tensor.slot.grads.clone()].copy_from_slice(total);
        }
    }

    /// One call of the exchange; the first begins it and the last ends it.
    fn exchange(
        &mut self,
        cpu: &Cpu,
        part: usize,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        if part == 0 {
            if !self.hierarchy.has_groups() {
                self.load(at);
            }
            self.begin(cpu, at.step);
        }
        let stage = self.stages[part];
        self.run_stage(cpu, stage, at.step)?;
        if part + 1 == self.stages.len() {
            self.end(cpu);
            if !self.hierarchy.has_groups() {
                self.unload(at);
            }
        }
        Ok(())
    }

    /// Updates momenta after a step whose gradients were reduced uncompressed.
    fn track(&mut self, at: &mut StrategyContext<'_>) {
        let Self { plan, tensors, momentum, hierarchy, .. } = self;
        let num_workers = hierarchy.leaders.group_size();
        for tensor in &*tensors {
            let (Slot { block, grads, .. }, flat) = (&tensor.slot, tensor.flat());
            let grads = &mut at.store.own_grads_mut(*block)[grads.clone()];
            match plan.method {
                Method::OneBitAdam { beta1 } => {
                    one_bit_adam::follow(beta1, &mut momentum[flat], grads);
                }
                Method::Dgc { momentum: factor, .. } => {
                    dgc::follow(factor, num_workers, &mut momentum[flat], grads);
                }
                _ => {}
            }
        }
    }

    fn gather_stats(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        let own = self.observe();
        let all = at.control(|comm| {
            let mut all = vec![0.0; 3 * comm.group_size()];
            comm.all_gather(&own, &mut all).map(|()| all)
        })?;
        let (all, _) = all.as_chunks::<3>();
        let sum = |index: usize| all.iter().fold(0.0, |sum, own| sum + own[index]);
        let num_writers = self.hierarchy.leaders.group_size();
        self.stats = Some(CompressionStats {
            delta: if sum(1) > 0.0 { sum(0) / sum(1) } else { 0.0 },
            residual_norm: all.iter().map(|own| own[2].sqrt()).sum::<f64>() / num_writers as f64,
            message_bytes: self.message_bytes(),
            dense_bytes: (self.total.len() * size_of::<f32>()) as u64,
        });
        Ok(())
    }
}

impl Strategy for Compression {
    /// Freezes the second moments of 1-bit Adam when its warm-up ends.
    fn begin_step(&mut self, at: &mut StrategyContext<'_>) {
        if let (Some(step), Some(optimizer)) = (self.freezes_at, at.optimizer.as_deref_mut())
            && step == at.step
        {
            optimizer.freeze_second_moments(step);
        }
    }

    fn run(
        &mut self,
        cpu: &Cpu,
        op: TaskOp,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        match op {
            TaskOp::TrackMomentum => {
                self.track(at);
                Ok(())
            }
            TaskOp::ReduceInGroup => {
                self.load(at);
                self.hierarchy.reduce(&mut self.uncompressed)
            }
            TaskOp::Exchange { part } => self.exchange(cpu, part as usize, at),
            TaskOp::BroadcastInGroup => {
                self.hierarchy.broadcast(&mut self.total)?;
                self.unload(at);
                Ok(())
            }
            TaskOp::Statistics => self.gather_stats(at),
            op => unreachable!("compression has no task {op}"),
        }
    }

    /// Second moments that were frozen before the checkpoint stay frozen.
    fn resume(&mut self, num_steps: u64, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        if let (Some(step), Some(optimizer)) = (self.freezes_at, at.optimizer.as_deref_mut())
            && num_steps > step
        {
            optimizer.freeze_second_moments(step);
        }
        Ok(())
    }

    /// Residuals, momenta and PowerSGD factors.
    fn visit(
        &mut self,
        _at: &StateLayout<'_>,
        visit: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool,
    ) {
        let Self { plan, tensors, residual, momentum, power, .. } = self;
        for tensor in tensors {
            let (name, flat) = (tensor.slot.name.as_str(), tensor.flat());
            let mut show = |kind: &str, is_own, values: &mut [f32]| {
                visit(&format!("{name}.{kind}"), is_own, values)
            };
            if plan.error_feedback
                && tensor.method.is_some()
                && !show("residual", true, &mut residual[flat.clone()])
            {
                return;
            }
            let goes_on = match plan.method {
                Method::OneBitAdam { .. } => show("sent", false, &mut momentum[flat]),
                Method::Dgc { .. } if !momentum.is_empty() => {
                    show("momentum", true, &mut momentum[flat])
                }
                Method::PowerSgd { .. } if tensor.method.is_some() => {
                    show("power", false, &mut power[tensor.power.clone()])
                }
                _ => true,
            };
            if !goes_on {
                return;
            }
        }
    }

    fn traffic(&self) -> Traffic {
        self.hierarchy.traffic()
    }

    fn num_elements(&self) -> [usize; 2] {
        [0, self.elements_held()]
    }

    fn take_measurements(&mut self) -> Measurements {
        Measurements { compression: self.stats.take(), ..Measurements::default() }
    }
}
