//! Gradient compression as a synchronization strategy: tasks of a step, and their arithmetic.

use super::bucket_exchange::{BucketExchange, Stage, Tensor};
use super::exchange::Compression;
use super::hierarchy::Hierarchy;
use super::{CompressionStats, ExchangePlan, Method, Shape, dgc, one_bit_adam};
use crate::from_recipe;
use crate::measurements::Measurements;
use crate::replica_plan::ReplicaPlan;
use crate::step_program::{ELEMENT, GradientUse, StepBuilder, StepKind, StepTasks};
use crate::strategy::{StateLayout, Strategy, StrategyContext, StrategyPlan, StrategyStart};
use lockstep_comm::{CommError, Counters};
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use lockstep_model::Blueprint;
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
    fn add_bucket_exchange(
        &self,
        kind: &StepKind,
        step: &mut StepBuilder<'_>,
        (bucket, grads): (usize, BufferId),
    ) {
        let Some(&due) = kind.due.first().filter(|due| **due != TRACK) else { return };
        let exchange = ExchangeTasks::new(&self.recipe, due, step);
        if exchange.plan.buckets().any(|(other, _)| other == bucket) {
            exchange.begin(step, bucket, grads);
        }
    }

    fn add_exchange(
        &self,
        kind: &StepKind,
        step: &mut StepBuilder<'_>,
        grads: &[(usize, BufferId)],
    ) {
        let Some(&due) = kind.due.first() else { return };
        if due == TRACK {
            let momentum = step.persistent(Contents::Momentum, 0);
            let mut task = step.task(TaskOp::TrackMomentum, Queue::Compute).updates(momentum);
            for (_, grads) in grads {
                task = task.updates(*grads);
            }
            return;
        }
        let exchange = ExchangeTasks::new(&self.recipe, due, step);
        exchange.finish(step, grads);
        step.gather_statistics(3);
    }
}

/// Tasks of a rank's exchange in a step.
struct ExchangeTasks {
    plan: ExchangePlan,
    due: u64,
    /// Group of this rank that sums uncompressed gradients, if there are groups.
    in_group: Option<u32>,
    /// Ranks that exchange compressed gradients, if this is one of them.
    leaders: Option<u32>,
}

impl ExchangeTasks {
    fn new(recipe: &Recipe, due: u64, step: &mut StepBuilder<'_>) -> Self {
        let plan = exchange_plan(recipe, step.plan(), step.blueprint());
        let size = recipe.compress.group_workers.max(1);
        let first = step.rank() / size * size;
        let leaders = (0..recipe.run.workers).step_by(size);
        Self {
            plan: plan.expect("the recipe compresses"),
            due,
            in_group: (size > 1).then(|| step.workers(first..first + size)),
            leaders: (step.rank() == first).then(|| step.workers(leaders)),
        }
    }

    fn len_of(&self, bucket: usize) -> usize {
        let mut buckets = self.plan.buckets();
        buckets.find(|(other, _)| *other == bucket).map_or(0, |(_, len)| len)
    }

    fn group_sums(&self, step: &mut StepBuilder<'_>, bucket: usize) -> BufferId {
        step.buffer(Contents::GroupSums { bucket: bucket as u32 }, self.len_of(bucket))
    }

    fn encoded(&self, step: &mut StepBuilder<'_>, bucket: usize) -> BufferId {
        step.buffer(Contents::Encoded { number: bucket as u32 }, self.len_of(bucket))
    }

    fn group_call(&self, bucket: usize, op: Op) -> Option<Call> {
        let lengths = Lengths::Even(self.len_of(bucket));
        self.in_group.map(|group| Call { group, op, lengths, element: ELEMENT })
    }

    /// Tasks of a full bucket: its sum within the group, or its exchange.
    fn begin(&self, step: &mut StepBuilder<'_>, bucket: usize, grads: BufferId) {
        match self.group_call(bucket, Op::Reduce { root: 0 }) {
            Some(call) => {
                let sums = self.group_sums(step, bucket);
                let op = TaskOp::ReduceInGroup { bucket: bucket as u32 };
                step.task(op, LINK).calls(call).reads(grads).writes(sums);
            }
            None => self.encode(step, bucket, grads),
        }
    }

    /// Compresses a bucket and starts the calls that need nothing else.
    fn encode(&self, step: &mut StepBuilder<'_>, bucket: usize, source: BufferId) {
        let encoded = self.encoded(step, bucket);
        let op = TaskOp::Encode { bucket: bucket as u32 };
        step.task(op, Queue::Compute).reads(source).writes(encoded);
        self.call(step, bucket, |stage| stage != Stage::SecondFactor);
    }

    /// Calls of some stages of a bucket.
    fn call(&self, step: &mut StepBuilder<'_>, bucket: usize, is_it: impl Fn(Stage) -> bool) {
        let group = self.leaders.expect("this rank compresses");
        let encoded = self.encoded(step, bucket);
        for (part, planned) in self.plan.calls(bucket, self.due).into_iter().enumerate() {
            if is_it(planned.stage) {
                let (lengths, element) = (Lengths::Even(planned.len), Bytes(planned.element));
                let call = Call { group, op: planned.op, lengths, element };
                let op = TaskOp::Exchange { bucket: bucket as u32, part: part as u32 };
                step.task(op, LINK).calls(call).updates(encoded);
            }
        }
    }

