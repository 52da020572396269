//! Builds the summary of a finished run.

use crate::evaluate::Findings;
use crate::figures::{FiguresByRank, median};
use crate::learner::Learner;
use crate::options::{Predicted, PredictedBytes};
use crate::step_log::StepLog;
use crate::summary::{RankTimes, ScalingFigures, Solution, StragglerFigures, Summary, Target};
use crate::{RunFolder, evaluate};
use lockstep_config::Recipe;
use lockstep_data::Feed;
use lockstep_parallel::figures::StrategyFigures;
use lockstep_parallel::slow_rank::{RankPace, SLOW_FACTOR, slow_rank};

impl Summary {
    /// Adds the predicted figures, for the bucket length in use.
    pub fn beside(self, predicted: &Predicted, bucket_len: usize) -> Self {
        let is_ours = |bytes: &&PredictedBytes| bytes.bucket_len == bucket_len;
        let bytes = predicted.bytes.iter().find(is_ours).or(predicted.bytes.first());
        let most = |by_rank: &Vec<u64>| by_rank.iter().copied().max();
        // On an accelerator, a process has the memory of its driver, which is not predicted.
        let in_process = bytes.filter(|_| self.device_bytes.is_none());
        let on_device = bytes.filter(|_| self.device_bytes.is_some());
        Self {
            predicted_step_seconds: predicted.step_seconds,
            predicted_peak_bytes: in_process.and_then(|bytes| most(&bytes.peak_bytes_by_rank)),
            predicted_peak_bytes_by_rank: in_process.map(|bytes| bytes.peak_bytes_by_rank.clone()),
            predicted_device_bytes: on_device.and_then(|bytes| most(&bytes.device_bytes_by_rank)),
            predicted_wire_bytes: bytes.map(|bytes| bytes.wire_bytes),
            ..self
        }
    }
}

/// Builds the summary from the logs and figures of a run.
pub(crate) fn summarize(
    recipe: &Recipe,
    feed: &Feed,
    folder: &RunFolder,
    learner: &Learner,
    step_log: &StepLog,
    figures: &FiguresByRank,
    weights_hash: String,
    Findings { evaluation, tasks }: Findings,
    asynchronous: StrategyFigures,
) -> Summary {
    let most = |by_worker: &[u64]| by_worker.iter().copied().max().unwrap_or(0);
    let steps = step_log.losses.len() as u64;
    let tokens = learner.batches.first_sample_of(steps) * recipe.model.context as u64;
    let tokens_per_second = tokens_per_second(learner, recipe, step_log);
    let validation_loss = evaluation.map(|found| found.validation_loss);
    let baseline_loss = evaluation.and_then(|found| found.baseline_loss);
    let target = Target::of(recipe, steps, tokens, validation_loss, step_log, figures);
    Summary {
        steps,
        // Losses before a checkpoint of another program are unknown.
        first_loss: step_log.losses.iter().copied().find(|loss| !loss.is_nan()).unwrap_or(f64::NAN),
        final_loss: step_log.losses.last().copied().unwrap_or(f64::NAN),
        validation_loss,
        baseline_loss: baseline_loss.unwrap_or_else(|| feed.baseline_loss()),
        baseline: feed.baseline_name().to_owned(),
        tasks,
        solution: evaluation
            .and_then(|found| found.metrics)
            .map_or(Solution::default(), Solution::from),
        preference: step_log.preference,
        losses_hash: step_log.losses_hash(),
        weights_hash,
        recipe_hash: recipe.hash(),
        kernel_class: learner.kernel_class.clone(),
        device: learner.device_name.clone(),
        tokens_per_second,
        mfu: step_log.utilization.mfu(tokens_per_second),
        step_seconds_median: median(&step_log.step_seconds),
        peak_rss_bytes: most(&figures.peak_rss_bytes),
        peak_rss_bytes_by_rank: figures.peak_rss_bytes.clone(),
        proportional_rss_bytes_by_rank: figures.proportional_rss_bytes.clone(),
        device_bytes: Some(most(&figures.device_bytes)).filter(|bytes| *bytes > 0),
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
        restarts: step_log.restarts,
        staleness_max: asynchronous.staleness_max().max(recipe.sync.gradient_delay),
        predicted_step_seconds: None,
        predicted_peak_bytes: None,
        predicted_peak_bytes_by_rank: None,
        predicted_device_bytes: None,
        predicted_wire_bytes: None,
        run_dir: folder.path().display().to_string(),
        num_params: learner.replica.blueprint().num_model_params() as u64,
        seconds: step_log.elapsed_seconds(),
        train_seconds: step_log.train_seconds(),
        total_wire_bytes: figures.total_wire_bytes.iter().sum(),
        data_wait_seconds: step_log.data_wait_seconds.iter().fold(0.0, |sum, wait| sum + wait),
        exposed_communication_seconds_median: median(&step_log.exposed_seconds),
        skipped_steps: step_log.num_skipped,
        scaling: ScalingFigures::of(learner, step_log),
        first_step_at_seconds: step_log.first_step_at_seconds,
        tokens,
        target,
        emulated: recipe.emulate.description(),
        emulated_overrun_seconds: step_log.emulation.overrun().as_secs_f64(),
        bits_depend_on: recipe.layout_dependence(),
        blocks_by_stage: learner.replica.blocks_by_stage(),
        sources: Vec::new(),
        conversations: None,
        asynchronous,
        stragglers: StragglerFigures::of(learner, step_log, figures),
        rank_times: RankTimes {
            compute_quartile_seconds_by_rank: figures.compute_seconds.clone(),
            exposed_communication_seconds_by_rank: figures.exposed_seconds.clone(),
            data_wait_seconds_by_rank: figures.data_wait_seconds.clone(),
            bucket_len: learner.replica.bucket_len(),
        },
    }
}

