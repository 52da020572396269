//! What a run tells about itself: events for people and programs, and the figures of its summary.
//!
//! Room for every step is made at the start, so that recording one allocates nothing.

use crate::device::kernel_class;
use crate::evaluate::Examination;
use crate::health::Verdict;
use crate::rows::RowFigures;
use crate::saved::{Learner, Start};
use crate::servers::Counted;
use crate::slow::Slow;
use crate::summary;
use crate::train::Life;
use crate::uneven::{Pace, Participation};
use crate::{RunFolder, Summary, TrainError, gossip};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{LossScale, Recipe};
use lockstep_optim::{Clip, OverflowWatch};
use lockstep_parallel::compress::Observed;
use lockstep_parallel::federated::Aggregated;
use lockstep_parallel::{Drift, Replica};
use lockstep_platform::World;
use lockstep_telemetry::{Event, JsonLines, Sink, Telemetry};
use lockstep_tensor::Cpu;
use lockstep_tensor::math::scalar;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The figures of one step.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord {
    /// Counted from zero.
    pub step: u64,
    /// Mean loss of the batch before the update.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Norm of the gradient before clipping, and what clipping made of it.
    pub clip: Clip,
    /// Tokens of the batch.
    pub num_tokens: usize,
    /// Time spent waiting for the batch.
    pub data_wait_seconds: f64,
    /// Whether the step was taken.
    pub verdict: Verdict,
    /// What the loss was multiplied by; none where nothing is scaled.
    pub loss_scale: Option<LossScale>,
}

/// Memory that the engine allocated for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct AccountedBytes {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    pub buffers: u64,
    pub corpus: u64,
}

/// What every worker found, by worker.
#[derive(Clone, Debug, Default)]
pub struct FiguresByWorker {
    /// The most memory that was held.
    pub peak_rss_bytes: Vec<u64>,
    /// Bytes of gradients and parameters that were moved in a step.
    pub wire_bytes: Vec<u64>,
    /// Bytes that were moved in all steps.
    pub moved_bytes: Vec<u64>,
    /// Memory that was held when the last step was done; what workers share counts in parts.
    pub proportional_rss_bytes: Vec<u64>,
    /// Memory that the engine allocated, by what it is for.
    pub accounted: Vec<AccountedBytes>,
    /// How long a micro-batch took, in the middle.
    pub microbatch_seconds: Vec<f64>,
}

/// The memory of a run.
pub struct Journal {
    /// The loss of every step since the run began, before any interruption too.
    pub losses: Vec<f64>,
    /// Duration of every step since this process began.
    pub step_seconds: Vec<f64>,
    /// Age of the process when its first step was done.
    pub first_step_at_seconds: Option<f64>,
    /// Time spent waiting for data, over all steps.
    pub data_wait_seconds: f64,
    /// Time that the step waited for other workers, for every step since this process began.
    pub exposed_seconds: Vec<f64>,
    /// Bytes of gradients and parameters that this worker moved in all steps of this process.
    pub moved_bytes: u64,
    /// The same of all workers, when the model was judged last; and of each of them.
    moved_by_all: u64,
    moved_by_worker: Vec<u64>,
    /// Steps that were skipped.
    pub num_skipped: u64,
    /// Those of them whose gradient overflowed at the scale of the loss.
    pub num_overflows: u64,
    /// Steps that were shortened.
    pub num_clipped: u64,
    /// The share of gradients that `fp16` would have lost, added over all steps.
    pub lost_shares: f64,
    /// How often workers were started again before.
    pub restarts: u64,
    /// How many gradients missed how many updates, by worker, where servers hold the weights.
    pub staleness: Vec<BTreeMap<u64, u64>>,
    /// What rows have weighed that travel one by one, where they do.
    pub rows: RowFigures,
    /// What servers have done, where they hold the weights.
    pub(crate) served: Counted,
    /// How slow this worker is made.
    pub slow: Slow,
    /// How fast the workers are.
    pub pace: Pace,
    watch: OverflowWatch,
    worker: usize,
    /// What was warned of once.
    warned: BTreeSet<String>,
    telemetry: Telemetry,
    world: World,
    started: Duration,
    step_started: Duration,
    /// Bytes that had been moved when steps began to count.
    mark: u64,
}

