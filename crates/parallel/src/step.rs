//! The interpreter of step programs: a training step is to select its program and run it.
//!
//! The engine runs a program segment by segment ([`crate::programs`]): tasks of a segment share
//! buffers and are issued in the program's order, to this rank's compute queue or in the
//! background. What the training loop knows and a program does not, such as the data and the
//! decision to skip an update, is behind [`StepHost`].

use crate::call_spans::CallSpan;
use crate::loss_scaling::UnscaledGradients;
use crate::measurements::{ConsensusDistance, Measurements, Topology};
use crate::programs::{Segment, TrainingProgram};
use crate::replica::Replica;
use crate::strategy::{
    Passes, StateLayout, StepLoss, Strategy, StrategyContext, StrategyPlan, StrategyStart,
};
use crate::task_spans::{Recording, SampledTasks, TaskSpan, TaskSpans};
use lockstep_comm::CommError;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, ClipPlan, Optimizer, Update};
use lockstep_schedule::step::{TaskId, TaskOp};
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Part of a step that the training loop decides.
pub trait StepHost<'a> {
    /// Errors of the training loop.
    type Error: From<CommError>;

    /// A micro-batch by its number in the batch.
    fn microbatch(&self, index: usize) -> Microbatch<'a>;

    /// Number of targets of some micro-batches, or of the batch.
    fn num_targets(&self, microbatches: Option<&[u32]>) -> u64;

    /// Called before a micro-batch with a function that tells whether the step is over.
    fn before_microbatch(&self, _index: usize, _is_over: &dyn Fn() -> bool) {}

    /// Takes the loss of the step. Returns a factor of the gradient sums that makes up for ranks
    /// whose gradients are missing, if some are.
    fn after_microbatches(
        &mut self,
        _replica: &mut Replica,
        _loss: &StepLoss,
    ) -> Result<Option<f32>, Self::Error> {
        Ok(None)
    }

    /// The update, from the norm that all ranks agree on; `None` skips it, on all ranks alike.
    /// Where ranks do not wait for each other, each decides by its own norm.
    fn decide(&mut self, replica: &mut Replica, clip: &Clip)
    -> Result<Option<Update>, Self::Error>;
}

