//! Events of a run. Their JSON form is a file format for scripts and the dashboard.
//!
//! One event is one line: `{"v":2,"seconds":3.25,"rank":0,"event":"step","step":1,…}`. Fields may
//! be added under the same version, so readers ignore unknown ones; a renamed or removed field
//! raises [`VERSION`]. Non-finite floats are written as the strings `"NaN"`, `"Infinity"` and
//! `"-Infinity"`.
//!
//! Version 2 renamed the event `rows` to `sparse_rows` and its fields `kept` and `copied` to
//! `cached` and `replicated`, `moved` to `update_norm_squared`, and `late` of `aggregated` to
//! `delayed`. A line of version 1 that has one of them is refused with these names.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::histogram::Histogram;
use crate::number;

/// Version of the event format.
pub const VERSION: u32 = 2;

/// Training tokens from a source of a mixture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTokens {
    /// Source as in the recipe.
    pub source: String,
    /// Number of training tokens.
    pub tokens: u64,
    /// Number of passes that every reduction leaf has finished.
    pub epochs: u64,
}

/// Bytes sent along an axis by an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlgorithmBytes {
    /// `data`, `pipeline`, `tensor` or `strategy`.
    pub axis: String,
    /// Algorithm of collectives, or `messages` between two ranks.
    pub algorithm: String,
    /// Bytes.
    pub bytes: u64,
}

/// Bytes that the engine holds on a rank, by part; those of the plan have the same parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryByPart {
    /// Parameters, mirrors included.
    pub weights: u64,
    /// Gradient sums.
    pub gradients: u64,
    /// Optimizer state.
    pub optimizer: u64,
    /// Activations of micro-batches in flight.
    pub activations: u64,
    /// Scratch memory, buckets and messages in flight.
    pub buffers: u64,
}

/// Requests of a worker about sparse embedding rows, and the rows in them, which decide the bytes
/// of its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRequests {
    /// Number of pulls from owners, look-ups in replicas and stores of replicas.
    pub requests: u64,
    /// Rows pulled from their owners.
    pub pulled: u64,
    /// Rows looked up in replicas; each that is not found is pulled, and stored as a replica.
    pub looked_up: u64,
    /// Rows found in replicas.
    pub replicated: u64,
    /// Rows with pushed gradients.
    pub pushed: u64,
}