impl Journal {
    /// Opens the run folder's event file and announces the run.
    pub fn start(
        recipe: &Recipe,
        world: &World,
        cpu: &Cpu,
        folder: Option<&RunFolder>,
        mut sinks: Vec<Box<dyn Sink>>,
        learner: &Learner,
    ) -> Result<Self, TrainError> {
        match folder {
            Some(folder) => sinks.push(Box::new(JsonLines::open(world, &folder.events())?)),
            // Only the first worker speaks for the run.
            None => sinks.clear(),
        }
        let worker = learner.replica.groups().rank();
        let mut telemetry = Telemetry::start(world.clone(), worker, sinks);
        telemetry.record(&Event::RunStarted {
            recipe_hash: recipe.hash(),
            kernel_class: kernel_class(recipe).to_owned(),
            num_params: learner.replica.blueprint().num_params() as u64,
            tokens_per_step: recipe.tokens_per_step() as u64,
            num_steps: recipe.train.steps,
            num_threads: cpu.num_threads(),
            workers: recipe.run.workers,
        });
        if let Some(event) = gossip::announcement(recipe, &learner.replica) {
            telemetry.record(&event);
        }
        let now = world.clock().now();
        let room = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
        Ok(Self {
            losses: Vec::new(),
            step_seconds: Vec::with_capacity(room),
            first_step_at_seconds: None,
            data_wait_seconds: 0.0,
            exposed_seconds: Vec::with_capacity(room),
            moved_bytes: 0,
            moved_by_all: 0,
            moved_by_worker: vec![0; recipe.run.workers],
            num_skipped: 0,
            num_overflows: 0,
            num_clipped: 0,
            lost_shares: 0.0,
            watch: OverflowWatch::default(),
            restarts: 0,
            staleness: Vec::new(),
            rows: RowFigures::default(),
            served: Counted::default(),
            slow: Slow::new(recipe, world, worker),
            pace: Pace::new(recipe, worker),
            mark: moved_bytes(&learner.replica),
            worker,
            warned: BTreeSet::new(),
            telemetry,
            world: world.clone(),
            started: now,
            step_started: now,
        })
    }

    /// The run begins where another has left off, or afresh; gives its first step.
    pub fn go_on(&mut self, start: Start, life: &Life) -> u64 {
        self.restarts = life.restarts;
        for message in start.warnings {
            self.telemetry.record(&Event::Warning { message });
        }
        if let Some(from) = start.from {
            let path = from.display().to_string();
            self.telemetry.record(&Event::Restored { step: start.step, path });
        }
        self.losses = start.losses;
        start.step
    }

    /// A checkpoint is on the disk.
    pub fn saved(
        &mut self,
        step: u64,
        bytes: u64,
        stall_seconds: f64,
        write_seconds: f64,
        interval_seconds: Option<f64>,
    ) {
        self.telemetry.record(&Event::CheckpointSaved {
            step,
            bytes,
            stall_seconds,
            write_seconds,
            interval_seconds,
        });
    }

    /// The clock of a step starts.
    pub fn begin_step(&mut self) {
        self.step_started = self.world.clock().now();
    }

    /// The clock stops; the step is written down.
    pub fn finish_step(&mut self, record: &StepRecord, replica: &mut Replica) {
        let exposed_seconds = replica.take_exposed().as_secs_f64();
        self.exposed_seconds.push(exposed_seconds);
        let (is_taken, zeroed_fraction) = (record.verdict == Verdict::Step, replica.lost_share());
        self.num_skipped += u64::from(!is_taken);
        self.num_overflows += u64::from(record.verdict == Verdict::Overflow);
        self.num_clipped += u64::from(is_taken && record.clip.is_active());
        self.lost_shares += zeroed_fraction;
        let step_seconds = self.world.clock().since(self.step_started).as_secs_f64();
        self.losses.push(record.loss);
        self.step_seconds.push(step_seconds);
        self.data_wait_seconds += record.data_wait_seconds;
        if self.first_step_at_seconds.is_none() {
            self.first_step_at_seconds = Some(self.world.clock().process_age().as_secs_f64());
        }
        self.telemetry.record(&Event::Step {
            step: record.step + 1,
            loss: record.loss,
            lr: record.lr,
            grad_norm: record.clip.norm,
            tokens_per_second: record.num_tokens as f64 / step_seconds,
            step_seconds,
            data_wait_seconds: record.data_wait_seconds,
            exposed_communication_seconds: exposed_seconds,
            is_skipped: !is_taken,
            loss_scale: record.loss_scale.map(|scale| f64::from(scale.factor())),
            zeroed_fraction: record.loss_scale.map(|_| zeroed_fraction),
        });
        if let Some(rate) = self.watch.note(record.verdict == Verdict::Overflow) {
            let message = overflow_warning(rate);
            self.telemetry.record(&Event::Warning { message });
        }
    }

