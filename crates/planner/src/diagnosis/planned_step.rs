//! The step program of every rank in time, as planned: passes take their share of the computation
//! by model FLOPs, calls and messages their prices at the links of the run.
//!
//! The computation is what the calibrated machine would need, or else what the usual rank needs in
//! the measured median step, each for the work of its stage. So a plan shows the order and the
//! overlap that were intended, to compare with the spans that were measured.

use super::facts::RunFacts;
use super::measured_step::{MeasuredStep, RankTime};
use super::replay::{Scales, StepReplay};
use super::slow_rank::work_by_rank;
use super::statistics::median_of;
use crate::calibration::machine::Machine;
use crate::forecast::step_time;
use crate::traffic::Interconnect;
use serde::Serialize;
use std::collections::BTreeMap;

/// A step as planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedStep {
    /// Step time.
    pub seconds: f64,
    /// Whether the calibrated machine gives the computation; otherwise the usual rank does.
    pub is_calibrated: bool,
    /// Ranks.
    pub ranks: Vec<PlannedRank>,
}

/// A rank of a step as planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedRank {
    /// Rank.
    pub rank: usize,
    /// Tasks that take time, by queue.
    pub queues: BTreeMap<String, Vec<PlannedSpan>>,
}

/// Task in time: start and duration in seconds, and its action.
pub type PlannedSpan = (f64, f64, String);

/// Programs of a step with planned durations.
pub(super) struct Plan {
    pub(super) replay: StepReplay,
    /// Times of the ranks' own work.
    pub(super) ranks: Vec<RankTime>,
    pub(super) is_calibrated: bool,
}

impl Plan {
    /// `None` where ranks have no program that they run together, or where there is neither a
    /// calibrated machine nor a step.
    pub(super) fn of(facts: &RunFacts, machine: Option<&Machine>) -> Option<Self> {
        let recipe = &facts.recipe;
        let work = work_by_rank(recipe);
        let calibrated = step_time(recipe, &Interconnect::of_recipe(recipe), machine);
        let (compute, optimizer) = if let Some(step) = calibrated {
            (step.compute.0 * (1.0 - step.bubble), step.update.0)
        } else {
            let ranks = MeasuredStep::of(facts)?.ranks;
            let pace = |rank: &RankTime| rank.compute_seconds / work.get(rank.rank).unwrap_or(&1.0);
            let mut paces: Vec<f64> = ranks.iter().map(pace).collect();
            paces.sort_by(f64::total_cmp);
            // The lower median: of two ranks the slow one is not the usual one.
            let usual = paces.get(paces.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
            (usual, median_of(&ranks, |rank| rank.optimizer_seconds))
        };
        let of_rank = |(rank, work): (usize, &f64)| RankTime {
            rank,
            compute_seconds: compute * work,
            optimizer_seconds: optimizer,
            data_seconds: 0.0,
            exposed_communication_seconds: 0.0,
            waiting_for_rank_seconds: 0.0,
        };
        let ranks: Vec<RankTime> = work.iter().enumerate().map(of_rank).collect();
        let replay = StepReplay::build(facts, recipe, &ranks, false)?;
        Some(Self { replay, ranks, is_calibrated: calibrated.is_some() })
    }
}

/// Plays the step of a run; `None` where it has no plan.
pub fn planned_step(facts: &RunFacts, machine: Option<&Machine>) -> Option<PlannedStep> {
    let Plan { replay, is_calibrated, .. } = Plan::of(facts, machine)?;
    let played = replay.play(Scales::MEASURED);
    let ranks = replay.programs().iter().zip(&played.ranks).map(|(program, play)| {
        let mut queues: BTreeMap<String, Vec<PlannedSpan>> = BTreeMap::new();
        for ((_, task), span) in program.iter().zip(&play.tasks) {
            let (start, seconds) = (span.start.0, span.seconds().0);
            if seconds > 0.0 {
                let spans = queues.entry(task.queue.to_string()).or_default();
                spans.push((start, seconds, task.op.to_string()));
            }
        }
        PlannedRank { rank: program.rank, queues }
    });
    let ranks = ranks.collect();
    Some(PlannedStep { seconds: played.period.0, is_calibrated, ranks })
}
