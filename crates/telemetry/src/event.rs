//! The events of a run. Their JSON form is a file format that scripts and the dashboard read.
//!
//! One event is one line: `{"v":1,"seconds":3.25,"rank":0,"event":"step","step":1,…}`. Fields may
//! be added under the same version, so readers ignore those they do not know; a changed or removed
//! field raises [`VERSION`]. Floats that are not numbers are written as the strings `"NaN"`,
//! `"Infinity"` and `"-Infinity"`, which JSON itself lacks.

use serde::{Deserialize, Serialize};

use crate::number;

/// The version of the event format.
pub const VERSION: u32 = 1;

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run is set up and its first step comes next.
    RunStarted {
        /// Hash of the part of the recipe that determines the result.
        recipe_hash: String,
        /// The family of kernels whose bits this machine computes.
        kernel_class: String,
        /// Trainable parameters of the model.
        num_params: u64,
        /// Tokens in one optimizer step, over all workers.
        tokens_per_step: u64,
        /// Steps the run will have done at its end.
        num_steps: u64,
        /// Compute threads of this rank.
        num_threads: usize,
        /// Ranks of the run.
        workers: usize,
    },
    /// An optimizer step is done.
    Step {
        /// Steps done so far, this one included: the first is 1, the last is `num_steps`.
        step: u64,
        /// Mean loss of the step's tokens, before the update.
        #[serde(with = "number")]
        loss: f64,
        /// Learning rate of the update.
        #[serde(with = "number")]
        lr: f64,
        /// Norm of the whole gradient, before clipping.
        #[serde(with = "number")]
        grad_norm: f64,
        /// Tokens of the step over its duration.
        #[serde(with = "number")]
        tokens_per_second: f64,
        /// Duration of the step.
        #[serde(with = "number")]
        step_seconds: f64,
        /// The part of the duration spent waiting for data.
        #[serde(with = "number")]
        data_wait_seconds: f64,
        /// Time spent waiting for other workers.
        exposed_communication_seconds: f64,
        /// Whether the step was skipped because a gradient was not finite.
        is_skipped: bool,
        /// What the loss was multiplied by, where products are in fp16.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_scale: Option<f64>,
        /// The share of gradients that fp16 rounds to zero at that scale.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        zeroed_fraction: Option<f64>,
    },
    /// The model was evaluated on the held-out data.
    Evaluated {
        /// Steps done before the evaluation.
        step: u64,
        /// Mean loss over the held-out tokens.
        #[serde(with = "number")]
        validation_loss: f64,
        /// The exponential of that loss.
        #[serde(with = "number")]
        perplexity: f64,
        /// Time that steps took so far, since the run began or was resumed.
        #[serde(default, with = "number")]
        train_seconds: f64,
        /// Bytes of gradients and parameters that all ranks moved in them.
        #[serde(default)]
        wire_bytes: u64,
    },
    /// A step went by the gradients of those who were there.
    WorkersMissing {
        /// Steps done so far.
        step: u64,
        /// The ranks whose gradients are missing.
        missing: Vec<usize>,
        /// Targets of those that are not.
        targets: u64,
    },
    /// Workers that took steps of their own have averaged their weights.
    RoundFinished {
        /// Steps done so far.
        step: u64,
        /// The mean over ranks of the squared distance of their weights from the mean.
        #[serde(with = "number")]
        drift: f64,
        /// The largest of them.
        #[serde(with = "number")]
        drift_max: f64,
        /// The rank that it is of.
        drift_max_rank: usize,
        /// The squared distance of the mean from where the round began.
        #[serde(with = "number")]
        moved: f64,
    },
    /// The coordinator combined what clients sent.
    Aggregated {
        /// Steps done so far.
        step: u64,
        /// Clients that were drawn.
        sampled: usize,
        /// Changes that counted, late ones included.
        counted: usize,
        /// Those of them that were late.
        late: usize,
        /// The mean over them of the squared distance from what they became.
        #[serde(with = "number")]
        drift: f64,
        /// The largest of them.
        #[serde(with = "number")]
        drift_max: f64,
        /// The client that it is of.
        drift_max_client: usize,
        /// The squared length of what they became.
        #[serde(with = "number")]
        moved: f64,
        /// The privacy that all rounds so far leave, where there is noise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        epsilon: Option<f64>,
    },
    /// Workers average their weights with neighbours only.
    GraphFormed {
        /// The graph's name.
        graph: String,
        /// The most neighbours that a rank has.
        max_degree: usize,
        /// 1 less what disagreement is multiplied by in a step.
        #[serde(with = "number")]
        spectral_gap: f64,
    },
    /// How far the weights of ranks that have their own are apart.
    Consensus {
        /// Steps done so far.
        step: u64,
        /// The mean over ranks of the squared distance of their weights from the mean.
        #[serde(with = "number")]
        distance: f64,
        /// The largest of them.
        #[serde(with = "number")]
        distance_max: f64,
        /// The rank that it is of.
        distance_max_rank: usize,
    },
    /// Servers hold the weights: who is who.
    ServersJoined {
        /// The process of every worker, by rank.
        worker_processes: Vec<u64>,
        /// The process of every server; their ranks follow those of workers.
        server_processes: Vec<u64>,
        /// How many parameters each server holds.
        params_by_server: Vec<u64>,
        /// Who waits for whom.
        consistency: String,
    },
    /// A server is gone, and another that holds the same goes on alone.
    ServerLost {
        /// The step in which the first worker noticed.
        step: u64,
        /// The rank of the one that is gone.
        rank: usize,
        /// Its process.
        process: u64,
        /// The rank of the one that is left.
        successor: usize,
    },
    /// How long requests to servers took so far, in seconds: what half of them, and 99 of 100, stay
    /// within. Over all workers.
    ServerRequests {
        /// Steps done so far.
        step: u64,
        /// For weights.
        #[serde(with = "number")]
        pull_p50_seconds: f64,
        /// The same for 99 of 100.
        #[serde(with = "number")]
        pull_p99_seconds: f64,
        /// With gradients.
        #[serde(with = "number")]
        push_p50_seconds: f64,
        /// The same for 99 of 100.
        #[serde(with = "number")]
        push_p99_seconds: f64,
    },
    /// How many updates the gradients of a worker have missed so far.
    Staleness {
        /// Steps done so far.
        step: u64,
        /// The worker.
        worker: usize,
        /// The mean.
        #[serde(with = "number")]
        mean: f64,
        /// The most.
        max: u64,
        /// How many gradients have missed how many updates: pairs of updates and gradients.
        counts: Vec<(u64, u64)>,
    },
    /// Rows that travelled one by one in all steps so far, over all workers.
    Rows {
        /// Steps done so far.
        step: u64,
        /// Rows that were pulled.
        pulled: u64,
        /// Rows whose gradients were pushed.
        pushed: u64,
        /// Rows that steps touched and did not pull, because they were kept.
        kept: u64,
        /// Rows that steps took from a copy on another server than the row's own.
        #[serde(default)]
        copied: u64,
        /// The most updates that a row that was kept or copied had missed.
        age_max: u64,
        /// Requests to each server that were about rows.
        requests_by_server: Vec<u64>,
        /// Bytes of rows and their numbers, to and from each server.
        bytes_by_server: Vec<u64>,
    },
    /// The gradients of a step were compressed.
    Compressed {
        /// Steps done so far.
        step: u64,
        /// The squared error over the squared norm of what was to be sent, over all ranks.
        #[serde(with = "number")]
        delta: f64,
        /// The mean norm of what ranks keep for later.
        #[serde(with = "number")]
        residual_norm: f64,
        /// Bytes that a rank wrote.
        message_bytes: u64,
        /// Bytes of the same gradients as they are.
        dense_bytes: u64,
    },
    /// The validation loss is what the run was after, which ends it.
    TargetReached {
        /// Steps done.
        step: u64,
        /// The loss that was asked for.
        #[serde(with = "number")]
        target_loss: f64,
        /// The loss that was reached.
        #[serde(with = "number")]
        validation_loss: f64,
        /// Tokens trained on.
        tokens: u64,
        /// Bytes of gradients and parameters that all workers moved.
        wire_bytes: u64,
        /// Time since the run began, or was resumed.
        #[serde(with = "number")]
        run_seconds: f64,
    },
    /// The solution of a small problem was judged.
    Assessed {
        /// Steps done before.
        step: u64,
        /// The share of right guesses on held-out samples, of a classifier.
        #[serde(with = "number::option")]
        accuracy: Option<f64>,
        /// The lowest possible loss, of a convex problem.
        #[serde(with = "number::option")]
        optimum_loss: Option<f64>,
        /// By how much the loss is above it.
        #[serde(with = "number::option")]
        suboptimality: Option<f64>,
        /// The distance of the weights from where it is.
        #[serde(with = "number::option")]
        distance: Option<f64>,
    },
    /// A checkpoint is on the disk, whole.
    CheckpointSaved {
        /// Steps done when it was taken.
        step: u64,
        /// Bytes that this rank wrote of it.
        bytes: u64,
        /// Time that training stood still for it.
        #[serde(with = "number")]
        stall_seconds: f64,
        /// Time until all of it was on the disk.
        #[serde(with = "number")]
        write_seconds: f64,
        /// Time to the next one, where it goes by the clock.
        #[serde(with = "number::option")]
        interval_seconds: Option<f64>,
    },
    /// Training goes on from a checkpoint.
    Restored {
        /// Steps done when it was taken.
        step: u64,
        /// Its folder.
        path: String,
    },
    /// Text the model generated.
    Sample {
        /// The text.
        text: String,
    },
    /// Something a person should know; the run goes on.
    Warning {
        /// One line.
        message: String,
    },
    /// The run reached its end.
    RunFinished {
        /// Steps done.
        steps: u64,
        /// Loss of the last step.
        #[serde(with = "number")]
        final_loss: f64,
        /// Loss on the held-out data at the end; null when nothing is held out.
        #[serde(with = "number::option")]
        validation_loss: Option<f64>,
        /// BLAKE3 of every step's loss.
        losses_hash: String,
        /// BLAKE3 of the final weights.
        weights_hash: String,
        /// Duration of the run; `seconds` alone is the time in every event's stamp.
        #[serde(with = "number")]
        run_seconds: f64,
    },
}

