//! Micro-batches of a step: runs those of this rank and hands their gradients to the reduction.

use crate::exchanged_store::ExchangedStore;
use crate::param_store::{Gradients, ParamStore};
use crate::parameter_server::ServedStore;
use crate::pipeline::Job;
use crate::programs::Segment;
use crate::replica::Replica;
use crate::step_context::StepContext;
use crate::step_program::GradientUse;
use crate::stragglers::{CutoffAgreement, StepCutoff, StepDuty};
use crate::strategy::{Passes, StrategyContext};
use crate::task_spans::TaskSpans;
use lockstep_comm::CommError;
use lockstep_config::LossScale;
use lockstep_model::{Microbatch, Mode};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

impl Replica {
    /// Runs this rank's micro-batches of a step forward and backward and adds their gradients to
    /// their leaves; `microbatch` returns a micro-batch by number, `step` selects dropout masks.
    /// Returns the sum of the token losses of all micro-batches of all ranks, added in micro-batch
    /// order; micro-batches of ranks that are cut off (see [`crate::stragglers`]) contribute none.
    pub fn run_microbatches<'a>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<f64, CommError> {
        self.begin_passes(step)?;
        let training = Arc::clone(&self.programs.training);
        let passes = Passes {
            cpu,
            seed,
            step,
            program: &training.program,
            tasks: training.segment(Segment::Passes),
            microbatch,
            before_microbatch: &|_, _| {},
            spans: &TaskSpans::default(),
        };
        self.run_passes(&passes, 0)?;
        self.end_passes(cpu)
    }

    /// Selects the program of a step and discards the gradients of the last one.
    pub(crate) fn begin_passes(&mut self, step: u64) -> Result<(), CommError> {
        if let Some(agreement) = &mut self.step_context.agreement {
            agreement.get_mut().begin()?;
        }
        let Self { store, step_context, programs, plan, blueprint, groups, device, .. } = self;
        // The gradients of a probe must not be reduced, even with a single micro-batch.
        store.is_held = step_context.agreement.is_some() || step_context.duty == StepDuty::Probe;
        let kind = programs.kind_at(step);
        store.set_alone(!kind.is_reduced());
        programs.select(kind, store.is_held, plan, blueprint, groups.rank());
        store.restart();
        store.overlap.begin_step(step);
        device.link.begin_step(step);
        device.tensor_parallel.begin_step(step);
        Ok(())
    }

    /// Runs the passes of some micro-batches, which the program counts from `first` on.
    pub(crate) fn run_passes(
        &mut self,
        passes: &Passes<'_, '_>,
        first: usize,
    ) -> Result<(), CommError> {
        let Passes { cpu, seed, step, program, .. } = *passes;
        let loss_scale = self.loss_scale.unwrap_or(LossScale::ONE);
        let is_exchanged = self.programs.kind_at(step).gradients == GradientUse::Exchanged;
        let waited_between_blocks = self.exposed_between_blocks();
        let Self {
            blueprint,
            plan,
            store,
            losses,
            device,
            scratch,
            step_context,
            client,
            strategy,
            ..
        } = self;
        let StepContext { agreement, duty, num_targets, .. } = &mut *step_context;
        let number = |index: usize| program.microbatches[index] as usize;
        let num_targets = Cell::from_mut(num_targets);
        let of_plan = |index: usize| {
            let microbatch = (passes.microbatch)(number(index));
            assert_eq!(microbatch.shape, plan.microbatch, "the memory is for this shape");
            num_targets.set(microbatch.num_targets);
            microbatch
        };
        let is_over = || agreement.as_ref().is_some_and(is_over);
        let num_done = Cell::new(0);
        let should_run = |index: usize| {
            if *duty == StepDuty::Nothing || (*duty == StepDuty::Probe && num_done.get() > 0) {
                return false;
            }
            (passes.before_microbatch)(number(index), &is_over);
            let should_run = !is_over();
            num_done.set(num_done.get() + usize::from(should_run));
            should_run
        };
        let (start, waited) = (self.world.clock().now(), store.overlap.exposed());
        let mut job = Job {
            blueprint,
            cpu,
            mode: Mode::Train { seed, step, loss_scale },
            scratch,
            num_microbatches: program.microbatches.len(),
            microbatch: &of_plan,
            should_run: &should_run,
            loss: &mut |index, loss| losses.set_own(index - first, loss),
            done: &|task| passes.spans.end(task),
        };
        let tasks = passes.tasks.clone();
        match (client, strategy) {
            (Some(client), _) => {
                device.run(&mut ServedStore { store, client }, &mut job, program, tasks)?;
            }
            (None, Some(strategy)) if is_exchanged => {
                let store = &mut *store;
                let at = StrategyContext { step, blueprint, optimizer: None, update: None, store };
                let strategy = &mut **strategy;
                device.run(&mut ExchangedStore { at, strategy }, &mut job, program, tasks)?;
            }
            (None, _) => device.run(store, &mut job, program, tasks)?,
        }
        let waited = self.store.overlap.exposed().saturating_sub(waited);
        self.step_context.num_run = num_done.get();
        self.step_context.computed = self.world.clock().since(start).saturating_sub(waited);
        let waited = self.exposed_between_blocks().saturating_sub(waited_between_blocks);
        self.step_context.pass_time += self.step_context.computed.saturating_sub(waited);
        Ok(())
    }

    /// Decides whose gradients count, and sums the losses.
    pub(crate) fn end_passes(&mut self, cpu: &Cpu) -> Result<f64, CommError> {
        self.drop_excluded_gradients(cpu)?;
        self.gather_losses()
    }

    /// Enables the cutoff. Collective; requires that each rank holds the whole model.
    pub fn enable_cutoff(&mut self, world: &World, rule: StepCutoff) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "a cutoff requires a whole replica on each rank");
        self.step_context.agreement =
            Some(CutoffAgreement::new(self.groups.data(), world, rule)?.into());
        Ok(())
    }

    /// Sets the duty of this rank in the next step.
    pub fn set_duty(&mut self, duty: StepDuty) {
        self.step_context.duty = duty;
    }

    /// Whether this rank's gradients counted in the last step.
    pub fn counted_in_step(&self) -> bool {
        self.step_context.counted_in_step
    }

    /// All-gathers three measurements of the last step per rank.
    pub fn all_gather_reports(
        &mut self,
        own: [f64; 3],
        all: &mut [[f64; 3]],
    ) -> Result<(), CommError> {
        self.store.overlap.call(|comm| comm.all_gather(&own, all.as_flattened_mut()))
    }

    /// Seconds per micro-batch of the last step on this rank, if it ran any; waits for other
    /// pipeline stages or tensor-parallel ranks are included.
    pub fn microbatch_seconds(&self) -> Option<f64> {
        (self.step_context.num_run > 0)
            .then(|| self.step_context.computed.as_secs_f64() / self.step_context.num_run as f64)
    }

    /// Zeroes the gradients of an excluded rank and starts held reductions.
    fn drop_excluded_gradients(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        self.step_context.counted_in_step = self.step_context.duty == StepDuty::Microbatches;
        if let Some(agreement) = &mut self.step_context.agreement {
            let start = self.world.clock().now();
            self.step_context.counted_in_step &= agreement.get_mut().conclude()?;
            self.store.overlap.add_exposed(self.world.clock().since(start));
        }
        if self.step_context.counted_in_step && self.step_context.agreement.is_none() {
            return Ok(());
        }
        let is_alone = self.store.is_alone();
        let ParamStore { grads: Gradients::Whole(grads), overlap, .. } = &mut self.store else {
            unreachable!("a cutoff requires whole gradients")
        };
        if !self.step_context.counted_in_step {
            grads.abandon();
            self.losses.clear_own();
        }
        if is_alone {
            // A local step reduces nothing.
            grads.mark_pending();
            return Ok(());
        }
        grads.release(cpu, overlap)
    }
}

fn is_over(agreement: &RefCell<CutoffAgreement>) -> bool {
    agreement.borrow_mut().is_over()
}