impl Replica {
    /// Runs a training step and returns the norm of its gradients and how they were clipped;
    /// nothing where other ranks have ended the step before this one could begin. Collective.
    pub fn run_step<'a, H: StepHost<'a>>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        optimizer: &mut Optimizer,
        clip_plan: &ClipPlan,
        host: &mut H,
    ) -> Result<Option<Clip>, H::Error> {
        if self.has_missed(step) {
            return Ok(None);
        }
        self.with_strategy(step, Some(optimizer), |strategy, at| strategy.begin_step(at))
            .transpose()?;
        self.begin_passes(step)?;
        let training = Arc::clone(&self.programs.training);
        let program = &training.program;
        let spans = self.begin_spans(program.tasks.len());
        let run = StepRun { cpu, step, training: &training, spans: &spans };
        let (mut sums, mut clip, mut update) = (None, Clip::unclipped(0.0), None);
        if self.is_served() {
            let inputs = |number: &u32| host.microbatch(*number as usize).inputs;
            self.begin_pulls(step, program.microbatches.iter().map(inputs))?;
        }
        for (segment, tasks) in &training.segments {
            let tasks = tasks.clone();
            match segment {
                // The reduction ends with the losses.
                Segment::Outside | Segment::Reduction | Segment::Unscale => {}
                // The loader has the batch.
                Segment::Load => spans.end_all(tasks),
                Segment::Passes => self.run_model(&Passes {
                    cpu,
                    seed,
                    step,
                    program,
                    tasks,
                    microbatch: &|number| host.microbatch(number),
                    before_microbatch: &|number, is_over| host.before_microbatch(number, is_over),
                    spans: &spans,
                })?,
                Segment::Losses => {
                    let norm;
                    (sums, norm) = self.finish_microbatches(&run, optimizer, host, tasks)?;
                    clip = norm.map_or(clip, Clip::unclipped);
                }
                Segment::Strategy => {
                    self.run_strategy(&run, optimizer, update, tasks)?;
                    // Before the agreement a strategy changes gradients only.
                    if self.strategy.is_some() && sums.is_none() {
                        self.store.publish(&mut self.device.link)?;
                    }
                    if self.is_step_over() {
                        self.pass_step(step);
                        return Ok(None);
                    }
                }
                Segment::Norm => {
                    self.measure_norm(cpu)?;
                    if !training.has_agreement() {
                        sums = None;
                        clip = self.norm.clip(clip_plan, &mut self.store.overlap)?;
                        update = host.decide(self, &clip)?;
                        if update.is_some() {
                            self.prepare_push(step);
                        }
                    }
                    spans.end_all(tasks);
                }
                Segment::Agreement => {
                    let sums = sums.take().expect("a step agrees once");
                    clip = self.agree(sums, clip_plan, step)?;
                    update = host.decide(self, &clip)?;
                    spans.end_all(tasks);
                }
                Segment::Update => {
                    if let Some(update) = &update {
                        self.update(cpu, optimizer, update, tasks, &spans)?;
                    }
                }
            }
        }
        if let Some(samples) = spans.finish() {
            self.step_context.samples = samples;
        }
        self.pass_step(step);
        Ok(Some(clip))
    }

    /// Spans of a step, if it is sampled.
    fn begin_spans(&mut self, num_tasks: usize) -> TaskSpans {
        let memory = &mut self.step_context.samples.spans;
        if self.step_context.is_sampled {
            return TaskSpans::begin(&self.world, std::mem::take(memory), num_tasks);
        }
        memory.clear();
        TaskSpans::default()
    }

    /// Allocates memory for the spans of background calls ([`Self::take_calls`]).
    pub fn record_calls(&mut self) {
        self.store.overlap.record_calls();
    }

    /// Sets whether the spans of the next steps are recorded ([`Self::sampled_tasks`]), and those
    /// of their background calls.
    pub fn set_sampled(&mut self, is_sampled: bool) {
        self.step_context.is_sampled = is_sampled;
        if let Some(calls) = self.store.overlap.calls() {
            calls.set_on(is_sampled);
        }
    }

    /// Spans of the last step, if it was sampled.
    pub fn sampled_tasks(&self) -> Option<SampledTasks<'_>> {
        let Recording { began, spans } = &self.step_context.samples;
        let program = &self.programs.training.program;
        (!spans.is_empty()).then_some(SampledTasks { began: *began, spans, program })
    }

    /// Takes the background calls of sampled steps that have ended since the last call.
    pub fn take_calls(&mut self, visit: impl FnMut(CallSpan)) {
        if let Some(calls) = self.store.overlap.calls() {
            calls.take(visit);
        }
    }

    /// Takes the spans of the last step, if it was sampled, with the actions of their tasks.
    pub fn take_spans(&mut self) -> Vec<(TaskSpan, String)> {
        let tasks = &self.programs.training.program.tasks;
        let spans = self.step_context.samples.spans.drain(..);
        spans.map(|span| (span, tasks[span.task.0 as usize].op.to_string())).collect()
    }

    /// Runs passes in this rank's model, or in that of the strategy.
    fn run_model(&mut self, passes: &Passes<'_, '_>) -> Result<(), CommError> {
        if let Some(strategy) = &mut self.strategy
            && strategy.run_passes(passes)?
        {
            return Ok(());
        }
        self.run_passes(passes, 0)
    }

    /// Gathers the losses and completes the gradients, where this rank has some; returns their norm
    /// where no task measures it.
    fn finish_microbatches<'a, H: StepHost<'a>>(
        &mut self,
        run: &StepRun<'_>,
        optimizer: &mut Optimizer,
        host: &mut H,
        tasks: Range<u32>,
    ) -> Result<(Option<UnscaledGradients>, Option<f64>), H::Error> {
        let first = run.training.program.tasks[tasks.start as usize].op;
        let loss = self.gather_loss(run, optimizer, host, tasks)?;
        let factor = host.after_microbatches(self, &loss)?;
        optimizer.read_ahead();
        let mut sums = None;
        if first == TaskOp::GatherLosses {
            let scaled = self.finish_reduction(run.cpu, run.spans)?;
            sums = Some(self.unscale(run.cpu, scaled)?);
        }
        if let Some(factor) = factor {
            self.rescale(run.cpu, factor)?;
        }
        run.spans.end_all(run.training.segment(Segment::Unscale));
        Ok((sums, loss.norm))
    }

    /// Sums the losses of all ranks, or of this one where the task makes no call.
    fn gather_loss<'a, H: StepHost<'a>>(
        &mut self,
        run: &StepRun<'_>,
        optimizer: &mut Optimizer,
        host: &H,
        tasks: Range<u32>,
    ) -> Result<StepLoss, CommError> {
        let mut loss = StepLoss { sum: 0.0, num_targets: None, norm: None };
        let program = &run.training.program;
        for id in tasks {
            let task = &program.tasks[id as usize];
            if task.op == TaskOp::GatherLosses {
                let is_alone = task.call.is_none();
                self.losses.set_alone(is_alone);
                loss.sum = self.end_passes(run.cpu)?;
                run.spans.end(TaskId(id));
                let own = || host.num_targets(Some(&program.microbatches)).max(1) as f64;
                loss.num_targets = is_alone.then(own);
                if self.is_served() {
                    loss = self.served_loss(loss, |microbatches| host.num_targets(microbatches))?;
                }
            } else {
                self.run_strategy(run, optimizer, None, id..id + 1)?;
            }
        }
        Ok(self.strategy.as_ref().and_then(|strategy| strategy.loss()).unwrap_or(loss))
    }

    /// Runs tasks of the strategy.
    fn run_strategy(
        &mut self,
        run: &StepRun<'_>,
        optimizer: &mut Optimizer,
        update: Option<Update>,
        tasks: Range<u32>,
    ) -> Result<(), CommError> {
        let StepRun { cpu, step, training, spans } = *run;
        let mut tasks = tasks.map(|id| (TaskId(id), training.program.tasks[id as usize].op));
        if self.is_served() {
            return tasks.try_for_each(|(id, op)| {
                self.run_server_task(cpu, step, update.as_ref(), op)?;
                spans.end(id);
                Ok(())
            });
        }
        let run = |strategy: &mut dyn Strategy, at: &mut StrategyContext<'_>| {
            at.update = update;
            tasks.try_for_each(|(id, op)| {
                strategy.run(cpu, op, at)?;
                spans.end(id);
                Ok(())
            })
        };
        self.with_strategy(step, Some(optimizer), run).unwrap_or(Ok(()))
    }
}