impl Event {
    /// Whether it is for those who read all events, and not for the console.
    pub fn is_detail(&self) -> bool {
        matches!(
            self,
            Self::RoundFinished { .. }
                | Self::Aggregated { .. }
                | Self::Compressed { .. }
                | Self::WorkersMissing { .. }
        )
    }
}

/// An event with its stamp: one line of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stamped {
    /// The version of the format, [`VERSION`].
    pub v: u32,
    /// The world's monotonic clock when the event was recorded; its origin is the start of the
    /// rank, so times of different ranks cannot be compared.
    pub seconds: f64,
    /// Who recorded it.
    pub rank: usize,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(event: Event) -> String {
        let stamped = Stamped { v: VERSION, seconds: 3.25, rank: 0, event };
        serde_json::to_string(&stamped).unwrap()
    }

    #[test]
    fn the_lines_are_the_documented_format() {
        let started = Event::RunStarted {
            recipe_hash: "ab".to_owned(),
            kernel_class: "f32-fma".to_owned(),
            num_params: 10,
            tokens_per_step: 4096,
            num_steps: 400,
            num_threads: 2,
            workers: 1,
        };
        assert_eq!(
            line(started),
            r#"{"v":1,"seconds":3.25,"rank":0,"event":"run_started","recipe_hash":"ab","#
                .to_owned()
                + r#""kernel_class":"f32-fma","num_params":10,"tokens_per_step":4096,"#
                + r#""num_steps":400,"num_threads":2,"workers":1}"#
        );
        let step = Event::Step {
            step: 1,
            loss: 5.5,
            lr: 0.001,
            grad_norm: f64::NAN,
            tokens_per_second: 1e4,
            step_seconds: 0.5,
            data_wait_seconds: 0.0,
            exposed_communication_seconds: 0.0,
            is_skipped: false,
            loss_scale: None,
            zeroed_fraction: None,
        };
        assert_eq!(
            line(step),
            r#"{"v":1,"seconds":3.25,"rank":0,"event":"step","step":1,"loss":5.5,"lr":0.001,"#
                .to_owned()
                + r#""grad_norm":"NaN","tokens_per_second":10000.0,"step_seconds":0.5,"#
                + r#""data_wait_seconds":0.0,"exposed_communication_seconds":0.0,"#
                + r#""is_skipped":false}"#
        );
        let finished = Event::RunFinished {
            steps: 400,
            final_loss: 1.5,
            validation_loss: None,
            losses_hash: "cd".to_owned(),
            weights_hash: "ef".to_owned(),
            run_seconds: 60.0,
        };
        assert_eq!(
            line(finished),
            r#"{"v":1,"seconds":3.25,"rank":0,"event":"run_finished","steps":400,"#.to_owned()
                + r#""final_loss":1.5,"validation_loss":null,"losses_hash":"cd","#
                + r#""weights_hash":"ef","run_seconds":60.0}"#
        );
    }
}
