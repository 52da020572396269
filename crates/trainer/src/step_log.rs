//! Step log of a run: telemetry events and the figures of its summary.
//!
//! Vectors are allocated for all steps at the start, so recording a step does not allocate.

use crate::emulation::Emulation;
use crate::exporters::Exporters;
use crate::figures::{AccountedBytes, FiguresByRank, median, quartiles};
use crate::health::Verdict;
use crate::learner::Learner;
use crate::noise_scale::NoiseMeter;
use crate::options::Attempt;
use crate::preference_figures::PreferenceFigures;
use crate::rank_counters::{Counters, RankCounters};
use crate::resume_state::ResumeState;
use crate::stragglers::StragglerMonitor;
use crate::trace::SpanLog;
use crate::utilization::Utilization;
use crate::{RunFolder, Summary, TrainError};
use lockstep_comm::{Comm, CommError};
use lockstep_config::{LossScale, Recipe, SeqlenWarmup};
use lockstep_data::ConversationCounts;
use lockstep_optim::{Clip, OverflowMonitor};
use lockstep_parallel::{Replica, Topology};
use lockstep_platform::World;
use lockstep_telemetry::{Event, JsonLines, Sink, SourceTokens, Telemetry};
use lockstep_tensor::Cpu;
use std::collections::BTreeSet;
use std::time::Duration;

mod evaluations;
mod measurements;

/// Figures of one step.
#[derive(Clone, Copy, Debug)]
pub struct StepRecord {
    /// Step number, counted from zero.
    pub step: u64,
    /// Mean loss of the batch before the update.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Gradient norm before clipping, and the clip factor.
    pub clip: Clip,
    /// Number of tokens in the batch.
    pub num_tokens: usize,
    /// Time spent waiting for data.
    pub data_wait_seconds: f64,
    /// Decision on the update.
    pub verdict: Verdict,
    /// Loss scale; none without scaling.
    pub loss_scale: Option<LossScale>,
    /// Quality of the batch's pairs before the update; none without preferences.
    pub preference: PreferenceFigures,
}

/// Records the steps of this rank.
pub struct StepLog {
    /// Work of a token, and the peak of the machines.
    pub utilization: Utilization,
    /// Loss of every step since the start of the run, over all attempts.
    pub losses: Vec<f64>,
    /// Duration of every step since this process began.
    pub step_seconds: Vec<f64>,
    /// Age of the process at the end of its first step.
    pub first_step_at_seconds: Option<f64>,
    /// Data loading time of every step since this process began.
    pub data_wait_seconds: Vec<f64>,
    /// Time in forward and backward passes of every step since this process began.
    pub compute_seconds: Vec<f64>,
    /// Exposed communication of every step since this process began.
    pub exposed_seconds: Vec<f64>,
    /// Wait for later ranks in every step since this process began.
    pub straggler_wait_seconds: Vec<f64>,
    /// Bytes of gradients and parameters sent by this worker in all steps of this process.
    pub total_wire_bytes: u64,
    /// Counters of all workers at the last evaluation.
    pub(crate) counters: RankCounters,
    /// Number of skipped steps.
    pub num_skipped: u64,
    /// Number of steps skipped because of an overflow at the loss scale.
    pub num_overflows: u64,
    /// Number of steps with clipped gradients.
    pub num_clipped: u64,
    /// Sum over steps of the gradient fraction that `fp16` rounds to zero.
    pub lost_shares: f64,
    /// Quality of the pairs of the last step.
    pub preference: PreferenceFigures,
    /// Number of restarts before this attempt.
    pub restarts: u64,
    /// Privacy budget spent by the noise of clients' updates.
    pub epsilon: Option<f64>,
    /// Emulated speed of this worker.
    pub emulation: Emulation,
    /// Speed of all workers and the straggler policy.
    pub stragglers: StragglerMonitor,
    watch: OverflowMonitor,
    pub(crate) worker: usize,
    /// Warnings that were issued already.
    warned: BTreeSet<String>,
    pub(crate) telemetry: Telemetry,
    /// Whether metrics are exported.
    is_exported: bool,
    pub(crate) spans: SpanLog,
    /// Gradient noise of the steps since the last evaluation.
    pub(crate) noise: NoiseMeter,
    pub(crate) world: World,
    started: Duration,
    step_started: Duration,
    /// Bytes sent when counting last resumed.
    count_start: u64,
    /// Sequence-length warm-up, and the length of whole sequences.
    seqlen: (SeqlenWarmup, usize),
}