/// A step that runs.
#[derive(Clone, Copy)]
struct StepRun<'a> {
    cpu: &'a Cpu,
    step: u64,
    training: &'a TrainingProgram,
    spans: &'a TaskSpans,
}

impl Replica {
    /// Adopts a strategy. Collective, before the first step; every rank holds the whole model
    /// unless all that the strategy does is to reduce gradients.
    pub fn adopt(&mut self, plan: Box<dyn StrategyPlan>) -> Result<(), CommError> {
        let Self { groups, plan: of_replica, blueprint, all, store, world, .. } = &*self;
        let start =
            StrategyStart { groups, plan: of_replica, blueprint, buckets: all, world, store };
        self.strategy = plan.start(&start)?;
        assert!(
            self.strategy.is_none() || self.plan.is_replicated(),
            "the strategy requires a whole replica on each rank"
        );
        self.programs.adopt(plan);
        Ok(())
    }

    /// Whether the gradients of a step stay on this rank, so that ranks update by their own.
    pub fn is_local_step(&self, step: u64) -> bool {
        self.programs.kind_at(step).is_local()
    }

    /// Whether all ranks take each step together; otherwise each decides alone.
    pub fn steps_together(&self) -> bool {
        self.programs.strategy().is_none_or(StrategyPlan::steps_together)
    }

