//! Metrics: the numbers of the events by name, of which every exporter reads the same list.
//!
//! TensorBoard, CSV, Prometheus and OTLP differ in how they write a number, not in which numbers
//! there are: [`visit_scalars`] is the one place that says what of an event is a metric. It
//! allocates nothing.

use std::fmt;

use crate::{AlgorithmBytes, Event};

/// Declares the metrics with their names and meanings.
macro_rules! metrics {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal;)+) => {
        /// A number of a run that changes with its steps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Metric {
            $($(#[doc = $help])+ $variant,)+
        }

        impl Metric {
            /// Every metric.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Name, as a path: the tag in TensorBoard.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Meaning in a sentence.
            pub fn help(self) -> &'static str {
                let text = match self { $(Self::$variant => concat!($($help),+),)+ };
                text.trim_start()
            }
        }
    };
}

metrics! {
    /// Mean loss of the step's tokens, before the update.
    Loss = "train/loss";
    /// Learning rate of the update.
    LearningRate = "train/learning_rate";
    /// Global gradient norm before clipping.
    GradNorm = "train/grad_norm";
    /// Tokens per second of the step.
    TokensPerSecond = "train/tokens_per_second";
    /// 1 for a step that was skipped, else 0.
    Skipped = "train/skipped";
    /// Loss scale of fp16 products.
    LossScale = "train/loss_scale";
    /// Fraction of gradients that fp16 rounds to zero.
    ZeroedFraction = "train/zeroed_fraction";
    /// Fraction of the step's pairs whose chosen answer has gained more probability than the
    /// rejected one.
    PreferenceAccuracy = "train/preference_accuracy";
    /// Mean margin of the rewards of the step's pairs, in nats.
    PreferenceMargin = "train/preference_margin";
    /// Tokens of a sequence in the step, while the length warms up.
    SequenceLength = "train/sequence_length";
    /// Mean squared norm of the gradients of the reduction leaves of a step.
    SmallNormSquared = "noise/small_norm_squared";
    /// Squared norm of the gradient of the whole batch of the same step.
    LargeNormSquared = "noise/large_norm_squared";
    /// Estimated variance of the gradient of a sequence: the trace of its covariance.
    GradientVariance = "noise/gradient_variance";
    /// Estimated squared norm of the gradient over all data.
    TrueNormSquared = "noise/true_norm_squared";
    /// Duration of the step in seconds.
    StepSeconds = "step/seconds";
    /// Data-loading time that the step waited for, in seconds.
    DataWaitSeconds = "step/data_wait_seconds";
    /// Exposed communication of the step in seconds.
    ExposedSeconds = "step/exposed_communication_seconds";
    /// Wait for ranks that were still busy, in seconds.
    StragglerWaitSeconds = "step/straggler_wait_seconds";
    /// Bytes that rank 0 sent along the data axis in the step.
    DataBytes = "bytes/data";
    /// Bytes that rank 0 sent along the pipeline axis in the step.
    PipelineBytes = "bytes/pipeline";
    /// Bytes that rank 0 sent along the tensor axis in the step.
    TensorBytes = "bytes/tensor";
    /// Bytes that rank 0 sent in the step to parameter servers and for its sync strategy.
    StrategyBytes = "bytes/strategy";
    /// Bytes that rank 0 has sent in steps along an axis by an algorithm.
    AlgorithmBytes = "bytes/algorithm";
    /// Resident memory of rank 0 in bytes.
    ResidentBytes = "memory/resident_bytes";
    /// Model FLOP/s of the run in the step.
    ModelFlopsPerSecond = "step/model_flops_per_second";
    /// Share of the peak of the run's machines that these are.
    Mfu = "step/mfu";
    /// Bytes that a rank has sent along the data axis.
    RankDataBytes = "ranks/data_bytes";
    /// Bytes that a rank has sent along the pipeline axis.
    RankPipelineBytes = "ranks/pipeline_bytes";
    /// Bytes that a rank has sent along the tensor axis.
    RankTensorBytes = "ranks/tensor_bytes";
    /// Bytes that a rank has sent to parameter servers and for its sync strategy.
    RankStrategyBytes = "ranks/strategy_bytes";
    /// Exposed communication of a rank so far, in seconds.
    RankExposedSeconds = "ranks/exposed_communication_seconds";
    /// Time that a rank has waited for ranks that were still busy, in seconds.
    RankStragglerWaitSeconds = "ranks/straggler_wait_seconds";
    /// Steps that used no gradients of a rank.
    MissedSteps = "ranks/missed_steps";
    /// Restarts of the run before this attempt of a rank.
    Restarts = "ranks/restarts";
    /// Resident memory of a rank's process in bytes.
    RankResidentBytes = "ranks/resident_bytes";
    /// Parameters of a rank in bytes.
    RankWeightsBytes = "ranks/weights_bytes";
    /// Gradient sums of a rank in bytes.
    RankGradientsBytes = "ranks/gradients_bytes";
    /// Optimizer state of a rank in bytes.
    RankOptimizerBytes = "ranks/optimizer_bytes";
    /// Activations of a rank in bytes.
    RankActivationsBytes = "ranks/activations_bytes";
    /// Scratch memory, buckets and messages in flight of a rank in bytes.
    RankBuffersBytes = "ranks/buffers_bytes";
    /// Peak of the buffers on a rank's accelerator in bytes.
    DeviceBytes = "ranks/device_bytes";
    /// Share of time in which the compute threads of a rank's process were on processors.
    BusyShare = "ranks/busy_share";
    /// Mean clock frequency of the processors of a rank's host.
    ClockHertz = "ranks/clock_hertz";
    /// Times that the cores of a rank's host were throttled because of their temperature.
    ThrottleCount = "ranks/throttle_count";
    /// Mean validation loss.
    ValidationLoss = "validation/loss";
    /// Exponential of the validation loss.
    Perplexity = "validation/perplexity";
    /// Bytes of gradients and parameters sent by all ranks up to the evaluation.
    WireBytes = "validation/wire_bytes";
    /// Score of an evaluation task.
    TaskScore = "tasks/score";
    /// Mean log-likelihood of the right choices of an evaluation task.
    TaskLogLikelihood = "tasks/log_likelihood";
    /// Validation accuracy of a classifier.
    Accuracy = "problem/accuracy";
    /// Loss minus the minimum of a convex problem.
    Suboptimality = "problem/suboptimality";
    /// Distance of the weights from the optimum.
    Distance = "problem/distance";
    /// Ranks without gradients in the step.
    MissingWorkers = "sync/missing_workers";
    /// Mean squared distance of weights or updates from their average.
    Drift = "sync/drift";
    /// Maximum of that distance over ranks or clients.
    DriftMax = "sync/drift_max";
    /// Squared norm of the update of a round.
    UpdateNormSquared = "sync/update_norm_squared";
    /// Privacy budget epsilon spent so far.
    Epsilon = "sync/epsilon";
    /// Mean squared distance of local weights from their average.
    ConsensusDistance = "sync/consensus_distance";
    /// Mean staleness of the applied gradients of a worker.
    StalenessMean = "sync/staleness_mean";
    /// Maximum staleness of the applied gradients of a worker.
    StalenessMax = "sync/staleness_max";
    /// Squared compression error over the squared norm of the input.
    CompressionDelta = "compression/delta";
    /// Mean norm of the error-feedback residuals.
    ResidualNorm = "compression/residual_norm";
    /// Compressed bytes of a rank.
    CompressedBytes = "compression/message_bytes";
    /// Median of the duration of pulls from parameter servers, in seconds.
    PullSeconds = "server/pull_p50_seconds";
    /// 99th percentile of the duration of pulls, in seconds.
    SlowPullSeconds = "server/pull_p99_seconds";
    /// Median of the duration of pushes to parameter servers, in seconds.
    PushSeconds = "server/push_p50_seconds";
    /// 99th percentile of the duration of pushes, in seconds.
    SlowPushSeconds = "server/push_p99_seconds";
    /// Pushes of a worker that changed parameters, over all servers.
    AppliedPushes = "server/applied_pushes";
    /// Pushes of a worker that servers discarded.
    DiscardedPushes = "server/discarded_pushes";
    /// Steps of a worker that servers skipped.
    SkippedPushes = "server/skipped_pushes";
    /// Bytes of a checkpoint that rank 0 wrote.
    CheckpointBytes = "checkpoint/bytes";
    /// Time for which training stalled for a checkpoint, in seconds.
    CheckpointStallSeconds = "checkpoint/stall_seconds";
    /// Time until a checkpoint was complete on disk, in seconds.
    CheckpointWriteSeconds = "checkpoint/write_seconds";
}