impl StepLog {
    /// Opens the event file in the run folder and records the start of the run, with the peak
    /// FLOP/s of its machines where it is known.
    pub fn start(
        recipe: &Recipe,
        world: &World,
        cpu: &Cpu,
        folder: Option<&RunFolder>,
        mut sinks: Vec<Box<dyn Sink>>,
        learner: &Learner,
        peak: Option<f64>,
    ) -> Result<Self, TrainError> {
        let mut warnings = Vec::new();
        match folder {
            Some(folder) => {
                let exporters = Exporters::start(recipe, world, folder);
                sinks.push(Box::new(JsonLines::open(world, &folder.events())?));
                sinks.extend(exporters.sinks);
                warnings = exporters.warnings;
            }
            // Only rank 0 records events.
            None => sinks.clear(),
        }
        let is_exported = folder.is_some() && recipe.telemetry.exports_metrics();
        let worker = learner.replica.groups().rank();
        let mut telemetry = Telemetry::start(world.clone(), worker, sinks);
        let utilization = Utilization::new(recipe, learner.replica.blueprint(), peak);
        telemetry.record(&run_started(recipe, cpu, learner, &utilization));
        if let Some(Topology { name, max_degree, spectral_gap }) = learner.replica.topology() {
            telemetry.record(&Event::GraphFormed { graph: name, max_degree, spectral_gap });
        }
        for message in warnings {
            telemetry.record(&Event::Warning { message });
        }
        let now = world.clock().now();
        let capacity = usize::try_from(recipe.train.steps.min(1 << 24)).expect("fits");
        Ok(Self {
            utilization,
            seqlen: (recipe.train.seqlen, recipe.model.context),
            losses: Vec::new(),
            step_seconds: Vec::with_capacity(capacity),
            first_step_at_seconds: None,
            data_wait_seconds: Vec::with_capacity(capacity),
            compute_seconds: Vec::with_capacity(capacity),
            exposed_seconds: Vec::with_capacity(capacity),
            straggler_wait_seconds: Vec::with_capacity(capacity),
            total_wire_bytes: 0,
            counters: RankCounters::new(recipe, world, learner, cpu.num_threads()),
            num_skipped: 0,
            num_overflows: 0,
            num_clipped: 0,
            lost_shares: 0.0,
            watch: OverflowMonitor::default(),
            preference: PreferenceFigures::default(),
            restarts: 0,
            epsilon: None,
            emulation: Emulation::new(recipe, world, worker),
            stragglers: StragglerMonitor::new(recipe, worker),
            count_start: total_wire_bytes(&learner.replica),
            worker,
            warned: BTreeSet::new(),
            is_exported,
            spans: SpanLog::new(recipe),
            noise: NoiseMeter::default(),
            telemetry,
            world: world.clone(),
            started: now,
            step_started: now,
        })
    }

