//! Summary of a finished run, as `train --json` prints it and `summary.json` stores it.

use crate::figures::AccountedBytes;
use crate::preference_figures::PreferenceFigures;
use crate::task_evaluation::TaskEvaluation;
use lockstep_data::ConversationCounts;
use lockstep_model::problem::ProblemMetrics;
use lockstep_parallel::figures::StrategyFigures;
use lockstep_telemetry::SourceTokens;
use serde::Serialize;

/// Figures of a run in seconds and bytes; losses in nats per token. Field names are stable: scripts
/// rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct Summary {
    pub steps: u64,
    pub first_loss: f64,
    pub final_loss: f64,
    pub validation_loss: Option<f64>,
    pub baseline_loss: f64,
    pub baseline: String,
    /// Scores of `eval.tasks`; absent without tasks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskEvaluation>,
    #[serde(flatten)]
    pub solution: Solution,
    #[serde(flatten)]
    pub preference: PreferenceFigures,
    pub losses_hash: String,
    pub weights_hash: String,
    pub recipe_hash: String,
    pub kernel_class: String,
    /// Device of rank 0 that runs the model: `cpu`, or the name and index of an accelerator.
    pub device: String,
    pub tokens_per_second: f64,
    /// Model FLOP/s over the peak of this machine; null where the peak is unknown.
    pub mfu: Option<f64>,
    pub step_seconds_median: f64,
    pub peak_rss_bytes: u64,
    pub peak_rss_bytes_by_rank: Vec<u64>,
    pub proportional_rss_bytes_by_rank: Vec<u64>,
    /// Peak of the buffers on the accelerator; null without one.
    pub device_bytes: Option<u64>,
    pub accounted_bytes_by_rank: Vec<AccountedBytes>,
    pub wire_bytes: u64,
    pub wire_bytes_by_rank: Vec<u64>,
    pub microbatches_by_rank: Vec<u64>,
    pub workers: usize,
    pub restarts: u64,
    pub staleness_max: u64,
    pub predicted_step_seconds: Option<f64>,
    pub predicted_peak_bytes: Option<u64>,
    pub predicted_peak_bytes_by_rank: Option<Vec<u64>>,
    /// Peak on the fullest accelerator; null without one. With one, that of processes is null.
    pub predicted_device_bytes: Option<u64>,
    pub predicted_wire_bytes: Option<u64>,
    pub run_dir: String,
    pub num_params: u64,
    pub seconds: f64,
    /// Time of all steps, and bytes that all workers sent in them, in this process.
    pub train_seconds: f64,
    pub total_wire_bytes: u64,
    pub data_wait_seconds: f64,
    /// Exposed communication of rank 0, without its wait for later ranks.
    pub exposed_communication_seconds_median: f64,
    pub skipped_steps: u64,
    #[serde(flatten)]
    pub scaling: ScalingFigures,
    pub first_step_at_seconds: Option<f64>,
    pub tokens: u64,
    pub target: Option<Target>,
    pub emulated: Option<String>,
    /// Time by which this machine exceeded the emulated micro-batch time, on rank 0.
    pub emulated_overrun_seconds: f64,
    pub bits_depend_on: Option<String>,
    pub blocks_by_stage: Vec<usize>,
    /// Tokens read from each source of a mixture, since the start of the run; empty without one.
    pub sources: Vec<SourceTokens>,
    /// Conversations of the data; absent where they are text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversations: Option<ConversationFigures>,
    #[serde(flatten)]
    pub stragglers: StragglerFigures,
    #[serde(flatten)]
    pub rank_times: RankTimes,
    #[serde(flatten)]
    pub asynchronous: StrategyFigures,
}

/// Conversations, or pairs of preferences, of both splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConversationFigures {
    /// Number of those that are used.
    pub used: u64,
    /// Those of them in the training split.
    pub train: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Tokens that the loss counts.
    pub answered: u64,
    /// Used ones of which something lies beyond `model.context`.
    pub truncated: u64,
    /// Those without an answer within `model.context`, which are not used.
    pub dropped: u64,
}

impl From<ConversationCounts> for ConversationFigures {
    fn from(counts: ConversationCounts) -> Self {
        let ConversationCounts { num, num_train, tokens, targets, truncated, dropped, .. } = counts;
        Self { used: num, train: num_train, tokens, answered: targets, truncated, dropped }
    }
}

/// Speed of the workers and missed steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StragglerFigures {
    /// Median time of a micro-batch on each rank.
    pub microbatch_seconds_by_rank: Vec<f64>,
    /// Median time per step that each rank waits for later ones.
    pub straggler_wait_seconds_by_rank: Vec<f64>,
    /// Number of missed steps of each rank.
    pub missed_steps_by_rank: Vec<u64>,
    /// Rank whose micro-batches take much longer than the median.
    pub slow_rank: Option<usize>,
    /// Its micro-batch time over the median.
    pub slow_factor: Option<f64>,
}

/// Time of a step on every rank, and the buckets of its gradients.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankTimes {
    /// First quartile, median and third quartile of the time in forward and backward passes.
    pub compute_quartile_seconds_by_rank: Vec<[f64; 3]>,
    /// Median exposed communication of each rank, without its wait for later ranks.
    pub exposed_communication_seconds_by_rank: Vec<f64>,
    /// Median wait of each rank for data.
    pub data_wait_seconds_by_rank: Vec<f64>,
    /// Parameters of a bucket.
    pub bucket_len: usize,
}

/// Cost of reaching `train.target_loss`: steps and tokens since the start of the run; bytes and
/// seconds of all workers since this process began.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct Target {
    pub loss: f64,
    pub validation_loss: f64,
    pub steps: u64,
    pub tokens: u64,
    pub wire_bytes: u64,
    pub seconds: f64,
}

/// Loss scaling and clipping in the steps of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScalingFigures {
    /// Number of steps skipped because of an overflow at the loss scale.
    pub overflowed_steps: u64,
    /// Fraction of steps with clipped gradients.
    pub clip_rate: f64,
    /// Loss scale of the next step; none without fp16.
    pub loss_scale: Option<f64>,
    /// Mean fraction of gradients that fp16 rounds to zero; none without fp16.
    pub zeroed_fraction: Option<f64>,
}

/// Metrics of a small problem's solution; null for language models. The optimum is that of the mean
/// training loss; the accuracy is on held-out samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct Solution {
    pub accuracy: Option<f64>,
    pub optimum_loss: Option<f64>,
    pub suboptimality: Option<f64>,
    pub distance: Option<f64>,
}

impl From<ProblemMetrics> for Solution {
    fn from(metrics: ProblemMetrics) -> Self {
        match metrics {
            ProblemMetrics::Classification { accuracy } => {
                Self { accuracy: Some(accuracy), ..Self::default() }
            }
            ProblemMetrics::Convex { optimum_loss, suboptimality, distance } => Self {
                accuracy: None,
                optimum_loss: Some(optimum_loss),
                suboptimality: Some(suboptimality),
                distance: Some(distance),
            },
        }
    }
}