/// Which of several equal metrics a number is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Label<'a> {
    /// There is one.
    #[default]
    None,
    /// That of a worker.
    Worker(usize),
    /// That of an algorithm along an axis.
    Algorithm {
        /// Name of the axis.
        axis: &'a str,
        /// Name of the algorithm.
        algorithm: &'a str,
    },
    /// That of a task.
    Task(&'a str),
    /// A score of a task.
    Score {
        /// Name of the task.
        task: &'a str,
        /// Name of the score.
        score: &'a str,
    },
}

/// Value of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelValue<'a> {
    /// A number.
    Number(usize),
    /// A name.
    Text(&'a str),
}

impl fmt::Display for LabelValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl<'a> Label<'a> {
    /// Names with their values, for formats with labels.
    pub fn pairs(self) -> impl Iterator<Item = (&'static str, LabelValue<'a>)> {
        let [first, second] = match self {
            Self::None => [None, None],
            Self::Worker(rank) => [Some(("worker", LabelValue::Number(rank))), None],
            Self::Algorithm { axis, algorithm } => [
                Some(("axis", LabelValue::Text(axis))),
                Some(("algorithm", LabelValue::Text(algorithm))),
            ],
            Self::Task(task) => [Some(("task", LabelValue::Text(task))), None],
            Self::Score { task, score } => {
                [Some(("task", LabelValue::Text(task))), Some(("score", LabelValue::Text(score)))]
            }
        };
        first.into_iter().chain(second)
    }
}