    /// Records warnings and a restored checkpoint. Returns the first step to run.
    pub fn resume(&mut self, start: ResumeState, attempt: &Attempt) -> u64 {
        self.restarts = attempt.restarts;
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

    /// Starts the measurements of all ranks together. Collective.
    pub fn begin_measurements(
        &mut self,
        recipe: &Recipe,
        comm: &Comm,
        learner: &mut Learner,
        first_step: u64,
    ) -> Result<(), CommError> {
        self.noise = NoiseMeter::start(recipe, &mut learner.replica, comm)?;
        self.counters.exchange(&Counters::default(), comm)?;
        self.begin_trace(comm, learner, first_step)
    }

    /// Records a committed checkpoint.
    pub fn record_checkpoint(
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

    /// Starts the clock of a step.
    pub fn begin_step(&mut self) {
        self.step_started = self.world.clock().now();
    }

    /// Stops the clock and records the step.
    pub fn finish_step(&mut self, record: &StepRecord, replica: &mut Replica) {
        self.record_spans(record.step + 1, replica);
        let (waited, for_stragglers) = replica.take_exposed();
        let [exposed_seconds, straggler_wait_seconds] =
            [waited.saturating_sub(for_stragglers), for_stragglers].map(|time| time.as_secs_f64());
        self.exposed_seconds.push(exposed_seconds);
        self.straggler_wait_seconds.push(straggler_wait_seconds);
        let (is_taken, zeroed_fraction) =
            (record.verdict == Verdict::Step, replica.underflow_fraction());
        self.num_skipped += u64::from(!is_taken);
        self.num_overflows += u64::from(record.verdict == Verdict::Overflow);
        self.num_clipped += u64::from(is_taken && record.clip.is_active());
        self.lost_shares += zeroed_fraction;
        let ended = self.world.clock().now();
        let step_seconds = ended.saturating_sub(self.step_started).as_secs_f64();
        let data_wait = Duration::try_from_secs_f64(record.data_wait_seconds).unwrap_or_default();
        let times = [self.step_started, ended];
        self.trace_step(record.step + 1, times, [data_wait, for_stragglers]);
        self.losses.push(record.loss);
        self.step_seconds.push(step_seconds);
        self.data_wait_seconds.push(record.data_wait_seconds);
        let compute = replica.take_pass_time().max(self.emulation.take_emulated_time());
        self.compute_seconds.push(compute.as_secs_f64());
        if self.first_step_at_seconds.is_none() {
            self.first_step_at_seconds = Some(self.world.clock().process_age().as_secs_f64());
        }
        let (warmup, context) = self.seqlen;
        let length = warmup.length_at(record.step, context);
        self.telemetry.record(&Event::Step {
            step: record.step + 1,
            loss: record.loss,
            lr: record.lr,
            grad_norm: record.clip.norm,
            tokens_per_second: record.num_tokens as f64 / step_seconds,
            step_seconds,
            data_wait_seconds: record.data_wait_seconds,
            exposed_communication_seconds: exposed_seconds,
            straggler_wait_seconds,
            is_skipped: !is_taken,
            seqlen: Some(length).filter(|length| *length < context),
            loss_scale: record.loss_scale.map(|scale| f64::from(scale.factor())),
            zeroed_fraction: record.loss_scale.map(|_| zeroed_fraction),
            preference_accuracy: record.preference.preference_accuracy,
            preference_margin: record.preference.preference_margin,
        });
        self.preference = record.preference;
        if self.is_exported {
            let sent = self.counters.sent.finish_step(replica);
            let tokens_per_second = record.num_tokens as f64 / step_seconds;
            self.record_resources(record.step + 1, sent, tokens_per_second);
        }
        if let Some(message) = replica.accelerator().and_then(|device| device.take_warning()) {
            self.telemetry.record(&Event::Warning { message });
        }
        if let Some(rate) = self.watch.record(record.verdict == Verdict::Overflow) {
            let message = overflow_warning(rate);
            self.telemetry.record(&Event::Warning { message });
        }
    }

    /// Records a step that the other workers finished without this one.
    pub fn record_missed_step(&mut self) {
        let last = self.losses.last().copied().unwrap_or(f64::NAN);
        self.losses.push(last);
        self.stragglers.missed[self.worker] += 1;
    }

    /// Records a warning once.
    pub fn warn_once(&mut self, message: String) {
        // Numbers in a message vary; its letters identify the warning.
        let about: String = message.chars().filter(char::is_ascii_alphabetic).collect();
        if self.warned.insert(about) {
            self.telemetry.record(&Event::Warning { message });
        }
    }

    /// Records an event.
    pub fn record(&mut self, event: &Event) {
        self.telemetry.record(event);
    }

    /// Gathers the figures of all workers.
    pub fn gather_figures(
        &self,
        comm: &Comm,
        learner: &Learner,
        corpus_bytes: usize,
    ) -> Result<FiguresByRank, CommError> {
        let bytes = |elements: usize| (elements * size_of::<f32>()) as u64;
        let held = learner.replica.footprint(&learner.optimizer);
        let num_steps = self.step_seconds.len().max(1) as u64;
        let [lower, middle, upper] = self.stragglers.microbatch_seconds().map(f64::to_bits);
        let compute = quartiles(&self.compute_seconds).map(f64::to_bits);
        let own = [
            self.world.host().peak_rss_bytes(),
            self.world.host().proportional_rss_bytes(),
            self.total_wire_bytes / num_steps,
            self.total_wire_bytes,
            bytes(held.weights),
            bytes(held.gradients),
            bytes(held.optimizer),
            bytes(held.activations),
            bytes(held.buffers),
            corpus_bytes as u64,
            lower,
            middle,
            upper,
            median(&self.straggler_wait_seconds).to_bits(),
            learner.device_bytes()?.unwrap_or(0),
            compute[0],
            compute[1],
            compute[2],
            median(&self.exposed_seconds).to_bits(),
            median(&self.data_wait_seconds).to_bits(),
        ];
        let mut all = vec![0; own.len() * comm.group_size()];
        comm.all_gather(&own, &mut all)?;
        let mut figures = FiguresByRank::default();
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
            lower,
            middle,
            upper,
            straggler_wait_seconds,
            on_device,
            compute_lower,
            compute_middle,
            compute_upper,
            exposed,
            data_wait,
        ] in all.as_chunks().0
        {
            figures.peak_rss_bytes.push(peak);
            figures.device_bytes.push(on_device);
            figures.proportional_rss_bytes.push(proportional);
            figures.wire_bytes.push(wire);
            figures.total_wire_bytes.push(moved);
            let accounted =
                AccountedBytes { weights, gradients, optimizer, activations, buffers, corpus };
            figures.accounted.push(accounted);
            figures.microbatch_seconds.push([lower, middle, upper].map(f64::from_bits));
            figures.straggler_wait_seconds.push(f64::from_bits(straggler_wait_seconds));
            let compute = [compute_lower, compute_middle, compute_upper].map(f64::from_bits);
            figures.compute_seconds.push(compute);
            figures.exposed_seconds.push(f64::from_bits(exposed));
            figures.data_wait_seconds.push(f64::from_bits(data_wait));
        }
        Ok(figures)
    }

    /// Records the conversations that the run has read; other data has none.
    pub fn record_conversations(&mut self, counts: Option<ConversationCounts>) {
        if let Some(counts) = counts {
            self.telemetry.record(&Event::ConversationsRead {
                conversations: counts.num,
                train: counts.num_train,
                tokens: counts.tokens,
                answered: counts.targets,
                truncated: counts.truncated,
                dropped: counts.dropped,
                pairs: counts.has_pairs,
            });
        }
    }

    /// Records the tokens read from each source of a mixture; other data has none.
    pub fn record_sources(&mut self, step: u64, sources: Vec<SourceTokens>) {
        if !sources.is_empty() {
            self.telemetry.record(&Event::SourcesRead { step, sources });
        }
    }

    /// Records the end of the run.
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

    /// Time of all steps, without evaluations and checkpoints between them.
    pub fn train_seconds(&self) -> f64 {
        self.step_seconds.iter().fold(0.0, |sum, seconds| sum + seconds)
    }

    /// Time since the start of the run was recorded.
    pub fn elapsed_seconds(&self) -> f64 {
        self.world.clock().since(self.started).as_secs_f64()
    }

    /// BLAKE3 hash of all losses as little-endian `f64`.
    pub fn losses_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for loss in &self.losses {
            hasher.update(&loss.to_le_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// Event of a run that is set up.
fn run_started(recipe: &Recipe, cpu: &Cpu, learner: &Learner, utilization: &Utilization) -> Event {
    Event::RunStarted {
        recipe_hash: recipe.hash(),
        kernel_class: learner.kernel_class.clone(),
        num_params: learner.replica.blueprint().num_model_params() as u64,
        tokens_per_step: recipe.tokens_per_step() as u64,
        num_steps: recipe.train.steps,
        num_threads: cpu.num_threads(),
        workers: recipe.run.workers,
        device: Some(learner.device_name.clone()),
        microbatch: Some(recipe.train.microbatch_size),
        recompute: Some(recipe.parallel.recompute.to_string()),
        flops_per_token: Some(utilization.flops_per_token),
        peak_flops_per_second: utilization.peak_flops_per_second,
    }
}

/// Warning about frequent overflows.
fn overflow_warning(rate: f64) -> String {
    format!(
        "{:.0} % of the recent steps overflowed and were skipped; the loss scale grows back too \
         soon, so try a larger precision.loss_scale_interval, or precision.compute = \
         \"bf16\"",
        100.0 * rate
    )
}

/// Bytes that this worker sent, or read and wrote in the memory of other ranks. Received bytes
/// count at their sender.
fn total_wire_bytes(replica: &Replica) -> u64 {
    let traffic = replica.traffic();
    traffic.sent_bytes + traffic.read_bytes + traffic.written_bytes
}