    /// Tasks after the passes: exchanges of tied tensors and of sums within groups, second factors,
    /// and the sums of all buckets, in the order of backward.
    fn finish(&self, step: &mut StepBuilder<'_>, grads: &[(usize, BufferId)]) {
        let grads: BTreeMap<usize, BufferId> = grads.iter().copied().collect();
        let buckets: Vec<usize> = self.plan.buckets().map(|(bucket, _)| bucket).rev().collect();
        for bucket in &buckets {
            if step.owns_tied(*bucket) {
                self.begin(step, *bucket, grads[bucket]);
            }
        }
        if self.leaders.is_some() {
            for &bucket in buckets.iter().filter(|_| self.in_group.is_some()) {
                let sums = self.group_sums(step, bucket);
                self.encode(step, bucket, sums);
            }
            for &bucket in &buckets {
                self.call(step, bucket, |stage| stage == Stage::SecondFactor);
            }
            self.decode(step, &buckets, &grads);
        }
        let statistics = step.buffer(Contents::Statistics, 3);
        for &bucket in &buckets {
            let Some(call) = self.group_call(bucket, Op::Broadcast { root: 0 }) else { break };
            let sums = self.group_sums(step, bucket);
            let op = TaskOp::BroadcastInGroup { bucket: bucket as u32 };
            let task = step.task(op, LINK).calls(call).takes(sums).updates(grads[&bucket]);
            if Some(&bucket) == buckets.last() {
                task.writes(statistics);
            }
        }
    }

    /// Sums of all buckets; the last one decides whether the step counts for all of them.
    fn decode(
        &self,
        step: &mut StepBuilder<'_>,
        buckets: &[usize],
        grads: &BTreeMap<usize, BufferId>,
    ) {
        let statistics = step.buffer(Contents::Statistics, 3);
        for (index, &bucket) in buckets.iter().enumerate() {
            let is_last = index + 1 == buckets.len();
            let encoded = self.encoded(step, bucket);
            let changed = if is_last { buckets } else { &buckets[index..=index] };
            let changed: Vec<BufferId> = match self.in_group {
                Some(_) => changed.iter().map(|it| self.group_sums(step, *it)).collect(),
                None => changed.iter().map(|it| grads[it]).collect(),
            };
            let op = TaskOp::Decode { bucket: bucket as u32 };
            let mut task = step.task(op, Queue::Compute).takes(encoded);
            for buffer in changed {
                task = task.updates(buffer);
            }
            if is_last && self.in_group.is_none() {
                task.writes(statistics);
            }
        }
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
        let (num_workers, is_writer) = (hierarchy.leaders.group_size(), hierarchy.is_writer());
        let mut tensors: BTreeMap<usize, Vec<Tensor>> = BTreeMap::new();
        for slot in at.slots() {
            let shape = Shape::of(&slot, at.blueprint);
            let method = from_recipe::tensor_method(&self.recipe, &plan, &slot.name);
            let method = method.filter(|_| is_writer);
            let method = method.filter(|method| !method.is_dense(&shape, num_workers));
            let of_bucket = tensors.entry(slot.block).or_default();
            let start = of_bucket.last().map_or(0, |tensor| tensor.flat().end);
            of_bucket.push(Tensor { slot, shape, start, method, now: method, power: 0..0 });
        }
        let bucket = |(bucket, tensors)| BucketExchange::new(bucket, tensors, &plan, is_writer);
        Ok(Some(Box::new(Compression {
            plan,
            freezes_at: match plan.method {
                Method::OneBitAdam { .. } => Some(self.recipe.compress.warmup_steps),
                _ => None,
            },
            hierarchy,
            buckets: tensors.into_iter().map(bucket).collect(),
            step: 0,
            num_decoded: 0,
            stats: None,
        })))
    }
}

impl Compression {
    /// Updates momenta after a step whose gradients were reduced uncompressed.
    fn track(&mut self, at: &mut StrategyContext<'_>) {
        let num_workers = self.hierarchy.leaders.group_size();
        for own in &mut self.buckets {
            let grads = at.store.own_grads_mut(own.bucket);
            for tensor in &own.tensors {
                let grads = &mut grads[tensor.slot.grads.clone()];
                let momentum = &mut own.momentum[tensor.flat()];
                match self.plan.method {
                    Method::OneBitAdam { beta1 } => one_bit_adam::follow(beta1, momentum, grads),
                    Method::Dgc { momentum: factor, .. } => {
                        dgc::follow(factor, num_workers, momentum, grads);
                    }
                    _ => {}
                }
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
            dense_bytes: (self.num_params() * size_of::<f32>()) as u64,
        });
        Ok(())
    }
}

impl Strategy for Compression {
    /// Freezes the second moments of 1-bit Adam when its warm-up ends.
    fn begin_step(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        if let (Some(step), Some(optimizer)) = (self.freezes_at, at.optimizer.as_deref_mut())
            && step == at.step
        {
            optimizer.freeze_second_moments(step);
        }
        self.begin(at.step);
        Ok(())
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
            TaskOp::ReduceInGroup { bucket } => self.reduce_in_group(bucket as usize, at.store),
            TaskOp::Encode { bucket } => self.encode(cpu, bucket as usize, at.store),
            TaskOp::Exchange { bucket, part } => {
                self.exchange(cpu, (bucket as usize, part as usize), at.store)
            }
            TaskOp::Decode { bucket } => self.decode(cpu, bucket as usize, at.store),
            TaskOp::BroadcastInGroup { bucket } => {
                self.broadcast_in_group(bucket as usize, at.store)
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
        let plan = self.plan;
        for own in &mut self.buckets {
            let BucketExchange { tensors, residual, momentum, power, .. } = own;
            for tensor in &*tensors {
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
    }

    fn counters(&self) -> Counters {
        self.hierarchy.counters()
    }

    fn num_elements(&self) -> [usize; 2] {
        [0, self.elements_held()]
    }

    fn take_measurements(&mut self) -> Measurements {
        Measurements { compression: self.stats.take(), ..Measurements::default() }
    }
}