/// One number of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scalar<'a> {
    /// Metric.
    pub metric: Metric,
    /// Which of several.
    pub label: Label<'a>,
    /// Number of completed steps.
    pub step: u64,
    /// Value, which may be NaN or infinite.
    pub value: f64,
}

impl Scalar<'_> {
    /// Name with the values of its labels, as a path.
    pub fn write_tag(&self, text: &mut String) {
        text.push_str(self.metric.name());
        for (_, value) in self.label.pairs() {
            let _ = fmt::Write::write_fmt(text, format_args!("/{value}"));
        }
    }
}

/// Collects the scalars of an event.
struct Visit<'v> {
    step: u64,
    visit: &'v mut dyn FnMut(Scalar<'_>),
}

impl Visit<'_> {
    fn give(&mut self, metric: Metric, value: f64) {
        self.labelled(metric, Label::None, value);
    }

    fn labelled(&mut self, metric: Metric, label: Label<'_>, value: f64) {
        (self.visit)(Scalar { metric, label, step: self.step, value });
    }

    fn give_some(&mut self, metric: Metric, value: Option<f64>) {
        if let Some(value) = value {
            self.give(metric, value);
        }
    }
}

/// Visits the numbers of an event; most kinds of events have none.
pub fn visit_scalars(event: &Event, visit: &mut dyn FnMut(Scalar<'_>)) {
    let Some(step) = step_of(event) else { return };
    let mut scalars = Visit { step, visit };
    visit_step(event, &mut scalars);
    visit_ranks(event, &mut scalars);
    visit_evaluation(event, &mut scalars);
    visit_strategy(event, &mut scalars);
}

/// Number of completed steps of an event with numbers.
fn step_of(event: &Event) -> Option<u64> {
    match event {
        Event::Step { step, .. }
        | Event::Resources { step, .. }
        | Event::CheckpointSaved { step, .. }
        | Event::Evaluated { step, .. }
        | Event::TaskEvaluated { step, .. }
        | Event::Assessed { step, .. }
        | Event::WorkersMissing { step, .. }
        | Event::RoundFinished { step, .. }
        | Event::Aggregated { step, .. }
        | Event::Consensus { step, .. }
        | Event::Staleness { step, .. }
        | Event::Compressed { step, .. }
        | Event::ServerRequests { step, .. }
        | Event::ServerPushes { step, .. }
        | Event::RankCounters { step, .. }
        | Event::AlgorithmBytes { step, .. }
        | Event::GradientNoise { step, .. } => Some(*step),
        _ => None,
    }
}

fn visit_step(event: &Event, scalars: &mut Visit<'_>) {
    match event {
        Event::Step {
            loss,
            lr,
            grad_norm,
            tokens_per_second,
            step_seconds,
            data_wait_seconds,
            exposed_communication_seconds,
            straggler_wait_seconds,
            is_skipped,
            loss_scale,
            zeroed_fraction,
            preference_accuracy,
            preference_margin,
            seqlen,
            step: _,
        } => {
            scalars.give(Metric::Loss, *loss);
            scalars.give(Metric::LearningRate, *lr);
            scalars.give(Metric::GradNorm, *grad_norm);
            scalars.give(Metric::TokensPerSecond, *tokens_per_second);
            scalars.give(Metric::Skipped, f64::from(u8::from(*is_skipped)));
            scalars.give_some(Metric::LossScale, *loss_scale);
            scalars.give_some(Metric::ZeroedFraction, *zeroed_fraction);
            scalars.give_some(Metric::PreferenceAccuracy, *preference_accuracy);
            scalars.give_some(Metric::PreferenceMargin, *preference_margin);
            scalars.give_some(Metric::SequenceLength, seqlen.map(|length| length as f64));
            scalars.give(Metric::StepSeconds, *step_seconds);
            scalars.give(Metric::DataWaitSeconds, *data_wait_seconds);
            scalars.give(Metric::ExposedSeconds, *exposed_communication_seconds);
            scalars.give(Metric::StragglerWaitSeconds, *straggler_wait_seconds);
        }
        Event::Resources {
            data_bytes,
            pipeline_bytes,
            tensor_bytes,
            strategy_bytes,
            resident_bytes,
            model_flops_per_second,
            mfu,
            step: _,
        } => {
            scalars.give_some(Metric::ModelFlopsPerSecond, *model_flops_per_second);
            scalars.give_some(Metric::Mfu, *mfu);
            scalars.give(Metric::DataBytes, *data_bytes as f64);
            scalars.give(Metric::PipelineBytes, *pipeline_bytes as f64);
            scalars.give(Metric::TensorBytes, *tensor_bytes as f64);
            scalars.give(Metric::StrategyBytes, *strategy_bytes as f64);
            scalars.give(Metric::ResidentBytes, *resident_bytes as f64);
        }
        &Event::GradientNoise {
            small_batch,
            large_batch,
            small_norm_squared,
            large_norm_squared,
            step: _,
        } => {
            scalars.give(Metric::SmallNormSquared, small_norm_squared);
            scalars.give(Metric::LargeNormSquared, large_norm_squared);
            // Unbiased, and negative where noise outweighs: averages over steps are positive.
            let variance =
                (small_norm_squared - large_norm_squared) / (1.0 / small_batch - 1.0 / large_batch);
            scalars.give(Metric::GradientVariance, variance);
            scalars.give(Metric::TrueNormSquared, large_norm_squared - variance / large_batch);
        }
        Event::CheckpointSaved { bytes, stall_seconds, write_seconds, .. } => {
            scalars.give(Metric::CheckpointBytes, *bytes as f64);
            scalars.give(Metric::CheckpointStallSeconds, *stall_seconds);
            scalars.give(Metric::CheckpointWriteSeconds, *write_seconds);
        }
        _ => {}
    }
}

fn visit_ranks(event: &Event, scalars: &mut Visit<'_>) {
    if let Event::AlgorithmBytes { bytes, .. } = event {
        for AlgorithmBytes { axis, algorithm, bytes } in bytes {
            let label = Label::Algorithm { axis, algorithm };
            scalars.labelled(Metric::AlgorithmBytes, label, *bytes as f64);
        }
    }
    let &Event::RankCounters {
        step: _,
        worker,
        restarts,
        missed_steps,
        data_bytes,
        pipeline_bytes,
        tensor_bytes,
        strategy_bytes,
        exposed_communication_seconds,
        straggler_wait_seconds,
        resident_bytes,
        device_bytes,
        busy_share,
        clock_hertz,
        throttle_count,
        first_rank_on_host: _,
        memory,
    } = event
    else {
        return;
    };
    let float = |count: Option<u64>| count.map(|count| count as f64);
    let of_rank = [
        (Metric::RankDataBytes, Some(data_bytes as f64)),
        (Metric::RankPipelineBytes, Some(pipeline_bytes as f64)),
        (Metric::RankTensorBytes, Some(tensor_bytes as f64)),
        (Metric::RankStrategyBytes, Some(strategy_bytes as f64)),
        (Metric::RankExposedSeconds, Some(exposed_communication_seconds)),
        (Metric::RankStragglerWaitSeconds, Some(straggler_wait_seconds)),
        (Metric::MissedSteps, Some(missed_steps as f64)),
        (Metric::Restarts, Some(restarts as f64)),
        (Metric::RankResidentBytes, float(resident_bytes)),
        (Metric::RankWeightsBytes, float(memory.map(|memory| memory.weights))),
        (Metric::RankGradientsBytes, float(memory.map(|memory| memory.gradients))),
        (Metric::RankOptimizerBytes, float(memory.map(|memory| memory.optimizer))),
        (Metric::RankActivationsBytes, float(memory.map(|memory| memory.activations))),
        (Metric::RankBuffersBytes, float(memory.map(|memory| memory.buffers))),
        (Metric::DeviceBytes, float(device_bytes)),
        (Metric::BusyShare, busy_share),
        (Metric::ClockHertz, clock_hertz),
        (Metric::ThrottleCount, float(throttle_count)),
    ];
    for (metric, value) in of_rank {
        if let Some(value) = value {
            scalars.labelled(metric, Label::Worker(worker), value);
        }
    }
}

fn visit_evaluation(event: &Event, scalars: &mut Visit<'_>) {
    match event {
        Event::Evaluated { validation_loss, perplexity, wire_bytes, .. } => {
            scalars.give(Metric::ValidationLoss, *validation_loss);
            scalars.give(Metric::Perplexity, *perplexity);
            scalars.give(Metric::WireBytes, *wire_bytes as f64);
        }
        Event::TaskEvaluated { task, scores, log_likelihood, .. } => {
            for (score, value) in scores {
                scalars.labelled(Metric::TaskScore, Label::Score { task, score }, *value);
            }
            if let Some(value) = log_likelihood {
                scalars.labelled(Metric::TaskLogLikelihood, Label::Task(task), *value);
            }
        }
        Event::Assessed { accuracy, suboptimality, distance, .. } => {
            scalars.give_some(Metric::Accuracy, *accuracy);
            scalars.give_some(Metric::Suboptimality, *suboptimality);
            scalars.give_some(Metric::Distance, *distance);
        }
        _ => {}
    }
}

fn visit_strategy(event: &Event, scalars: &mut Visit<'_>) {
    match event {
        Event::WorkersMissing { missing, .. } => {
            scalars.give(Metric::MissingWorkers, missing.len() as f64);
        }
        Event::RoundFinished { drift, drift_max, update_norm_squared, .. }
        | Event::Aggregated { drift, drift_max, update_norm_squared, .. } => {
            scalars.give(Metric::Drift, *drift);
            scalars.give(Metric::DriftMax, *drift_max);
            scalars.give(Metric::UpdateNormSquared, *update_norm_squared);
            if let Event::Aggregated { epsilon, .. } = event {
                scalars.give_some(Metric::Epsilon, *epsilon);
            }
        }
        Event::Consensus { distance, .. } => scalars.give(Metric::ConsensusDistance, *distance),
        Event::Staleness { worker, mean, max, .. } => {
            scalars.labelled(Metric::StalenessMean, Label::Worker(*worker), *mean);
            scalars.labelled(Metric::StalenessMax, Label::Worker(*worker), *max as f64);
        }
        Event::Compressed { delta, residual_norm, message_bytes, .. } => {
            scalars.give(Metric::CompressionDelta, *delta);
            scalars.give(Metric::ResidualNorm, *residual_norm);
            scalars.give(Metric::CompressedBytes, *message_bytes as f64);
        }
        Event::ServerPushes {
            applied_by_server,
            discarded_by_server,
            skipped_by_server,
            step: _,
            acknowledged_by_server: _,
        } => {
            for (metric, by_server) in [
                (Metric::AppliedPushes, applied_by_server),
                (Metric::DiscardedPushes, discarded_by_server),
                (Metric::SkippedPushes, skipped_by_server),
            ] {
                let num_workers = by_server.iter().map(Vec::len).max().unwrap_or(0);
                for worker in 0..num_workers {
                    let of_worker = by_server.iter().filter_map(|counts| counts.get(worker));
                    let count = of_worker.sum::<u64>() as f64;
                    scalars.labelled(metric, Label::Worker(worker), count);
                }
            }
        }
        Event::ServerRequests {
            pull_p50_seconds,
            pull_p99_seconds,
            push_p50_seconds,
            push_p99_seconds,
            ..
        } => {
            scalars.give(Metric::PullSeconds, *pull_p50_seconds);
            scalars.give(Metric::SlowPullSeconds, *pull_p99_seconds);
            scalars.give(Metric::PushSeconds, *push_p50_seconds);
            scalars.give(Metric::SlowPushSeconds, *push_p99_seconds);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn scalars(event: &Event) -> Vec<(String, u64, f64)> {
        let mut found = Vec::new();
        visit_scalars(event, &mut |scalar| {
            let mut tag = String::new();
            scalar.write_tag(&mut tag);
            found.push((tag, scalar.step, scalar.value));
        });
        found
    }

    #[test]
    fn names_are_unique_paths_and_meanings_are_sentences() {
        let names: BTreeSet<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        assert_eq!(names.len(), Metric::ALL.len());
        for metric in Metric::ALL {
            let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            let mut parts = metric.name().split('/');
            assert!(parts.all(|part| !part.is_empty() && part.chars().all(is_part)));
            assert!(metric.name().contains('/'), "{}", metric.name());
            assert!(metric.help().ends_with('.') && !metric.help().starts_with(' '));
        }
    }

    #[test]
    fn labels_are_parts_of_the_tag() {
        let event = Event::TaskEvaluated {
            step: 7,
            task: "arc".to_owned(),
            questions: 3,
            scores: BTreeMap::from([("acc".to_owned(), 0.25), ("acc_norm".to_owned(), 0.5)]),
            log_likelihood: Some(-2.0),
        };
        let expected = [
            ("tasks/score/arc/acc".to_owned(), 7, 0.25),
            ("tasks/score/arc/acc_norm".to_owned(), 7, 0.5),
            ("tasks/log_likelihood/arc".to_owned(), 7, -2.0),
        ];
        assert_eq!(scalars(&event), expected);
        let event = Event::Staleness { step: 9, worker: 3, mean: 1.5, max: 4, counts: vec![] };
        let tags: Vec<_> = scalars(&event).into_iter().map(|(tag, ..)| tag).collect();
        assert_eq!(tags, ["sync/staleness_mean/3", "sync/staleness_max/3"]);
    }

    #[test]
    fn an_event_without_a_step_has_no_scalars() {
        assert_eq!(scalars(&Event::Warning { message: "full".to_owned() }), []);
    }
}
