//! The figures of a finished run: what `train --json` prints and `summary.json` keeps.

use crate::device::kernel_class;
use crate::evaluate::Examination;
use crate::journal::{AccountedBytes, FiguresByWorker, Journal};
use crate::rows::RowFigures;
use crate::saved::Learner;
use crate::servers::Counted;
use crate::uneven::slow_worker;
use crate::{RunFolder, evaluate};
use lockstep_config::Recipe;
use lockstep_data::Feed;
use lockstep_model::problem::Assessment;
use serde::Serialize;
use std::collections::BTreeMap;

/// Seconds and bytes; losses in nats a token. Names are stable: scripts rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct Summary {
    pub steps: u64,
    pub first_loss: f64,
    pub final_loss: f64,
    pub validation_loss: Option<f64>,
    pub baseline_loss: f64,
    pub baseline: String,
    #[serde(flatten)]
    pub verdict: Verdict,
    pub losses_hash: String,
    pub weights_hash: String,
    pub recipe_hash: String,
    pub kernel_class: String,
    pub tokens_per_second: f64,
    pub step_seconds_median: f64,
    pub peak_rss_bytes: u64,
    pub peak_rss_bytes_by_rank: Vec<u64>,
    pub proportional_rss_bytes_by_rank: Vec<u64>,
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
    pub predicted_wire_bytes: Option<u64>,
    pub run_dir: String,
    pub num_params: u64,
    pub seconds: f64,
    /// Time of all steps, and bytes that all workers moved in them; of this process.
    pub train_seconds: f64,
    pub moved_bytes: u64,
    pub data_wait_seconds: f64,
    pub exposed_communication_seconds_median: f64,
    pub skipped_steps: u64,
    #[serde(flatten)]
    pub scaling: ScalingFigures,
    pub first_step_at_seconds: Option<f64>,
    pub tokens: u64,
    pub target: Option<Target>,
    pub emulated: Option<String>,
    /// By how much this machine took longer than the emulated one, on the first worker.
    pub emulated_late_seconds: f64,
    pub bits_depend_on: Option<String>,
    pub blocks_by_stage: Vec<usize>,
    #[serde(flatten)]
    pub pace: PaceFigures,
    #[serde(flatten)]
    pub loose: LooseFigures,
}

/// How fast the workers were, and which steps went without them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PaceFigures {
    /// The time of a micro-batch in the middle of all steps, for each of them.
    pub microbatch_seconds_by_rank: Vec<f64>,
    /// Steps that went without each of them.
    pub missed_steps_by_rank: Vec<u64>,
    /// The one whose micro-batches take much longer than the middle one's, if any's do.
    pub slow_rank: Option<usize>,
    /// How many times as long.
    pub slow_factor: Option<f64>,
}

/// What is known of workers that learn without one lockstep; null where they do not.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LooseFigures {
    /// 1 less what disagreement is multiplied by in a step of gossip.
    pub spectral_gap: Option<f64>,
    /// The mean of the squared distance of workers' weights from their mean, at the end.
    pub consensus_distance: Option<f64>,
    /// How many gradients of each worker missed how many updates, where servers hold the weights.
    pub staleness_by_rank: Option<Vec<BTreeMap<u64, u64>>>,
    /// Rows that travelled one by one.
    #[serde(flatten)]
    pub rows: RowFigures,
    /// How many servers there were.
    pub servers: usize,
    /// What servers have done.
    #[serde(flatten)]
    pub served: ServedFigures,
}

/// What servers have done for workers, in this process's part of the run; null where there are
/// none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ServedFigures {
    /// Pushes that workers know to be taken, by server and worker.
    pub acknowledged_by_server: Option<Vec<Vec<u64>>>,
    /// Pushes that servers have taken, by server and worker, as whoever is left counts them.
    pub applied_by_server: Option<Vec<Vec<u64>>>,
    /// Servers that were lost while another stood in for them.
    pub servers_lost: Option<Vec<usize>>,
    /// Gradients that servers have thrown away, because they were too stale or late, by worker.
    pub discarded_by_rank: Option<Vec<u64>>,
    /// The step from which on all workers waited for all, where they did not before.
    pub synchronous_from_step: Option<u64>,
    /// What half of all requests for weights took at most.
    pub pull_seconds_p50: Option<f64>,
    /// What 99 of 100 of them took at most.
    pub pull_seconds_p99: Option<f64>,
    /// The same of requests with gradients.
    pub push_seconds_p50: Option<f64>,
    /// The same.
    pub push_seconds_p99: Option<f64>,
}

/// What it took to reach `train.target_loss`: steps and tokens since the run began, bytes and
/// seconds of all workers since this process did (a run that was resumed does not know those of
/// its earlier parts).
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

