//! A training step on one batch: which gradients count, and whether the update is applied.
//!
//! Where all ranks take each step together, they agree on both. Ranks that step alone decide by
//! their own loss and gradients.

use crate::emulation::Emulation;
use crate::health::{Stability, Verdict};
use crate::histograms::visit_histograms;
use crate::learner::Learner;
use crate::microbatch::{microbatch_of, microbatch_shape, own_targets};
use crate::noise_scale::{Divisors, NoiseMeter};
use crate::preference_figures::PreferenceFigures;
use crate::step_log::StepRecord;
use crate::stragglers::{Participation, StragglerMonitor};
use crate::{TrainError, feed, health};
use lockstep_config::Recipe;
use lockstep_data::Batch;
use lockstep_model::Microbatch;
use lockstep_optim::{Clip, Update};
use lockstep_parallel::{Replica, StepHost, StepLoss};
use lockstep_telemetry::Telemetry;
use lockstep_tensor::Cpu;

/// Batch of a step and how it is trained on.
pub(crate) struct StepSetting<'a> {
    /// Compute device.
    pub cpu: &'a Cpu,
    /// Resolved recipe of the run.
    pub recipe: &'a Recipe,
    /// Step number, counted from zero.
    pub step: u64,
    /// Samples of all ranks.
    pub batch: &'a Batch,
    /// Kind and number of what takes the step, for errors.
    pub place: (&'static str, usize),
    /// Emulated speed.
    pub emulation: Option<&'a Emulation>,
    /// For steps that all ranks take together.
    pub joint: Option<JointStep<'a>>,
}

/// Shared decisions and measurements of ranks that take a step together.
pub(crate) struct JointStep<'a> {
    /// Number of targets over all ranks.
    pub targets: &'a mut feed::Targets,
    /// Straggler policy.
    pub stragglers: &'a mut StragglerMonitor,
    /// Gradient noise.
    pub noise: &'a mut NoiseMeter,
    /// Sink of histograms.
    pub telemetry: &'a mut Telemetry,
}

/// Trains on a batch; returns nothing if the other ranks have finished the step without this one.
pub(crate) fn take_step(
    setting: StepSetting<'_>,
    learner: &mut Learner,
) -> Result<Option<(StepRecord, Participation)>, TrainError> {
    let StepSetting { cpu, recipe, step, batch, place, emulation, joint } = setting;
    let lr = learner.lr(step);
    let count = learner.update_count(recipe, step);
    let Learner { replica, optimizer, clip, stability, .. } = learner;
    let mut joint = joint.filter(|_| replica.steps_together());
    let per_client = replica.microbatches_per_client();
    // All workers know the micro-batches of all clients.
    let num_targets = match &mut joint {
        Some(joint) if per_client.is_none() => joint.targets.of(batch)?,
        _ => batch.num_targets,
    };
    // A worker that updates by its own gradients divides them by its own targets; those of ranks
    // that step alone sum to that of the batch.
    let is_local = joint.is_some() && replica.is_local_step(step);
    let divisor = if is_local { own_targets(batch, replica) } else { num_targets };
    if let Some(joint) = &mut joint {
        joint.stragglers.begin_step(recipe, step, replica)?;
        replica.measure_leaf_norms(recipe.is_noise_measured(step + 1));
    }
    let loss_scale = stability.scaler.scale();
    replica.set_loss_scale(loss_scale);
    let mut host = TrainingStep {
        cpu,
        recipe,
        step,
        batch,
        num_targets,
        divisor,
        per_client,
        lr,
        count,
        stability,
        emulation,
        joint,
        outcome: None,
        preference: PreferenceFigures::default(),
    };
    let clip = replica.run_step(cpu, recipe.train.seed, step, optimizer, clip, &mut host)?;
    let Some(clip) = clip else { return Ok(None) };
    let (loss, participation, verdict) = host.outcome.expect("every step ends");
    let preference = host.preference;
    optimizer.check().map_err(TrainError::StateLost)?;
    if host.joint.is_none() {
        health::count_skipped(recipe, step, (loss, &clip), host.stability, place)?;
    }
    let num_tokens =
        participation.tokens(batch.num_microbatches() * microbatch_shape(recipe).rows());
    let data_wait_seconds = 0.0;
    let record = StepRecord {
        step,
        loss,
        lr,
        clip,
        num_tokens,
        data_wait_seconds,
        verdict,
        loss_scale,
        preference,
    };
    Ok(Some((record, participation)))
}