    /// A step went without this worker, which did not see its loss.
    pub fn missed(&mut self) {
        let last = self.losses.last().copied().unwrap_or(f64::NAN);
        self.losses.push(last);
        self.pace.missed[self.worker] += 1;
    }

    /// A step went without somebody, where one did.
    pub fn straggled(&mut self, step: u64, participation: &Participation) {
        let Participation { missing, news, num_targets, .. } = participation;
        if !missing.is_empty() {
            let (missing, targets) = (missing.clone(), *num_targets);
            self.telemetry.record(&Event::WorkersMissing { step, missing, targets });
        }
        if let Some(message) = news {
            self.telemetry.record(&Event::Warning { message: message.clone() });
        }
    }

    /// A round is over, where one is.
    pub fn drifted(&mut self, step: u64, drift: Option<Drift>) {
        if let Some(Drift { mean, max, worker, moved }) = drift {
            self.telemetry.record(&Event::RoundFinished {
                step,
                drift: mean,
                drift_max: max,
                drift_max_rank: worker,
                moved,
            });
            if let Some(message) = self.pace.drift_warning(mean, moved) {
                self.telemetry.record(&Event::Warning { message });
            }
        }
    }

    /// What clients have sent became one, where they did.
    pub fn aggregated(&mut self, step: u64, found: Option<Aggregated>) {
        let Some(found) = found else { return };
        self.telemetry.record(&Event::Aggregated {
            step,
            sampled: found.sampled,
            counted: found.counted,
            late: found.late,
            drift: found.drift,
            drift_max: found.drift_max.0,
            drift_max_client: found.drift_max.1,
            moved: found.moved,
            epsilon: found.epsilon,
        });
    }

    /// Something to be warned of, the first time that something is.
    pub fn warn_once(&mut self, message: String) {
        // Figures in it change; what it is about does not.
        let about: String = message.chars().filter(char::is_ascii_alphabetic).collect();
        if self.warned.insert(about) {
            self.telemetry.record(&Event::Warning { message });
        }
    }

    /// Something happened that is told as it is.
    pub fn tell(&mut self, event: &Event) {
        self.telemetry.record(event);
    }

    /// Gradients travelled in fewer bytes, where they did.
    pub fn compressed(&mut self, step: u64, observed: Option<Observed>) {
        if let Some(Observed { delta, residual_norm, message_bytes, dense_bytes }) = observed {
            self.telemetry.record(&Event::Compressed {
                step,
                delta,
                residual_norm,
                message_bytes,
                dense_bytes,
            });
            if let Some(message) = self.pace.residual_warning(residual_norm) {
                self.telemetry.record(&Event::Warning { message });
            }
        }
    }

