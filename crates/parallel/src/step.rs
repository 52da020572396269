//! The interpreter of step programs: a training step is to select its program and run it.
//!
//! The engine runs a program segment by segment ([`crate::programs`]): tasks of a segment share
//! buffers and are issued in the program's order, to this rank's compute queue or in the
//! background. What the training loop knows and a program does not, such as the data and the
//! decision to skip an update, is behind [`StepHost`].

use crate::measurements::{ConsensusDistance, Measurements, Topology};
use crate::programs::Segment;
use crate::replica::Replica;
use crate::strategy::{StateLayout, Strategy, StrategyContext, StrategyPlan, StrategyStart};
use lockstep_comm::CommError;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, ClipPlan, Optimizer, Update};
use lockstep_tensor::Cpu;
use std::ops::Range;

/// Part of a step that the training loop decides.
pub trait StepHost<'a> {
    /// Errors of the training loop.
    type Error: From<CommError>;

    /// A micro-batch by its number in the batch.
    fn microbatch(&self, index: usize) -> Microbatch<'a>;

    /// Called before a micro-batch with a function that tells whether the step is over.
    fn before_microbatch(&self, _index: usize, _is_over: &dyn Fn() -> bool) {}

    /// Takes the sum of the token losses of all ranks. Returns a factor of the gradient sums that
    /// makes up for ranks whose gradients are missing, if some are.
    fn after_microbatches(
        &mut self,
        _replica: &mut Replica,
        _loss_sum: f64,
    ) -> Result<Option<f32>, Self::Error> {
        Ok(None)
    }

    /// The update, from the norm that all ranks agree on; `None` skips it, on all ranks alike.
    fn decide(&mut self, replica: &mut Replica, clip: &Clip)
    -> Result<Option<Update>, Self::Error>;
}

impl Replica {
    /// Runs a training step and returns the norm of its gradients and how they were clipped.
    /// Collective.
    pub fn run_step<'a, H: StepHost<'a>>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        optimizer: &mut Optimizer,
        clip_plan: &ClipPlan,
        host: &mut H,
    ) -> Result<Clip, H::Error> {
        self.with_strategy(step, Some(optimizer), |strategy, at| strategy.begin_step(at));
        let microbatch = |index| host.microbatch(index);
        let before = |index, is_over: &dyn Fn() -> bool| host.before_microbatch(index, is_over);
        let loss = self.run_microbatches_after(cpu, seed, step, &microbatch, &before)?;
        let factor = host.after_microbatches(self, loss)?;
        optimizer.read_ahead();
        let sums = self.finish_reduce(cpu)?;
        let mut sums = Some(self.unscale(cpu, sums));
        if let Some(factor) = factor {
            self.rescale(cpu, factor);
        }
        let (mut clip, mut update) = (Clip::unclipped(0.0), None);
        let program = self.programs.training.clone();
        for (segment, tasks) in &program.segments {
            match segment {
                // They ran above, since their results steer the step.
                Segment::Passes | Segment::Losses | Segment::Reduction | Segment::Unscale => {}
                Segment::Strategy => {
                    self.run_strategy(cpu, step, optimizer, tasks.clone())?;
                    // Before the agreement a strategy changes gradients only.
                    if sums.is_none() {
                        self.store.publish(&mut self.device.link)?;
                    }
                }
                Segment::Norm => self.measure_norm(cpu),
                Segment::Agreement => {
                    let sums = sums.take().expect("a step agrees once");
                    clip = self.agree(sums, clip_plan, step)?;
                    update = host.decide(self, &clip)?;
                }
                Segment::Update => {
                    if let Some(update) = &update {
                        self.update(cpu, optimizer, update, tasks.clone())?;
                    }
                }
            }
        }
        Ok(clip)
    }

    /// Runs tasks of the strategy.
    fn run_strategy(
        &mut self,
        cpu: &Cpu,
        step: u64,
        optimizer: &mut Optimizer,
        tasks: Range<u32>,
    ) -> Result<(), CommError> {
        let program = self.programs.training.clone();
        let run = |strategy: &mut dyn Strategy, at: &mut StrategyContext<'_>| {
            let tasks = &program.program.tasks[tasks.start as usize..tasks.end as usize];
            tasks.iter().try_for_each(|task| strategy.run(cpu, task.op, at))
        };
        self.with_strategy(step, Some(optimizer), run).unwrap_or(Ok(()))
    }
}

impl Replica {
    /// Adopts a strategy. Collective, before the first step; every rank holds the whole model
    /// unless all that the strategy does is to reduce gradients.
    pub fn adopt(&mut self, plan: Box<dyn StrategyPlan>) -> Result<(), CommError> {
        if !plan.is_interpreted() {
            return Ok(());
        }
        let Self { groups, plan: of_replica, blueprint, all, store, .. } = &*self;
        let start = StrategyStart { groups, plan: of_replica, blueprint, buckets: all, store };
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

    /// Runs something with the strategy, if there is one.
    pub(crate) fn with_strategy<R>(
        &mut self,
        step: u64,
        optimizer: Option<&mut Optimizer>,
        run: impl FnOnce(&mut dyn Strategy, &mut StrategyContext<'_>) -> R,
    ) -> Option<R> {
        let Self { strategy, blueprint, store, .. } = self;
        let mut at = StrategyContext { step, blueprint, optimizer, store };
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
        let Self { strategy: Some(strategy), blueprint, store, .. } = self else { return Ok(()) };
        let mut result = Ok(());
        let at = StateLayout { blueprint, buckets: &store.buckets };
        strategy.visit(&at, &mut |name, is_own, values| {
            result = visit(name, is_own, values);
            result.is_ok()
        });
        result
    }

    /// Takes what the strategy measured in the last step.
    pub fn take_measurements(&mut self) -> Measurements {
        self.strategy.as_mut().map_or(Measurements::default(), |it| it.take_measurements())
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