/// How gradients were scaled and shortened, in the steps of this process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScalingFigures {
    /// Steps left out because a gradient overflowed at the scale of the loss.
    pub overflowed_steps: u64,
    /// The share of steps whose gradient was clipped.
    pub clip_rate: f64,
    /// What the next loss would be multiplied by; none but in fp16.
    pub loss_scale: Option<f64>,
    /// The mean share of gradients that fp16 would round to zero at its scale; none but in fp16.
    pub zeroed_fraction: Option<f64>,
}

/// What is known of the solution of a small problem; null where it does not apply. The optimum is
/// that of the mean loss over all samples to learn from, the accuracy that on held-out ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub struct Verdict {
    pub accuracy: Option<f64>,
    pub optimum_loss: Option<f64>,
    pub suboptimality: Option<f64>,
    pub distance: Option<f64>,
}

impl From<Assessment> for Verdict {
    fn from(assessment: Assessment) -> Self {
        match assessment {
            Assessment::Guesses { accuracy } => {
                Self { accuracy: Some(accuracy), ..Self::default() }
            }
            Assessment::Surplus { optimum_loss, suboptimality, distance } => Self {
                accuracy: None,
                optimum_loss: Some(optimum_loss),
                suboptimality: Some(suboptimality),
                distance: Some(distance),
            },
        }
    }
}

/// What a run was said to cost before it started, where somebody said so.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct Predicted {
    pub step_seconds: Option<f64>,
    /// For every length that buckets may turn out to have, the likeliest first.
    pub bytes: Vec<PredictedBytes>,
}

/// What depends on the length of buckets, which may be measured when a run starts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names and units are the documentation")]
pub struct PredictedBytes {
    pub bucket_len: usize,
    pub peak_bytes_by_rank: Vec<u64>,
    pub wire_bytes: u64,
}

impl Summary {
    /// With what was predicted, for buckets as long as they are, beside what was measured.
    pub fn beside(self, predicted: &Predicted, bucket_len: usize) -> Self {
        let is_ours = |bytes: &&PredictedBytes| bytes.bucket_len == bucket_len;
        let bytes = predicted.bytes.iter().find(is_ours).or(predicted.bytes.first());
        Self {
            predicted_step_seconds: predicted.step_seconds,
            predicted_peak_bytes: bytes.and_then(|b| b.peak_bytes_by_rank.iter().copied().max()),
            predicted_peak_bytes_by_rank: bytes.map(|bytes| bytes.peak_bytes_by_rank.clone()),
            predicted_wire_bytes: bytes.map(|bytes| bytes.wire_bytes),
            ..self
        }
    }

    /// Sums a run up.
    pub fn of(
        recipe: &Recipe,
        feed: &Feed,
        folder: &RunFolder,
        learner: &Learner,
        journal: &Journal,
        figures: &FiguresByWorker,
        weights_hash: String,
        examination: Option<Examination>,
    ) -> Self {
        let most = |by_worker: &[u64]| by_worker.iter().copied().max().unwrap_or(0);
        let steps = journal.losses.len() as u64;
        let tokens = learner.batches.first_sample_of(steps) * recipe.model.context as u64;
        let validation_loss = examination.map(|found| found.validation_loss);
        let baseline_loss = examination.and_then(|found| found.baseline_loss);
        let target = Target::of(recipe, steps, tokens, validation_loss, journal, figures);
        Self {
            steps,
            first_loss: journal.losses.first().copied().unwrap_or(f64::NAN),
            final_loss: journal.losses.last().copied().unwrap_or(f64::NAN),
            validation_loss,
            baseline_loss: baseline_loss.unwrap_or_else(|| feed.baseline_loss()),
            baseline: feed.baseline_name().to_owned(),
            verdict: examination
                .and_then(|found| found.assessment)
                .map_or(Verdict::default(), Verdict::from),
            losses_hash: journal.losses_hash(),
            weights_hash,
            recipe_hash: recipe.hash(),
            kernel_class: kernel_class(recipe).to_owned(),
            tokens_per_second: tokens_per_second(learner, recipe, journal),
            step_seconds_median: median(&journal.step_seconds),
            peak_rss_bytes: most(&figures.peak_rss_bytes),
            peak_rss_bytes_by_rank: figures.peak_rss_bytes.clone(),
            proportional_rss_bytes_by_rank: figures.proportional_rss_bytes.clone(),
            accounted_bytes_by_rank: figures.accounted.clone(),
            wire_bytes: most(&figures.wire_bytes),
            wire_bytes_by_rank: figures.wire_bytes.clone(),
            microbatches_by_rank: learner
                .replica
                .microbatches_by_worker()
                .iter()
                .map(|&n| n as u64)
                .collect(),
            workers: recipe.run.workers,
            restarts: journal.restarts,
            staleness_max: staleness_max(journal).max(recipe.sync.uneven.delay),
            predicted_step_seconds: None,
            predicted_peak_bytes: None,
            predicted_peak_bytes_by_rank: None,
            predicted_wire_bytes: None,
            run_dir: folder.path().display().to_string(),
            num_params: learner.replica.blueprint().num_params() as u64,
            seconds: journal.elapsed_seconds(),
            train_seconds: journal.train_seconds(),
            moved_bytes: figures.moved_bytes.iter().sum(),
            data_wait_seconds: journal.data_wait_seconds,
            exposed_communication_seconds_median: median(&journal.exposed_seconds),
            skipped_steps: journal.num_skipped,
            scaling: ScalingFigures::of(learner, journal),
            first_step_at_seconds: journal.first_step_at_seconds,
            tokens,
            target,
            emulated: recipe.emulate.in_words(),
            emulated_late_seconds: journal.slow.late().as_secs_f64(),
            bits_depend_on: recipe.bits_depend_on(),
            blocks_by_stage: learner.replica.blocks_by_stage(),
            loose: LooseFigures::of(recipe, learner, journal),
            pace: PaceFigures::of(journal, figures),
        }
    }
}

