//! Parts of the step as planned, beside those that were measured.
//!
//! The step program of all ranks is played with planned durations: what a rank neither computes nor
//! updates is exposed communication, but for the idle time of a pipeline that remains without any
//! communication. No plan waits for data, for a slow rank or for a checkpoint.

use super::facts::RunFacts;
use super::measured_step::RankTime;
use super::parts::Parts;
use super::planned_step::Plan;
use super::replay::Scales;
use super::statistics::mean_of;
use crate::calibration::machine::Machine;
use serde::Serialize;

/// Parts of the planned step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedParts {
    /// Duration.
    pub step_seconds: f64,
    /// Whether the calibrated machine gives the computation; otherwise it is the measured one of
    /// the usual rank.
    pub is_calibrated: bool,
    /// Parts in the mean over ranks.
    pub parts: Parts,
    /// Parts by rank.
    pub ranks: Vec<RankTime>,
}

impl PlannedParts {
    /// `None` where the run has no [`Plan`].
    pub(super) fn of(facts: &RunFacts, machine: Option<&Machine>) -> Option<Self> {
        let Plan { replay, ranks, is_calibrated } = Plan::of(facts, machine)?;
        let [step_seconds, silent] =
            [Scales::MEASURED, Scales::SILENT].map(|scales| replay.seconds(scales));
        let busy = |rank: &RankTime| rank.compute_seconds + rank.optimizer_seconds;
        let mean_busy = mean_of(&ranks, busy);
        let idle = (step_seconds - mean_busy).max(0.0);
        let bubble = match facts.recipe.parallel.pipeline {
            1 => 0.0,
            _ => (silent - mean_busy).clamp(0.0, idle),
        };
        let parts = Parts {
            compute_seconds: mean_of(&ranks, |rank| rank.compute_seconds),
            exposed_communication_seconds: idle - bubble,
            waiting_for_rank_seconds: 0.0,
            bubble_seconds: bubble,
            data_seconds: 0.0,
            checkpoint_seconds: 0.0,
            optimizer_seconds: mean_of(&ranks, |rank| rank.optimizer_seconds),
        };
        let waits = |rank: &RankTime| RankTime {
            exposed_communication_seconds: (step_seconds - busy(rank)).max(0.0),
            ..*rank
        };
        let ranks = ranks.iter().map(waits).collect();
        Some(Self { step_seconds, is_calibrated, parts, ranks })
    }
}