    /// Micro-batches of a client in a step, where each client divides its gradients by its own
    /// number of targets.
    pub fn microbatches_per_client(&self) -> Option<usize> {
        self.strategy.as_ref()?.microbatches_per_client()
    }

    /// Runs something with the strategy, if there is one.
    pub(crate) fn with_strategy<R>(
        &mut self,
        step: u64,
        optimizer: Option<&mut Optimizer>,
        run: impl FnOnce(&mut dyn Strategy, &mut StrategyContext<'_>) -> R,
    ) -> Option<R> {
        let Self { strategy, blueprint, store, .. } = self;
        let mut at = StrategyContext { step, blueprint, optimizer, update: None, store };
        strategy.as_deref_mut().map(|strategy| run(strategy, &mut at))
    }

    /// Installs the mean of all ranks' weights, where they have their own, until
    /// [`Self::restore_own_weights`]. Collective.
    pub fn install_mean_weights(&mut self) -> Result<(), CommError> {
        match self.with_strategy(0, None, |strategy, at| strategy.install_mean(at)) {
            Some(done) => done.and_then(|()| self.store.publish(&mut self.device.link)),
            None => Ok(()),
        }
    }

    /// Restores every rank's own weights.
    pub fn restore_own_weights(&mut self) -> Result<(), CommError> {
        match self.with_strategy(0, None, |strategy, at| strategy.restore_own(at)) {
            Some(done) => done.and_then(|()| self.store.publish(&mut self.device.link)),
            None => Ok(()),
        }
    }

    /// Resumes the strategy after `num_steps` steps from its restored state.
    pub fn resume_strategy(
        &mut self,
        num_steps: u64,
        optimizer: &mut Optimizer,
    ) -> Result<(), CommError> {
        let resume = |strategy: &mut dyn Strategy, at: &mut StrategyContext<'_>| {
            strategy.resume(num_steps, at)
        };
        match self.with_strategy(num_steps, Some(optimizer), resume) {
            Some(done) => done.and_then(|()| self.store.publish(&mut self.device.link)),
            None => Ok(()),
        }
    }

    /// Visits the strategy's checkpoint state ([`Strategy::visit`]).
    pub fn visit_strategy<E>(
        &mut self,
        mut visit: impl FnMut(&str, bool, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { strategy: Some(strategy), blueprint, store, .. } = self else {
            return self.visit_push_residuals(visit);
        };
        let mut result = Ok(());
        let at = StateLayout { blueprint, buckets: &store.buckets };
        strategy.visit(&at, &mut |name, is_own, values| {
            result = visit(name, is_own, values);
            result.is_ok()
        });
        result
    }

    /// Visits the strategy's checkpoint state that may move to other ranks
    /// ([`Strategy::visit_movable`]).
    pub fn visit_movable<E>(
        &mut self,
        mut visit: impl FnMut(&str, bool, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut result = Ok(());
        if let Some(strategy) = &mut self.strategy {
            strategy.visit_movable(&mut |name, is_saved, values| {
                result = visit(name, is_saved, values);
                result.is_ok()
            });
        }
        result
    }

    /// Takes what the strategy measured in the last step.
    pub fn take_measurements(&mut self) -> Measurements {
        let compression = self.push_compression();
        let of_push = Measurements { compression, ..Measurements::default() };
        self.strategy.as_mut().map_or(of_push, |it| it.take_measurements())
    }

    /// Number of this rank's gradients by staleness, where the strategy counts them.
    pub fn staleness(&self) -> Option<&BTreeMap<u64, u64>> {
        self.strategy.as_ref()?.staleness()
    }

    /// Consensus distance when the mean was installed last.
    pub fn consensus(&self) -> Option<ConsensusDistance> {
        self.strategy.as_ref()?.consensus()
    }

    /// Graph on which ranks average with neighbors, if they do.
    pub fn topology(&self) -> Option<Topology> {
        self.strategy.as_ref()?.topology()
    }
}
