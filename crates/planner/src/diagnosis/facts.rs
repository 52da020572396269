//! Facts of a run that its diagnosis needs, as the run folder records them.

use lockstep_config::Recipe;
use serde::Serialize;
use std::collections::BTreeMap;

/// Everything that is known about a run. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    /// Recipe, with the micro-batch and recomputation that `auto` chose.
    pub recipe: Recipe,
    /// Whether the blocks run on an accelerator, whose passes the host only issues.
    pub is_accelerated: bool,
    /// Cores of the machine; `None` if unknown.
    pub cores: Option<usize>,
    /// Steps of rank 0 in ascending order.
    pub steps: Vec<StepFacts>,
    /// Ranks; empty for a run without a summary.
    pub ranks: Vec<RankFacts>,
    /// Checkpoints.
    pub checkpoints: Vec<CheckpointFacts>,
    /// Validation losses by step.
    pub validation: BTreeMap<u64, f64>,
    /// Probed links; `None` where ranks share memory.
    pub links: Option<LinkFacts>,
    /// Parameters of a gradient bucket; `None` if unknown.
    pub bucket_len: Option<usize>,
    /// Measured durations of tasks by rank and task id, and the actions as text.
    pub spans: BTreeMap<usize, BTreeMap<u32, TaskFacts>>,
    /// Traced steps in ascending order, with the times of every rank.
    pub traced: Vec<TracedStep>,
    /// Peak memory of the largest process, and its forecast.
    pub peak_bytes: Option<[u64; 2]>,
    /// Step time that was predicted before the run.
    pub predicted_step_seconds: Option<f64>,
    /// Model FLOPs of a token, and the peak FLOP/s of the run's machines.
    pub flops_per_token: Option<f64>,
    /// Peak FLOP/s of the run's machines.
    pub peak_flops_per_second: Option<f64>,
    /// Squared gradient norms at two batch sizes, by step.
    pub noise: Vec<NoiseFacts>,
    /// Last staleness histogram of each worker: gradients by missed updates.
    pub staleness: BTreeMap<usize, Vec<(u64, u64)>>,
    /// Compressed exchanges in ascending order of steps.
    pub compression: Vec<CompressionFacts>,
    /// Rounds of local steps in ascending order.
    pub rounds: Vec<RoundFacts>,
    /// Parameter servers, at their last event.
    pub servers: Option<ServerFacts>,
    /// First rank on the host of each rank; empty if unknown.
    pub first_rank_on_host: Vec<usize>,
    /// Times that the host of each rank was throttled; empty if unknown.
    pub throttle_counts: Vec<Option<u64>>,
    /// Bytes that each rank holds of weights, gradients, optimizer state, activations and buffers;
    /// empty if unknown.
    pub memory_by_rank: Vec<[u64; 5]>,
    /// Bytes that rank 0 sends in a step, by axis and algorithm.
    pub bytes_by_algorithm: Vec<AlgorithmFacts>,
    /// Restarts of the run before its last attempt.
    pub restarts: u64,
    /// Last losses before the run resumed, if it did.
    pub losses_before_resume: Vec<f64>,
    /// Error of a run that failed.
    pub failure: Option<FailureFacts>,
}

/// How a run failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureFacts {
    /// Error in one line.
    pub reason: String,
    /// Kind of the error.
    pub kind: FailureKind,
}

/// Failures that a symptom follows from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// Loss or gradients were not finite.
    Diverged,
    /// Replicas that must be equal differed.
    ReplicasDiffer,
    /// A device or a process had too little memory.
    OutOfMemory,
    /// Any other.
    Other,
}

