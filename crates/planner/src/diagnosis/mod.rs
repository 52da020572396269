//! Diagnosis of a run: where its time went, why, what it would take with one thing changed, and
//! which setting to try first.
//!
//! Facts go in, a diagnosis comes out; nothing here reads a file or a clock. Times of a step are
//! medians, so that single disturbances of a shared machine decide nothing.
//!
//! # Layout
//! - [`facts`]: what is known about a run; [`measured_step`]: its median step
//! - `replay`: the step program with measured durations; [`what_if`]: replays with a change
//! - [`mod@planned_step`]: the step program in time, as planned; [`planned_parts`]: its parts
//! - [`slow_steps`]: steps slower than the median, and the last rank of traced steps
//! - [`memory_part`]: memory by part
//! - [`slow_rank`]: ranks slower than others with as much work
//! - [`parts`]: parts of the step; [`causes`]: causes and their thresholds
//! - [`health`]: numeric health; [`noise_scale`]: gradient noise scale
//! - [`symptoms`]: known symptoms with their causes and remedies
//! - [`next_setting`]: the setting to try first; `statistics`: medians

pub mod causes;
pub mod facts;
pub mod health;
pub mod measured_step;
pub mod memory_part;
pub mod next_setting;
pub mod noise_scale;
pub mod parts;
pub mod planned_parts;
pub mod planned_step;
mod replay;
pub mod slow_rank;
pub mod slow_steps;
mod statistics;
pub mod symptoms;
pub mod what_if;

pub use causes::{Cause, Verdict};
pub use facts::{
    AlgorithmFacts, CheckpointFacts, CompressionFacts, FailureFacts, FailureKind, LinkFacts,
    NoiseFacts, RankFacts, RoundFacts, RunFacts, ServerFacts, StepFacts, TaskFacts, TracedRank,
    TracedStep,
};
pub use health::Health;
pub use measured_step::RankTime;
pub use memory_part::MemoryPart;
pub use next_setting::Next;
pub use parts::Parts;
pub use planned_parts::PlannedParts;
pub use planned_step::{PlannedRank, PlannedSpan, PlannedStep, planned_step};
pub use slow_steps::SlowStep;
pub use symptoms::Symptom;
pub use what_if::WhatIf;

use crate::calibration::machine::Machine;
use causes::Findings;
use measured_step::MeasuredStep;
use replay::StepReplay;
use serde::Serialize;
use slow_rank::SlowRank;
use what_if::WhatIfs;

/// Gain below which a change of layout is not worth a try: replays differ from runs by some
/// percent.
pub const LEAST_GAIN: f64 = 0.05;

/// Diagnosis of a run. The names of the fields are stable: scripts read them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Main cause of the step time.
    pub verdict: Verdict,
    /// Rank at fault, if it is one.
    pub culprit_rank: Option<usize>,
    /// Measurements behind the verdict, each a sentence.
    pub evidence: Vec<String>,
    /// Number of completed steps.
    pub steps: u64,
    /// Median step, without checkpoints and evaluations.
    pub step_seconds: f64,
    /// Step time that was predicted before the run.
    pub predicted_step_seconds: Option<f64>,
    /// Peak memory of the largest process.
    pub peak_bytes: Option<u64>,
    /// Forecast of it.
    pub predicted_peak_bytes: Option<u64>,
    /// Parts of the step in the mean over ranks.
    pub parts: Parts,
    /// Memory of the fullest rank by part, beside the plan.
    pub memory: Vec<MemoryPart>,
    /// Bytes that rank 0 sends in a step, by axis and algorithm.
    pub bytes_by_algorithm: Vec<AlgorithmFacts>,
    /// Parts of the step by rank.
    pub ranks: Vec<RankTime>,
    /// Both as planned; null where the strategy has no program that all ranks run together.
    pub plan: Option<PlannedParts>,
    /// Steps that took longer than the median, the slowest first, with what they waited for.
    pub slow_steps: Vec<SlowStep>,
    /// Times of every rank in each traced step; empty without a trace.
    pub traced_steps: Vec<TracedStep>,
    /// Traced steps in which each rank ended its passes last; empty without a trace.
    pub last_rank_counts: Vec<usize>,
    /// All causes, the largest first.
    pub causes: Vec<Cause>,
    /// Step times with one thing changed.
    pub what_if: Vec<WhatIf>,
    /// Setting to try first.
    pub next: Next,
    /// Gradient noise scale in sequences; null without measurements.
    pub noise_scale: Option<f64>,
    /// Batch in sequences above which a larger one saves hardly any steps.
    pub critical_batch: Option<u64>,
    /// Numeric health.
    pub health: Health,
    /// Known symptoms of the run.
    pub symptoms: Vec<Symptom>,
}

/// Diagnoses a run; `machine` is the calibration of the machine that it ran on. `None` for a run
/// without steps.
pub fn diagnose(facts: &RunFacts, machine: Option<&Machine>) -> Option<Diagnosis> {
    let measured = MeasuredStep::of(facts)?;
    let slow = SlowRank::of(facts);
    let replay = StepReplay::of(facts, &measured);
    let replay = replay.as_ref();
    let what_ifs = WhatIfs { facts, measured: &measured, replay, slow, machine };
    let what_if = what_ifs.all();
    let is_pipeline = facts.recipe.parallel.pipeline > 1;
    let parts = Parts::of(&measured, replay, slow, is_pipeline);
    let findings = Findings {
        facts,
        measured: &measured,
        parts: &parts,
        replay,
        slow,
        what_if: &what_if,
        machine,
    };
    let causes = findings.causes();
    let health = Health::of(facts);
    let next = next_setting::choose(&findings, &what_ifs, &causes[0], &health);
    let noise_scale = noise_scale::noise_scale(&facts.noise);
    let symptoms = symptoms::symptoms(&findings, &causes, &health, noise_scale);
    Some(Diagnosis {
        verdict: causes[0].verdict,
        culprit_rank: causes[0].culprit_rank,
        evidence: causes[0].evidence.clone(),
        steps: facts.steps.last().map_or(0, |step| step.step),
        step_seconds: measured.seconds,
        predicted_step_seconds: facts.predicted_step_seconds,
        peak_bytes: facts.peak_bytes.map(|[measured, _]| measured),
        predicted_peak_bytes: facts.peak_bytes.map(|[_, predicted]| predicted),
        memory: memory_part::memory_parts(facts),
        bytes_by_algorithm: facts.bytes_by_algorithm.clone(),
        parts,
        ranks: measured.ranks.clone(),
        plan: PlannedParts::of(facts, machine),
        slow_steps: slow_steps::slow_steps(facts, measured.seconds),
        traced_steps: facts.traced.clone(),
        last_rank_counts: slow_steps::last_rank_counts(facts),
        causes,
        what_if,
        next,
        noise_scale,
        critical_batch: noise_scale.map(|scale| scale.ceil().max(1.0) as u64),
        health,
        symptoms,
    })
}

#[cfg(test)]
mod tests;