/// Batch of a step and the decisions about it.
struct TrainingStep<'a> {
    cpu: &'a Cpu,
    recipe: &'a Recipe,
    step: u64,
    batch: &'a Batch,
    /// Number of targets of the batch, and the number that gradients are divided by.
    num_targets: u64,
    divisor: u64,
    /// Micro-batches of a client, where each divides by its own targets.
    per_client: Option<usize>,
    lr: f64,
    /// Number of the update, if this worker takes part in the step.
    count: Option<u64>,
    stability: &'a mut Stability,
    emulation: Option<&'a Emulation>,
    /// None where this rank steps alone.
    joint: Option<JointStep<'a>>,
    /// Loss, participation and decision.
    outcome: Option<(f64, Participation, Verdict)>,
    /// Quality of the pairs.
    preference: PreferenceFigures,
}

impl<'a> StepHost<'a> for TrainingStep<'a> {
    type Error = TrainError;

    fn microbatch(&self, index: usize) -> Microbatch<'a> {
        let of_client = |num: usize| {
            let first = index / num * num;
            self.batch.targets_in(first..first + num).max(1)
        };
        let divisor = self.per_client.map_or(self.divisor, of_client);
        microbatch_of(self.recipe, self.batch, index, divisor)
    }

    fn num_targets(&self, microbatches: Option<&[u32]>) -> u64 {
        let all = self.batch.num_targets;
        microbatches.map_or(all, |some| self.batch.targets_in(some.iter().map(|it| *it as usize)))
    }

    fn before_microbatch(&self, index: usize, is_over: &dyn Fn() -> bool) {
        if let Some(emulation) = self.emulation {
            emulation.before_microbatch(self.step, index, is_over);
        }
    }

    fn after_microbatches(
        &mut self,
        replica: &mut Replica,
        loss: &StepLoss,
    ) -> Result<Option<f32>, TrainError> {
        let Self { batch, num_targets, emulation, joint, .. } = self;
        if let Some(emulation) = emulation {
            emulation.after_microbatches();
        }
        if loss.num_targets == Some(0.0) {
            let (what, source_of) = ("the loss of every client".to_owned(), String::new());
            let (step, value) = (self.step, loss.sum / 0.0);
            return Err(TrainError::Diverged { step, what, value, source_of });
        }
        let found = match joint {
            Some(joint) => joint.stragglers.end_microbatches(batch, *num_targets, replica)?,
            None => Participation::of_all(*num_targets),
        };
        let factor = (!found.missing.is_empty()).then_some(found.factor);
        let num_targets = loss.num_targets.unwrap_or(found.num_targets as f64);
        let loss = loss.sum / num_targets;
        self.preference = PreferenceFigures::new(replica.pair_sums(), num_targets);
        self.outcome = Some((loss, found, Verdict::Step));
        Ok(factor)
    }

    fn decide(&mut self, replica: &mut Replica, clip: &Clip) -> Result<Option<Update>, TrainError> {
        let (recipe, batch, divisor) = (self.recipe, self.batch, self.divisor);
        if let Some(JointStep { noise, telemetry, .. }) = &mut self.joint {
            let (divisors, step) = (Divisors { targets: self.num_targets, divisor }, self.step + 1);
            noise.measure(self.cpu, recipe, step, batch, divisors, replica)?;
            visit_histograms(recipe, step, replica, |event| telemetry.record(event))?;
        }
        let microbatch = |index| microbatch_of(recipe, batch, index, divisor);
        let (loss, _, verdict) = self.outcome.as_mut().expect("micro-batches have run");
        let stability = &mut *self.stability;
        *verdict = if self.joint.is_none() {
            Verdict::of(*loss, clip)
        } else {
            let (cpu, step) = (self.cpu, self.step);
            health::agree(cpu, recipe, step, *loss, clip, replica, stability, &microbatch)?
        };
        if !replica.has_gradients() {
            stability.num_skipped_in_phase += 1;
            return Ok(None);
        }
        let count = self.count.filter(|_| *verdict == Verdict::Step);
        Ok(count.map(|count| Update { count, lr: self.lr, clip: *clip }))
    }
}
