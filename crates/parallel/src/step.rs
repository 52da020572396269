//! The interpreter of step programs: a training step is to select its program and run it.
//!
//! The engine runs a program segment by segment ([`crate::programs`]): tasks of a segment share
//! buffers and are issued in the program's order, to this rank's compute queue or in the
//! background. What the training loop knows and a program does not, such as the data and the
//! decision to skip an update, is behind [`StepHost`].

use crate::programs::Segment;
use crate::replica::Replica;
use crate::strategy::{Strategy, StrategyContext};
use lockstep_comm::CommError;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, ClipPlan, Optimizer, Update};
use lockstep_tensor::Cpu;
use std::ops::Range;

/// What a step needs from the training loop.
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
                Segment::Strategy => self.run_strategy(cpu, step, optimizer, tasks.clone())?,
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
        self.with_strategy(step, Some(optimizer), run).unwrap_or(Ok(()))?;
        self.store.publish(&mut self.device.link)
    }
}