impl StragglerFigures {
    fn of(learner: &Learner, step_log: &StepLog, figures: &FiguresByRank) -> Self {
        let microbatches = learner.replica.microbatches_by_worker();
        let work = microbatches.iter().map(|microbatches| *microbatches as f64);
        let paces = figures.microbatch_seconds.iter().zip(work);
        let paces: Vec<RankPace> =
            paces.map(|(seconds, work)| RankPace { seconds: *seconds, work }).collect();
        let slow = slow_rank(&paces, |_, _| SLOW_FACTOR);
        Self {
            microbatch_seconds_by_rank: figures.microbatch_seconds.iter().map(|q| q[1]).collect(),
            straggler_wait_seconds_by_rank: figures.straggler_wait_seconds.clone(),
            missed_steps_by_rank: step_log.stragglers.missed.clone(),
            slow_rank: slow.map(|(rank, _)| rank),
            slow_factor: slow.map(|(_, times)| times),
        }
    }
}

impl Target {
    /// Cost of reaching the target loss, if it was reached.
    fn of(
        recipe: &Recipe,
        steps: u64,
        tokens: u64,
        validation_loss: Option<f64>,
        step_log: &StepLog,
        figures: &FiguresByRank,
    ) -> Option<Self> {
        let reached = validation_loss.filter(|loss| evaluate::is_reached(recipe, *loss));
        recipe.train.target_loss.zip(reached).map(|(loss, validation_loss)| Self {
            loss,
            validation_loss,
            steps,
            tokens,
            wire_bytes: figures.total_wire_bytes.iter().sum(),
            seconds: step_log.elapsed_seconds(),
        })
    }
}

impl ScalingFigures {
    fn of(learner: &Learner, step_log: &StepLog) -> Self {
        let scale = learner.stability.scaler.scale();
        let num_steps = step_log.step_seconds.len().max(1) as f64;
        Self {
            overflowed_steps: step_log.num_overflows,
            clip_rate: step_log.num_clipped as f64 / num_steps,
            loss_scale: scale.map(|scale| f64::from(scale.factor())),
            zeroed_fraction: scale.map(|_| step_log.lost_shares / num_steps),
        }
    }
}

/// Throughput of the median step; with a varying batch size, mean throughput of all steps.
fn tokens_per_second(learner: &Learner, recipe: &Recipe, step_log: &StepLog) -> f64 {
    if learner.batches.stages.len() == 1 {
        return recipe.tokens_per_step() as f64 / median(&step_log.step_seconds);
    }
    let [first, last] =
        [step_log.losses.len() - step_log.step_seconds.len(), step_log.losses.len()];
    let [first, last] = [first, last].map(|step| learner.batches.first_sample_of(step as u64));
    let tokens = (last - first) * recipe.model.context as u64;
    tokens as f64 / step_log.step_seconds.iter().sum::<f64>()
}