impl LooseFigures {
    fn of(recipe: &Recipe, learner: &Learner, journal: &Journal) -> Self {
        let replica = &learner.replica;
        Self {
            spectral_gap: replica.gossip_rate().map(|rate| 1.0 - rate),
            consensus_distance: replica.consensus().map(|found| found.mean),
            staleness_by_rank: Some(journal.staleness.clone()).filter(|found| !found.is_empty()),
            rows: journal.rows.clone(),
            servers: recipe.num_servers(),
            served: ServedFigures::of(recipe, &journal.served),
        }
    }
}

impl ServedFigures {
    fn of(recipe: &Recipe, served: &Counted) -> Self {
        if recipe.num_servers() == 0 {
            return Self::default();
        }
        let seconds = |index: usize| served.request_seconds.map(|seconds| seconds[index]);
        Self {
            acknowledged_by_server: Some(served.acknowledged.clone()),
            applied_by_server: Some(served.taken.clone()),
            servers_lost: Some(served.lost.clone()),
            discarded_by_rank: Some(served.discarded.clone()),
            synchronous_from_step: served.switch,
            pull_seconds_p50: seconds(0),
            pull_seconds_p99: seconds(1),
            push_seconds_p50: seconds(2),
            push_seconds_p99: seconds(3),
        }
    }
}

impl PaceFigures {
    fn of(journal: &Journal, figures: &FiguresByWorker) -> Self {
        let slow = slow_worker(&figures.microbatch_seconds);
        Self {
            microbatch_seconds_by_rank: figures.microbatch_seconds.clone(),
            missed_steps_by_rank: journal.pace.missed.clone(),
            slow_rank: slow.map(|(rank, _)| rank),
            slow_factor: slow.map(|(_, times)| times),
        }
    }
}

impl Target {
    /// What it took, where the loss is what was asked for.
    fn of(
        recipe: &Recipe,
        steps: u64,
        tokens: u64,
        validation_loss: Option<f64>,
        journal: &Journal,
        figures: &FiguresByWorker,
    ) -> Option<Self> {
        let reached = validation_loss.filter(|loss| evaluate::is_reached(recipe, *loss));
        recipe.train.target_loss.zip(reached).map(|(loss, validation_loss)| Self {
            loss,
            validation_loss,
            steps,
            tokens,
            wire_bytes: figures.moved_bytes.iter().sum(),
            seconds: journal.elapsed_seconds(),
        })
    }
}

impl ScalingFigures {
    fn of(learner: &Learner, journal: &Journal) -> Self {
        let scale = learner.scaler.scale();
        let num_steps = journal.step_seconds.len().max(1) as f64;
        Self {
            overflowed_steps: journal.num_overflows,
            clip_rate: journal.num_clipped as f64 / num_steps,
            loss_scale: scale.map(|scale| f64::from(scale.factor())),
            zeroed_fraction: scale.map(|_| journal.lost_shares / num_steps),
        }
    }
}

/// Tokens of the median step over its duration; where batches differ, of all steps over theirs.
fn tokens_per_second(learner: &Learner, recipe: &Recipe, journal: &Journal) -> f64 {
    if learner.batches.stages.len() == 1 {
        return recipe.tokens_per_step() as f64 / median(&journal.step_seconds);
    }
    let [first, last] = [journal.losses.len() - journal.step_seconds.len(), journal.losses.len()];
    let [first, last] = [first, last].map(|step| learner.batches.first_sample_of(step as u64));
    let tokens = (last - first) * recipe.model.context as u64;
    tokens as f64 / journal.step_seconds.iter().sum::<f64>()
}

/// The most updates that any gradient has missed.
fn staleness_max(journal: &Journal) -> u64 {
    let keys = journal.staleness.iter().flat_map(BTreeMap::keys);
    keys.copied().max().unwrap_or(0)
}

/// The middle value (the higher of the two middle ones); NaN of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