/// Request that a worker repeated at a replica, since its server was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepeatedRequest {
    /// Worker, counted among those that pull.
    pub worker: usize,
    /// Lost server, counted among those with different shards.
    pub server: usize,
    /// Request, as the step program names it.
    pub call: String,
    /// Messages of the request that the worker and the lost server had exchanged.
    pub messages: u64,
    /// Whether the lost server had parts of the gradient, which the replica gets with the push.
    pub resends_parts: bool,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run is set up, before its first step.
    RunStarted {
        /// Hash of the recipe's identity.
        recipe_hash: String,
        /// Class of kernels with equal bits that this machine uses.
        kernel_class: String,
        /// Trainable parameters of the model.
        num_params: u64,
        /// Tokens per optimizer step over all workers.
        tokens_per_step: u64,
        /// Total number of steps.
        num_steps: u64,
        /// Compute threads of this rank.
        num_threads: usize,
        /// World size.
        workers: usize,
        /// Device of this rank that runs the model: `cpu`, or the name and index of an accelerator.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// Sequences per micro-batch, chosen by memory where the recipe has `auto`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        microbatch: Option<usize>,
        /// Activation recomputation, chosen by memory where the recipe has `auto`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recompute: Option<String>,
        /// Model FLOPs of a token, forward and backward.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flops_per_token: Option<f64>,
        /// Peak FLOP/s of the run's machines, as calibrated or measured; absent if unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        peak_flops_per_second: Option<f64>,
    },
    /// An optimizer step finished.
    Step {
        /// Number of completed steps, from 1 to `num_steps`.
        step: u64,
        /// Mean loss of the step's tokens, before the update.
        #[serde(with = "number")]
        loss: f64,
        /// Learning rate of the update.
        #[serde(with = "number")]
        lr: f64,
        /// Global gradient norm before clipping.
        #[serde(with = "number")]
        grad_norm: f64,
        /// Throughput of the step.
        #[serde(with = "number")]
        tokens_per_second: f64,
        /// Duration of the step.
        #[serde(with = "number")]
        step_seconds: f64,
        /// Data-loading time that the step waited for.
        #[serde(with = "number")]
        data_wait_seconds: f64,
        /// Exposed communication time, without the wait for later ranks.
        exposed_communication_seconds: f64,
        /// Time that this rank waited for ranks that were still busy.
        #[serde(default)]
        straggler_wait_seconds: f64,
        /// Whether the step was skipped for non-finite gradients.
        is_skipped: bool,
        /// Length of the segments of sequences, during a sequence-length warm-up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seqlen: Option<usize>,
        /// Loss scale, with fp16 products.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_scale: Option<f64>,
        /// Fraction of gradients that fp16 rounds to zero at that scale.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zeroed_fraction: Option<f64>,
        /// Fraction of the step's pairs whose chosen answer has gained more probability than the
        /// rejected one, with finetune.method = dpo.
        #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
        preference_accuracy: Option<f64>,
        /// Mean margin of the rewards of those pairs, in nats.
        #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
        preference_margin: Option<f64>,
    },
    /// Bytes that this rank sent in a step, and its memory after it; recorded where metrics are
    /// exported.
    Resources {
        /// Number of completed steps.
        step: u64,
        /// Bytes of gradients and parameters sent along the data axis.
        data_bytes: u64,
        /// Bytes of activations and their gradients sent along the pipeline axis.
        pipeline_bytes: u64,
        /// Bytes sent along the tensor axis.
        tensor_bytes: u64,
        /// Bytes sent to parameter servers and for the sync strategy.
        strategy_bytes: u64,
        /// Resident memory; 0 if unknown.
        resident_bytes: u64,
        /// Model FLOP/s of the run in the step, without recomputation.
        #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
        model_flops_per_second: Option<f64>,
        /// Their share of the peak of the run's machines; absent where that is unknown.
        #[serde(default, with = "number::option", skip_serializing_if = "Option::is_none")]
        mfu: Option<f64>,
    },
    /// A validation finished.
    Evaluated {
        /// Number of completed steps.
        step: u64,
        /// Mean validation loss.
        #[serde(with = "number")]
        validation_loss: f64,
        /// Exponential of the validation loss.
        #[serde(with = "number")]
        perplexity: f64,
        /// Training time since the run started or resumed.
        #[serde(default, with = "number")]
        train_seconds: f64,
        /// Bytes of gradients and parameters sent by all ranks since then.
        #[serde(default)]
        wire_bytes: u64,
    },
    /// A task of multiple choice was evaluated.
    TaskEvaluated {
        /// Number of completed steps.
        step: u64,
        /// Name of the task.
        task: String,
        /// Number of questions.
        questions: u64,
        /// Scores by metric, as fractions.
        scores: BTreeMap<String, f64>,
        /// Mean log-likelihood of the right choices.
        #[serde(default)]
        log_likelihood: Option<f64>,
    },
    /// Conversations of the training and the validation data, at the start of a run on them.
    ConversationsRead {
        /// Conversations, or pairs of preferences, that are used.
        conversations: u64,
        /// Those of them in the training split.
        train: u64,
        /// Their tokens.
        tokens: u64,
        /// Tokens that the loss counts.
        answered: u64,
        /// Used conversations of which something lies beyond the context.
        truncated: u64,
        /// Conversations without an answer within the context, which are not used.
        dropped: u64,
        /// Whether they are pairs.
        pairs: bool,
    },
    /// Sources of a mixture that the run has read, at an evaluation.
    SourcesRead {
        /// Number of completed steps.
        step: u64,
        /// Tokens of each source since the start of the run, in the order of the recipe.
        sources: Vec<SourceTokens>,
    },
    /// A step used the gradients of a part of the workers.
    WorkersMissing {
        /// Number of completed steps.
        step: u64,
        /// Ranks without gradients in the step.
        missing: Vec<usize>,
        /// Number of targets of the other ranks.
        targets: u64,
    },
    /// The reduction leaves of a batch were divided anew among the workers (`sync.stragglers =
    /// "shares"`).
    LeavesDivided {
        /// Number of completed steps, the first with this division included.
        step: u64,
        /// Leaves of each worker.
        leaves_by_worker: Vec<usize>,
    },
    /// A round of local steps ended with an average of the weights.
    RoundFinished {
        /// Number of completed steps.
        step: u64,
        /// Mean over ranks of the squared distance of their weights from the average.
        #[serde(with = "number")]
        drift: f64,
        /// Maximum of that distance.
        #[serde(with = "number")]
        drift_max: f64,
        /// Rank with the maximum.
        drift_max_rank: usize,
        /// Squared norm of the update of the round.
        #[serde(with = "number")]
        update_norm_squared: f64,
    },
    /// The coordinator aggregated the updates of clients.
    Aggregated {
        /// Number of completed steps.
        step: u64,
        /// Number of sampled clients.
        sampled: usize,
        /// Number of aggregated updates, delayed ones included.
        counted: usize,
        /// Number of delayed updates among them.
        delayed: usize,
        /// Mean squared distance of the updates from their aggregate.
        #[serde(with = "number")]
        drift: f64,
        /// Maximum of that distance.
        #[serde(with = "number")]
        drift_max: f64,
        /// Client with the maximum.
        drift_max_client: usize,
        /// Squared norm of the aggregate.
        #[serde(with = "number")]
        update_norm_squared: f64,
        /// Privacy budget epsilon spent so far, with noise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epsilon: Option<f64>,
    },
    /// The gossip graph is set up.
    GraphFormed {
        /// Name of the graph.
        graph: String,
        /// Maximum number of neighbours of a rank.
        max_degree: usize,
        /// Spectral gap of the mixing matrix: 1 minus its contraction per step.
        #[serde(with = "number")]
        spectral_gap: f64,
    },
    /// Consensus distance of local weights.
    Consensus {
        /// Number of completed steps.
        step: u64,
        /// Mean over ranks of the squared distance of their weights from the average.
        #[serde(with = "number")]
        distance: f64,
        /// Maximum of that distance.
        #[serde(with = "number")]
        distance_max: f64,
        /// Rank with the maximum.
        distance_max_rank: usize,
    },
    /// The parameter servers are set up.
    ServersJoined {
        /// Process id of every worker, by rank.
        worker_processes: Vec<u64>,
        /// Process id of every server; their ranks follow those of the workers.
        server_processes: Vec<u64>,
        /// Number of parameters of each server.
        params_by_server: Vec<u64>,
        /// Consistency model.
        consistency: String,
    },
    /// A server was lost and its replica takes over.
    ServerLost {
        /// Step in which the first worker detected it.
        step: u64,
        /// Rank of the lost server. Named `rank` before, like the rank that records the event,
        /// with which no line could be read.
        server: usize,
        /// Process id of the lost server.
        process: u64,
        /// Rank of the replica.
        successor: usize,
    },
    /// Latency of requests to servers so far, over all workers.
    ServerRequests {
        /// Number of completed steps.
        step: u64,
        /// Median of pulls.
        #[serde(with = "number")]
        pull_p50_seconds: f64,
        /// 99th percentile of pulls.
        #[serde(with = "number")]
        pull_p99_seconds: f64,
        /// Median of pushes.
        #[serde(with = "number")]
        push_p50_seconds: f64,
        /// 99th percentile of pushes.
        #[serde(with = "number")]
        push_p99_seconds: f64,
        /// Number of pulls for a step by each worker that pulls; one that found the run over has no
        /// push.
        #[serde(default)]
        pulls_by_worker: Vec<u64>,
        /// Number of pushes by each of these workers.
        #[serde(default)]
        pushes_by_worker: Vec<u64>,
        /// Requests that were repeated at a replica.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        repeats: Vec<RepeatedRequest>,
    },
    /// Pushes to the parameter servers so far, by server and worker. Acknowledged ones are applied,
    /// discarded or skipped, or belong to an update that has not closed.
    ServerPushes {
        /// Number of completed steps.
        step: u64,
        /// Pushes acknowledged to workers.
        acknowledged_by_server: Vec<Vec<u64>>,
        /// Gradients that changed parameters.
        applied_by_server: Vec<Vec<u64>>,
        /// Gradients that changed nothing.
        discarded_by_server: Vec<Vec<u64>>,
        /// Skipped steps.
        skipped_by_server: Vec<Vec<u64>>,
    },
    /// Staleness of the applied gradients of a worker so far.
    Staleness {
        /// Number of completed steps.
        step: u64,
        /// Worker rank.
        worker: usize,
        /// Mean staleness.
        #[serde(with = "number")]
        mean: f64,
        /// Maximum staleness.
        max: u64,
        /// Histogram: pairs of staleness and number of gradients.
        counts: Vec<(u64, u64)>,
    },
    /// Sparse embedding rows transferred so far, over all workers.
    SparseRows {
        /// Number of completed steps.
        step: u64,
        /// Number of pulled rows.
        pulled: u64,
        /// Number of rows with pushed gradients.
        pushed: u64,
        /// Number of rows read from the row cache instead of a pull.
        cached: u64,
        /// Number of rows pulled from a replica on another server.
        #[serde(default)]
        replicated: u64,
        /// Maximum staleness of a cached or replicated row.
        age_max: u64,
        /// Number of row requests to each server.
        requests_by_server: Vec<u64>,
        /// Bytes of rows and row indices, to and from each server.
        bytes_by_server: Vec<u64>,
        /// Requests of each worker that pulls.
        #[serde(default)]
        by_worker: Vec<RowRequests>,
    },
    /// Compression statistics of a step.
    Compressed {
        /// Number of completed steps.
        step: u64,
        /// Squared compression error over the squared norm of the input, over all ranks.
        #[serde(with = "number")]
        delta: f64,
        /// Mean norm of the error-feedback residuals.
        #[serde(with = "number")]
        residual_norm: f64,
        /// Compressed bytes of a rank.
        message_bytes: u64,
        /// Uncompressed bytes of the same gradients.
        dense_bytes: u64,
    },
    /// Links between ranks that share no memory, as probed before the first step.
    LinksMeasured {
        /// Longest time of an empty message.
        latency_seconds: f64,
        /// Bandwidth of the slowest link.
        bytes_per_second: f64,
        /// Bandwidth of a rank, sent and received together.
        port_bytes_per_second: f64,
    },
    /// Tasks of a sampled step of this rank, in the order in which they ran.
    TaskSpans {
        /// Number of completed steps.
        step: u64,
        /// Id of the task in the step's program, its action, and start and duration in seconds,
        /// since the start of the step.
        spans: Vec<(u32, String, f64, f64)>,
    },
    /// Tasks of the last sampled step on another of the first 16 ranks, gathered at an evaluation.
    RankSpans {
        /// Number of completed steps.
        step: u64,
        /// Rank.
        worker: usize,
        /// As in `task_spans`.
        spans: Vec<(u32, String, f64, f64)>,
    },
    /// Counters of a rank since this attempt began, gathered at an evaluation.
    RankCounters {
        /// Number of completed steps.
        step: u64,
        /// Rank.
        worker: usize,
        /// Restarts of the run before this attempt.
        restarts: u64,
        /// Steps that used no gradients of this rank.
        missed_steps: u64,
        /// Bytes sent along the data axis in steps.
        data_bytes: u64,
        /// Bytes sent along the pipeline axis in steps.
        pipeline_bytes: u64,
        /// Bytes sent along the tensor axis in steps.
        tensor_bytes: u64,
        /// Bytes sent in steps to parameter servers and for the sync strategy.
        strategy_bytes: u64,
        /// Exposed communication of all steps.
        #[serde(with = "number")]
        exposed_communication_seconds: f64,
        /// Time that the rank waited for ranks that were still busy.
        #[serde(with = "number")]
        straggler_wait_seconds: f64,
        /// Resident memory of the rank's process; absent if unknown.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resident_bytes: Option<u64>,
        /// Peak of the buffers on the rank's accelerator; absent without one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device_bytes: Option<u64>,
        /// Share of the time since the last event of this kind in which the compute threads of the
        /// rank's process were on processors; absent with an accelerator.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        busy_share: Option<f64>,
        /// Mean clock frequency of the host's processors; absent if the host does not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        clock_hertz: Option<f64>,
        /// Times that the host's cores were throttled because of their temperature since this
        /// attempt began; absent if the host does not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        throttle_count: Option<u64>,
        /// First rank on the same host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_rank_on_host: Option<usize>,
        /// Memory that the engine holds, by part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<MemoryByPart>,
    },
    /// Bytes that this rank has sent in steps since this attempt began, by axis and algorithm;
    /// recorded at an evaluation.
    AlgorithmBytes {
        /// Number of completed steps.
        step: u64,
        /// Those that sent anything.
        bytes: Vec<AlgorithmBytes>,
    },
    /// Squared norms of a step's gradients over two sample sizes, from which the gradient-noise
    /// scale follows (McCandlish et al. 2018). Recorded at the next evaluation.
    GradientNoise {
        /// Number of completed steps.
        step: u64,
        /// Sequences of a reduction leaf: the harmonic mean over leaves, weighted by targets.
        #[serde(with = "number")]
        small_batch: f64,
        /// Sequences of the batch.
        #[serde(with = "number")]
        large_batch: f64,
        /// Mean over leaves of the squared norm of the mean gradient of their targets.
        #[serde(with = "number")]
        small_norm_squared: f64,
        /// Squared norm of the mean gradient of the batch.
        #[serde(with = "number")]
        large_norm_squared: f64,
    },
    /// Histogram of a tensor (`telemetry.histograms_every`).
    Histogram {
        /// Number of completed steps.
        step: u64,
        /// `weights` before the step's update, or its `gradients` before clipping.
        of: String,
        /// Name of the tensor.
        tensor: String,
        /// Distribution of its values.
        values: Histogram,
    },
    /// The validation loss reached its target, which ends the run.
    TargetReached {
        /// Number of completed steps.
        step: u64,
        /// Target loss.
        #[serde(with = "number")]
        target_loss: f64,
        /// Validation loss.
        #[serde(with = "number")]
        validation_loss: f64,
        /// Number of training tokens.
        tokens: u64,
        /// Bytes of gradients and parameters sent by all workers.
        wire_bytes: u64,
        /// Time since the run started or resumed.
        #[serde(with = "number")]
        run_seconds: f64,
    },
    /// Quality of the solution of a small problem.
    Assessed {
        /// Number of completed steps.
        step: u64,
        /// Validation accuracy of a classifier.
        #[serde(with = "number::option")]
        accuracy: Option<f64>,
        /// Minimum loss of a convex problem.
        #[serde(with = "number::option")]
        optimum_loss: Option<f64>,
        /// Loss minus the minimum.
        #[serde(with = "number::option")]
        suboptimality: Option<f64>,
        /// Distance of the weights from the optimum.
        #[serde(with = "number::option")]
        distance: Option<f64>,
    },
    /// A checkpoint is complete on disk.
    CheckpointSaved {
        /// Number of completed steps at the checkpoint.
        step: u64,
        /// Bytes written by this rank.
        bytes: u64,
        /// Time for which training stalled.
        #[serde(with = "number")]
        stall_seconds: f64,
        /// Time until the checkpoint was complete on disk.
        #[serde(with = "number")]
        write_seconds: f64,
        /// Time to the next checkpoint, if it is time-based.
        #[serde(with = "number::option")]
        interval_seconds: Option<f64>,
    },
    /// Training resumes from a checkpoint.
    Restored {
        /// Number of completed steps at the checkpoint.
        step: u64,
        /// Checkpoint folder.
        path: String,
    },
    /// Text generated by the model.
    Sample {
        /// The text.
        text: String,
    },
    /// A warning; the run continues.
    Warning {
        /// One line.
        message: String,
    },
    /// The run finished.
    RunFinished {
        /// Number of completed steps.
        steps: u64,
        /// Loss of the last step.
        #[serde(with = "number")]
        final_loss: f64,
        /// Final validation loss; null without validation data.
        #[serde(with = "number::option")]
        validation_loss: Option<f64>,
        /// BLAKE3 of every step's loss.
        losses_hash: String,
        /// BLAKE3 of the final weights.
        weights_hash: String,
        /// Duration of the run; `seconds` is the timestamp of every event.
        #[serde(with = "number")]
        run_seconds: f64,
    },
}

impl Event {
    /// Whether the event is written to the log only, not to the console.
    pub fn is_detail(&self) -> bool {
        matches!(
            self,
            Self::RoundFinished { .. }
                | Self::Aggregated { .. }
                | Self::Compressed { .. }
                | Self::WorkersMissing { .. }
                | Self::Resources { .. }
                | Self::LeavesDivided { .. }
                | Self::GradientNoise { .. }
                | Self::RankCounters { .. }
                | Self::AlgorithmBytes { .. }
                | Self::Histogram { .. }
                | Self::LinksMeasured { .. }
        )
    }
}

/// An event with its timestamp and rank: one line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// Format version, [`VERSION`].
    pub v: u32,
    /// Monotonic time since the start of the rank; times of different ranks are not comparable.
    pub seconds: f64,
    /// Rank that recorded the event.
    pub rank: usize,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

#[cfg(test)]
mod tests;
