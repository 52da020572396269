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
use crate::strategy::StrategyContext;
use lockstep_comm::CommError;
use lockstep_config::LossScale;
use lockstep_model::{Microbatch, Mode};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use std::cell::{Cell, RefCell};

/// Called before a micro-batch with its number and a function that tells whether the step is over.
pub type BeforeMicrobatch<'a> = &'a dyn Fn(usize, &dyn Fn() -> bool);

impl Replica {
    /// Runs this rank's micro-batches of a step forward and backward and adds their gradients to
    /// their leaves; `microbatch` returns a micro-batch by number, `step` selects dropout masks.
    /// Returns the sum of the token losses of all micro-batches of all ranks, added in micro-batch
    /// order.
    pub fn run_microbatches<'a>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<f64, CommError> {
        self.run_microbatches_after(cpu, seed, step, microbatch, &|_, _| {})
    }

    /// Like [`Self::run_microbatches`], with a call before each micro-batch. Micro-batches of ranks
    /// that are cut off (see [`crate::stragglers`]) contribute no loss.
    pub fn run_microbatches_after<'a>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
        before_microbatch: BeforeMicrobatch<'_>,
    ) -> Result<f64, CommError> {
        let loss_scale = self.loss_scale.unwrap_or(LossScale::ONE);
        if let Some(agreement) = &mut self.step_context.agreement {
            agreement.get_mut().begin()?;
        }
        let Self { store, step_context, .. } = &mut *self;
        // The gradients of a probe must not be reduced, even with a single micro-batch.
        store.is_held = step_context.agreement.is_some() || step_context.duty == StepDuty::Probe;
        let Self { programs, plan, blueprint, groups, store, .. } = &mut *self;
        let kind = programs.kind_at(step);
        let is_exchanged = kind.gradients == GradientUse::Exchanged;
        store.set_alone(!kind.is_reduced());
        programs.select(step, store.is_held, plan, blueprint, groups.rank());
        let Self {
            blueprint,
            plan,
            store,
            losses,
            device,
            scratch,
            step_context,
            programs,
            client,
            strategy,
            ..
        } = self;
        let StepContext { agreement, duty, .. } = &*step_context;
        store.restart();
        store.overlap.begin_step(step);
        device.link.begin_step(step);
        device.tensor_parallel.begin_step(step);
        let (numbers, own_losses) = losses.own_mut();
        let of_plan = |index: usize| {
            let microbatch = microbatch(numbers[index]);
            assert_eq!(microbatch.shape, plan.microbatch, "the memory is for this shape");
            microbatch
        };
        let is_over = || agreement.as_ref().is_some_and(is_over);
        let num_done = Cell::new(0);
        let should_run = |index: usize| {
            if *duty == StepDuty::Nothing || (*duty == StepDuty::Probe && num_done.get() > 0) {
                return false;
            }
            before_microbatch(numbers[index], &is_over);
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
            num_microbatches: numbers.len(),
            microbatch: &of_plan,
            should_run: &should_run,
            loss: &mut |index, loss| own_losses[index] = loss,
        };
        let (program, passes) =
            (&programs.training.program, programs.training.segment(Segment::Passes));
        match (client, strategy) {
            (Some(client), _) => {
                device.run(&mut ServedStore { store, client }, &mut job, program, passes)?;
            }
            (None, Some(strategy)) if is_exchanged => {
                let at = StrategyContext { step, blueprint, optimizer: None, store: &mut *store };
                let strategy = &mut **strategy;
                device.run(&mut ExchangedStore { at, strategy }, &mut job, program, passes)?;
            }
            (None, _) => device.run(store, &mut job, program, passes)?,
        }
        let waited = store.overlap.exposed().saturating_sub(waited);
        self.step_context.num_run = num_done.get();
        self.step_context.computed = self.world.clock().since(start).saturating_sub(waited);
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
            self.losses.own_mut().1.fill(0.0);
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
