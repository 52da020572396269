//! Parts of the median step: where the time of the ranks goes, in the mean over all ranks.

use super::measured_step::{MeasuredStep, RankTime};
use super::replay::{Scales, StepReplay};
use super::slow_rank::SlowRank;
use serde::Serialize;

/// Seconds per step by cause; they sum to the step time with its share of the checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Parts {
    /// Forward and backward passes.
    pub compute_seconds: f64,
    /// Communication that computation does not hide.
    pub exposed_communication_seconds: f64,
    /// Waiting for ranks that are still busy.
    pub waiting_for_rank_seconds: f64,
    /// Idle time of pipeline stages.
    pub bubble_seconds: f64,
    /// Waiting for data.
    pub data_seconds: f64,
    /// Stall for checkpoints.
    pub checkpoint_seconds: f64,
    /// Optimizer, norms, and whatever else ranks do between calls.
    pub optimizer_seconds: f64,
}

impl Parts {
    /// Parts of a measured step. Of the waits in a pipeline, its replay without communication tells
    /// the bubble.
    pub(super) fn of(
        measured: &MeasuredStep,
        replay: Option<&StepReplay>,
        slow: Option<SlowRank>,
        is_pipeline: bool,
    ) -> Self {
        let compute = measured.mean(|rank| rank.compute_seconds);
        let optimizer = measured.mean(|rank| rank.optimizer_seconds);
        let data = measured.mean(|rank| rank.data_seconds);
        let all_waits = (measured.seconds - compute - optimizer - data).max(0.0);
        let (mut bubble, mut waiting) = match replay.filter(|_| is_pipeline) {
            Some(replay) => {
                let idle = |factor: f64| {
                    let scale = |rank: usize| slow.map_or(1.0, |at| at.scale(rank, factor));
                    let busy =
                        |it: &RankTime| scale(it.rank) * it.compute_seconds + it.optimizer_seconds;
                    let busy = measured.mean(busy);
                    let silent = Scales { compute: &scale, ..Scales::SILENT };
                    (replay.seconds(silent) - replay.unexplained - busy).max(0.0)
                };
                let (bubble, idle) = (idle(0.0), idle(1.0));
                (bubble, (idle - bubble).max(0.0) + measured.chance_wait())
            }
            None => (0.0, measured.mean(|rank| rank.waiting_for_rank_seconds)),
        };
        let waits = bubble + waiting;
        if waits > all_waits {
            let share = all_waits / waits;
            (bubble, waiting) = (bubble * share, waiting * share);
        }
        Self {
            compute_seconds: compute,
            exposed_communication_seconds: all_waits - bubble - waiting,
            waiting_for_rank_seconds: waiting,
            bubble_seconds: bubble,
            data_seconds: data,
            checkpoint_seconds: measured.checkpoint,
            optimizer_seconds: optimizer,
        }
    }

    /// Parts with their names for people, the longest first.
    pub fn by_size(&self) -> Vec<(&'static str, f64)> {
        let mut parts = vec![
            ("compute", self.compute_seconds),
            ("exposed communication", self.exposed_communication_seconds),
            ("waiting for a rank", self.waiting_for_rank_seconds),
            ("pipeline bubble", self.bubble_seconds),
            ("data", self.data_seconds),
            ("checkpoints", self.checkpoint_seconds),
            ("optimizer and other", self.optimizer_seconds),
        ];
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        parts
    }

    /// Sum of all parts.
    pub fn total(&self) -> f64 {
        self.by_size().iter().map(|(_, seconds)| seconds).sum()
    }
}
