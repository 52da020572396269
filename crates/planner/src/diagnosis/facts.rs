//! Facts of a run that its diagnosis needs, as the run folder records them.

use lockstep_config::Recipe;
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
    /// Error of a run that failed, and whether loss or gradients were not finite.
    pub failure: Option<(String, bool)>,
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