/// A step of rank 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepFacts {
    /// Number of completed steps.
    pub step: u64,
    /// Mean loss before the update.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Gradient norm before clipping.
    pub grad_norm: f64,
    /// Duration.
    pub seconds: f64,
    /// Wait for data.
    pub data: f64,
    /// Exposed communication, without the wait for later ranks.
    pub exposed: f64,
    /// Wait for later ranks.
    pub waiting: f64,
    /// Whether the update was skipped.
    pub is_skipped: bool,
    /// Whether it was skipped for an overflow at the loss scale.
    pub has_overflowed: bool,
    /// Loss scale, with fp16 products.
    pub loss_scale: Option<f64>,
    /// Share of gradients that fp16 rounds to zero at that scale.
    pub zeroed_fraction: Option<f64>,
}

/// A rank over all steps: medians, unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankFacts {
    /// Quartiles of the time in forward and backward passes.
    pub compute: [f64; 3],
    /// Wait for data.
    pub data: f64,
    /// Exposed communication, without the wait for later ranks.
    pub exposed: f64,
    /// Wait for later ranks.
    pub waiting: f64,
}

/// A checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CheckpointFacts {
    /// Time for which training stalled.
    pub stall: f64,
    /// Time until it was complete on disk.
    pub write: f64,
    /// Bytes that rank 0 wrote.
    pub bytes: u64,
}

/// Bytes of an algorithm along an axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AlgorithmFacts {
    /// Axis: `data`, `pipeline`, `tensor` or `strategy`.
    pub axis: String,
    /// Algorithm, or `messages`.
    pub algorithm: String,
    /// Mean bytes of a step.
    pub bytes_per_step: f64,
}

/// A compressed exchange of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressionFacts {
    /// Number of completed steps.
    pub step: u64,
    /// Squared compression error over the squared norm of the input.
    pub delta: f64,
    /// Mean norm of the error-feedback residuals.
    pub residual_norm: f64,
}

/// A round of local steps, of workers or of clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoundFacts {
    /// Number of completed steps.
    pub step: u64,
    /// Weights, or updates of clients, that were averaged.
    pub num_averaged: usize,
    /// Mean squared distance of these from the average.
    pub drift: f64,
    /// Squared norm of the update of the round.
    pub update_norm_squared: f64,
}

/// Requests to parameter servers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ServerFacts {
    /// Median and 99th percentile of the duration of a pull.
    pub pull: [f64; 2],
    /// Median and 99th percentile of the duration of a push.
    pub push: [f64; 2],
    /// Load of each server: bytes of rows where these are sparse, else parameters.
    pub load_by_server: Vec<u64>,
}

/// Links between ranks that share no memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkFacts {
    /// Longest time of an empty message.
    pub latency: f64,
    /// Bandwidth of the slowest link in bytes per second.
    pub bandwidth: f64,
    /// Bandwidth of a rank, sent and received together.
    pub port: f64,
}

/// A task of a sampled step.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskFacts {
    /// Action as the program names it.
    pub action: String,
    /// Duration.
    pub seconds: f64,
}

/// A traced step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TracedStep {
    /// Number of completed steps.
    pub step: u64,
    /// Ranks, in order.
    pub ranks: Vec<TracedRank>,
}

/// Times of a rank in a traced step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct TracedRank {
    /// Rank.
    pub rank: usize,
    /// The whole step.
    pub seconds: f64,
    /// Forward and backward passes.
    pub compute_seconds: f64,
    /// Calls and messages on the rank's own queues, with the bubble; not those in the background.
    pub communication_seconds: f64,
    /// Optimizer.
    pub optimizer_seconds: f64,
    /// Wait for data.
    pub data_seconds: f64,
    /// Wait for later ranks.
    pub waiting_for_rank_seconds: f64,
    /// End of the last pass on the clock of rank 0, in seconds.
    pub passes_end_seconds: f64,
}

/// Squared gradient norms of a step at two batch sizes, in sequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NoiseFacts {
    /// Smaller batch.
    pub small_batch: f64,
    /// Larger batch.
    pub large_batch: f64,
    /// Squared gradient norm of the smaller batch.
    pub small_norm_squared: f64,
    /// Squared gradient norm of the larger batch.
    pub large_norm_squared: f64,
}
