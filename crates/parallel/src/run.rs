//! The micro-batches of a step: which of them this worker runs, and what becomes of their gradients.

use crate::pipeline::Job;
use crate::replica::Replica;
use crate::store::{Gradients, WorkerStore};
use crate::stragglers::{Agreement, Duty};
use lockstep_comm::{CommError, Traffic};
use lockstep_config::LossScale;
use lockstep_model::{Microbatch, Mode};
use lockstep_tensor::Cpu;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// What a worker does in a step, and what it did in the last one.
#[derive(Default)]
pub(crate) struct Turn {
    /// How workers agree on whose gradients count, where not all have to.
    pub(crate) agreement: Option<RefCell<Agreement>>,
    /// What this one does in the next step.
    pub(crate) duty: Duty,
    /// Whether it was part of the last one.
    pub(crate) took_part: bool,
    /// Micro-batches that it ran in it, and how long it computed.
    num_run: usize,
    computed: Duration,
    /// How often micro-batches were divided anew, and what had travelled before.
    pub(crate) num_divisions: usize,
    pub(crate) past_traffic: Traffic,
}

/// Is called before a micro-batch, with its number and the question whether the step is over meanwhile.
pub type BeforeMicrobatch<'a> = &'a dyn Fn(usize, &dyn Fn() -> bool);

impl Replica {
    /// Runs this worker's micro-batches of a step forward and backward and adds their gradients to their
    /// leaves; `microbatch` gives a micro-batch by its number, `step` numbers dropout masks. Returns the sum of
    /// the token losses of all micro-batches of all workers, added in the order of micro-batches.
    pub fn run_microbatches<'a>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<f64, CommError> {
        self.run_microbatches_after(cpu, seed, step, microbatch, &|_, _| {})
    }

    /// The same, with something to do before each micro-batch. Micro-batches of workers that are not part of the
    /// step (see [`crate::stragglers`]) have no loss.
    pub fn run_microbatches_after<'a>(
        &mut self,
        cpu: &Cpu,
        seed: u64,
        step: u64,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
        before_microbatch: BeforeMicrobatch<'_>,
    ) -> Result<f64, CommError> {
        let loss_scale = self.loss_scale.unwrap_or(LossScale::ONE);
        if let Some(agreement) = &mut self.turn.agreement {
            agreement.get_mut().begin()?;
        }
        let Self { blueprint, plan, store, losses, device, scratch, turn, .. } = self;
        let Turn { agreement, duty, .. } = &*turn;
        // What a worker tries out must not leave, even where one micro-batch is all that it has.
        store.is_held = agreement.is_some() || *duty == Duty::Probe;
        store.restart();
        store.overlap.begin_step(step);
        device.link.begin_step(step);
        device.slicing.begin_step(step);
        let (numbers, told) = losses.own_mut();
        let of_plan = |index: usize| {
            let microbatch = microbatch(numbers[index]);
            assert_eq!(microbatch.shape, plan.microbatch, "the memory is for this shape");
            microbatch
        };
        let is_over = || agreement.as_ref().is_some_and(is_over);
        let num_done = Cell::new(0);
        let goes_on = |index: usize| {
            if *duty == Duty::Nothing || (*duty == Duty::Probe && num_done.get() > 0) {
                return false;
            }
            before_microbatch(numbers[index], &is_over);
            let goes_on = !is_over();
            num_done.set(num_done.get() + usize::from(goes_on));
            goes_on
        };
        let (start, waited) = (self.world.clock().now(), store.overlap.exposed());
        device.run(
            store,
            &mut Job {
                blueprint,
                cpu,
                mode: Mode::Train { seed, step, loss_scale },
                scratch,
                num_microbatches: numbers.len(),
                microbatch: &of_plan,
                goes_on: &goes_on,
                loss: &mut |index, loss| told[index] = loss,
            },
        )?;
        let waited = store.overlap.exposed().saturating_sub(waited);
        self.turn.num_run = num_done.get();
        self.turn.computed = self.world.clock().since(start).saturating_sub(waited);
        self.settle_microbatches(cpu)?;
        let Self { store, losses, .. } = self;
        losses.gather(&mut store.overlap)
    }

    /// How long a micro-batch of the last step took this worker, if it ran any. (What it waited for other
    /// stages of a pipeline or holders of slices counts, too.)
    pub fn microbatch_seconds(&self) -> Option<f64> {
        (self.turn.num_run > 0).then(|| self.turn.computed.as_secs_f64() / self.turn.num_run as f64)
    }

    /// Micro-batches are run: sees to it that only those count that should.
    fn settle_microbatches(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        self.turn.took_part = self.turn.duty == Duty::Microbatches;
        if let Some(agreement) = &mut self.turn.agreement {
            let start = self.world.clock().now();
            self.turn.took_part &= agreement.get_mut().conclude()?;
            self.store.overlap.add_exposed(self.world.clock().since(start));
        }
        if self.turn.took_part && self.turn.agreement.is_none() {
            return Ok(());
        }
        let is_alone = self.store.is_alone();
        let WorkerStore { grads: Gradients::Whole(grads), overlap, .. } = &mut self.store else {
            unreachable!("gradients are whole where workers can be left out")
        };
        if !self.turn.took_part {
            grads.abandon();
            self.losses.own_mut().1.fill(0.0);
        }
        if is_alone {
            // Nothing leaves in such a step.
            grads.put_back();
            return Ok(());
        }
        grads.release(cpu, overlap)
    }
}

fn is_over(agreement: &RefCell<Agreement>) -> bool {
    agreement.borrow_mut().is_over()
}