    /// Tells the workers each other's figures.
    pub fn figures_by_worker(
        &self,
        comm: &Comm,
        learner: &Learner,
        corpus_bytes: usize,
    ) -> Result<FiguresByWorker, CommError> {
        let bytes = |elements: usize| (elements * size_of::<f32>()) as u64;
        let held = learner.replica.footprint(&learner.optimizer);
        let num_steps = self.step_seconds.len().max(1) as u64;
        let own = [
            self.world.host().peak_rss_bytes(),
            self.world.host().proportional_rss_bytes(),
            self.moved_bytes / num_steps,
            self.moved_bytes,
            bytes(held.weights),
            bytes(held.gradients),
            bytes(held.optimizer),
            bytes(held.activations),
            bytes(held.buffers),
            corpus_bytes as u64,
            self.pace.microbatch_seconds().to_bits(),
        ];
        let mut all = vec![0; own.len() * comm.group_size()];
        comm.all_gather(&own, &mut all)?;
        let mut figures = FiguresByWorker::default();
        for &[
            peak,
            proportional,
            wire,
            moved,
            weights,
            gradients,
            optimizer,
            activations,
            buffers,
            corpus,
            microbatch_seconds,
        ] in all.as_chunks().0
        {
            figures.peak_rss_bytes.push(peak);
            figures.proportional_rss_bytes.push(proportional);
            figures.wire_bytes.push(wire);
            figures.moved_bytes.push(moved);
            let accounted =
                AccountedBytes { weights, gradients, optimizer, activations, buffers, corpus };
            figures.accounted.push(accounted);
            figures.microbatch_seconds.push(f64::from_bits(microbatch_seconds));
        }
        Ok(figures)
    }

    /// What is moved from now on is not of steps; what was, is counted once it has arrived.
    pub fn pause(&mut self, replica: &mut Replica, comm: &Comm) -> Result<(), CommError> {
        replica.settle()?;
        self.moved_bytes += moved_bytes(replica) - self.mark;
        let all = &mut self.moved_by_worker[..comm.group_size()];
        comm.all_gather(&[self.moved_bytes], all)?;
        self.moved_by_all = all.iter().sum();
        Ok(())
    }

    /// The model was judged on held-out text; steps go on.
    pub fn evaluated(&mut self, step: u64, found: &Examination, replica: &Replica) {
        self.mark = moved_bytes(replica);
        let &Examination { validation_loss, assessment, .. } = found;
        let perplexity = scalar::exp(validation_loss);
        self.telemetry.record(&Event::Evaluated {
            step,
            validation_loss,
            perplexity,
            train_seconds: self.train_seconds(),
            wire_bytes: self.moved_by_all,
        });
        if let Some(event) = gossip::observation(step, replica) {
            self.telemetry.record(&event);
        }
        if let Some(assessment) = assessment {
            let summary::Verdict { accuracy, optimum_loss, suboptimality, distance } =
                assessment.into();
            self.telemetry.record(&Event::Assessed {
                step,
                accuracy,
                optimum_loss,
                suboptimality,
                distance,
            });
        }
    }

    /// The run has ended well.
    pub fn finish(mut self, summary: &Summary) {
        if let Some(target) = &summary.target {
            self.telemetry.record(&Event::TargetReached {
                step: target.steps,
                target_loss: target.loss,
                validation_loss: target.validation_loss,
                tokens: target.tokens,
                wire_bytes: target.wire_bytes,
                run_seconds: target.seconds,
            });
        }
        self.telemetry.record(&Event::RunFinished {
            steps: summary.steps,
            final_loss: summary.final_loss,
            validation_loss: summary.validation_loss,
            losses_hash: summary.losses_hash.clone(),
            weights_hash: summary.weights_hash.clone(),
            run_seconds: summary.seconds,
        });
    }

    /// Time that steps took, without what happened between them.
    pub fn train_seconds(&self) -> f64 {
        self.step_seconds.iter().fold(0.0, |sum, seconds| sum + seconds)
    }

    /// Time since the run was announced.
    pub fn elapsed_seconds(&self) -> f64 {
        self.world.clock().since(self.started).as_secs_f64()
    }

    /// BLAKE3 of every step's loss, as little-endian `f64`.
    pub fn losses_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for loss in &self.losses {
            hasher.update(&loss.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// What to do about steps that overflow too often.
fn overflow_warning(rate: f64) -> String {
    format!(
        "{:.0} % of the last steps overflowed and were left out; a scale that is too large grows \
         back too soon, so try a larger precision.loss_scale_interval, or precision.compute = \
         \"bf16\"",
        100.0 * rate
    )
}

/// Bytes that a worker has moved: what it sent, and what it read from and wrote to the memory of
/// others. (What it received was sent by somebody.)
fn moved_bytes(replica: &Replica) -> u64 {
    let traffic = replica.traffic();
    traffic.sent_bytes + traffic.read_bytes + traffic.written_bytes
}
