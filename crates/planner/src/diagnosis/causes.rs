//! Causes of a slow step, each with its share of the step and the evidence.
//!
//! A cause must show in the median step and above a threshold; noise of a shared machine does
//! neither for long. The cause with the largest share is the verdict.

use super::facts::RunFacts;
use super::measured_step::MeasuredStep;
use super::parts::Parts;
use super::replay::StepReplay;
use super::slow_rank::{SlowRank, work_by_rank};
use super::statistics::median_of;
use super::what_if::{WhatIf, changed, microbatch_settings};
use crate::calibration::machine::Machine;
use crate::time::{engine, recomputed_shares};
use crate::traffic::Interconnect;
use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_config::{Dtype, Recipe, Recompute};
use lockstep_parallel::from_recipe::blueprint_of;
use lockstep_parallel::slow_rank::TIME_SLICE;
use lockstep_parallel::stages;
use lockstep_plot::digits;
use serde::Serialize;
use std::fmt;

/// Slowdown by a slow rank from which on it is a cause: Lin et al. 2025 ("Understanding Stragglers
/// in Large Model Training Using What-if Analysis", section 4) call a job straggling from 1.1 on.
pub const STRAGGLING: f64 = 1.1;
/// Share of exposed communication: on shared cores the exchange of a healthy run takes up to a
/// tenth of its step, since a rank that has to wait is preempted.
pub const EXPOSED_SHARE: f64 = 0.15;
/// Share of the bubble: 1F1B with four micro-batches a stage has (p-1)/(m+p-1) < 1/5, which Huang
/// et al. 2019 (GPipe, section 2.3) call negligible.
pub const BUBBLE_SHARE: f64 = 0.2;
/// Share of waits for data: the loader prepares a batch ahead, so that any lasting wait means that
/// it is slower than the step; a tenth is worth a word.
pub const DATA_SHARE: f64 = 0.1;
/// Share of stalls for checkpoints: Mohan et al. 2021 (CheckFreq) bound the overhead by 3.5 %, and
/// a short run has few checkpoints to average over.
pub const CHECKPOINT_SHARE: f64 = 0.05;
/// Share of recomputation, which trades time for memory (Chen et al. 2016): of full recomputation,
/// a quarter of the passes.
pub const RECOMPUTED_SHARE: f64 = 0.1;
/// Times that the longest stage takes over the mean from which on stages are unbalanced.
pub const UNBALANCED: f64 = 1.2;
/// Time of a token over that in the largest calibrated micro-batch from which on small ones are the
/// cause: below it the gain is within the error of a calibration.
pub const SLOW_TOKEN: f64 = 1.2;
/// Times that the micro-batch grows for that comparison.
const LARGER_MICROBATCH: usize = 8;
/// FLOPs that a device does in the time in which it reads a byte of its memory (the ridge of the
/// roofline, Williams et al. 2009): 25 for cores (two do some 350 GFLOP/s and read some 14 GB/s),
/// 300 for an accelerator (an H100: 990 TFLOP/s over 3.35 TB/s).
pub const RIDGE: [f64; 2] = [25.0, 300.0];

/// Main cause of a run's step time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Computation: nothing else takes a notable share.
    Compute,
    /// Bytes on the links.
    Communication,
    /// Number of calls times their latency.
    Latency,
    /// A rank that others wait for.
    Straggler,
    /// Idle pipeline stages.
    Bubble,
    /// Waiting for data.
    Input,
    /// Stalls for checkpoints.
    Checkpoint,
    /// Recomputation, which saves memory.
    Memory,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Latency => "latency",
            Self::Straggler => "straggler",
            Self::Bubble => "bubble",
            Self::Input => "input",
            Self::Checkpoint => "checkpoint",
            Self::Memory => "memory",
        })
    }
}

/// A cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cause {
    /// Kind.
    pub verdict: Verdict,
    /// Share of the step, with its part of the checkpoints, that the cause takes.
    pub share: f64,
    /// Rank at fault, if it is one.
    pub culprit_rank: Option<usize>,
    /// Measurements that show it, each a sentence.
    pub evidence: Vec<String>,
}

/// Measurements from which causes follow.
pub(super) struct Findings<'a> {
    pub(super) facts: &'a RunFacts,
    pub(super) measured: &'a MeasuredStep,
    pub(super) parts: &'a Parts,
    pub(super) replay: Option<&'a StepReplay>,
    pub(super) slow: Option<SlowRank>,
    pub(super) what_if: &'a [WhatIf],
    pub(super) machine: Option<&'a Machine>,
}

impl Findings<'_> {
    /// All causes, the largest first; computation where there is no other.
    pub(super) fn causes(&self) -> Vec<Cause> {
        let found = [
            self.straggler(),
            self.communication(),
            self.bubble(),
            self.input(),
            self.checkpoint(),
            self.memory(),
        ];
        let mut causes: Vec<Cause> = found.into_iter().flatten().collect();
        causes.sort_by(|a, b| b.share.total_cmp(&a.share));
        if causes.is_empty() {
            causes.push(self.compute());
        }
        causes
    }

    pub(super) fn share(&self, seconds: f64) -> f64 {
        let total = self.measured.total();
        if total > 0.0 { seconds / total } else { 0.0 }
    }

    /// Whether a time per step is longer than chance makes it on shared cores.
    pub(super) fn is_lasting(&self, seconds: f64) -> bool {
        self.facts.is_accelerated || seconds > TIME_SLICE
    }

    fn straggler(&self) -> Option<Cause> {
        let Some(slow) = self.slow else { return self.unknown_straggler() };
        let without = self.what_if.iter().find(|it| it.name == "no_straggler");
        let own = self.measured.ranks[slow.rank].compute_seconds;
        let excess = own * (1.0 - 1.0 / slow.factor);
        let share = without.map_or(self.share(excess), |without| without.gain);
        let waits = self.measured.ranks.iter().map(|rank| rank.waiting_for_rank_seconds);
        let wait = waits.fold(0.0, f64::max);
        let evidence = vec![
            format!(
                "rank {} takes {} for its passes, {} times as long as the usual rank for equal \
                 work, in three quarters of the steps",
                slow.rank,
                Seconds(own),
                digits(slow.factor)
            ),
            format!("the others wait up to {} per step for it", Seconds(wait)),
        ];
        let culprit_rank = Some(slow.rank);
        let is_cause = share >= 1.0 - 1.0 / STRAGGLING;
        is_cause.then_some(Cause { verdict: Verdict::Straggler, share, culprit_rank, evidence })
    }

    /// Waits of rank 0 for others, in a run that did not record its ranks.
    fn unknown_straggler(&self) -> Option<Cause> {
        let is_unknown = self.facts.ranks.is_empty() && self.facts.recipe.run.workers > 1;
        let mut waits: Vec<f64> = self.facts.steps.iter().map(|step| step.waiting).collect();
        waits.sort_by(f64::total_cmp);
        let quartile = waits.get(waits.len() / 4).copied().unwrap_or(0.0);
        let share = self.share(self.parts.waiting_for_rank_seconds);
        let is_cause = self.share(quartile) >= 1.0 - 1.0 / STRAGGLING && self.is_lasting(quartile);
        (is_unknown && is_cause).then(|| Cause {
            verdict: Verdict::Straggler,
            share,
            culprit_rank: None,
            evidence: vec![format!(
                "rank 0 waits {} per step for another rank; the run ended without a summary that \
                 would name it",
                Seconds(self.parts.waiting_for_rank_seconds)
            )],
        })
    }

    fn communication(&self) -> Option<Cause> {
        let exposed = self.parts.exposed_communication_seconds;
        let share = self.share(exposed);
        if share < EXPOSED_SHARE || !self.is_lasting(exposed) {
            return None;
        }
        let mut evidence = vec![format!(
            "ranks wait {} of {} for calls and messages that computation does not hide",
            Seconds(exposed),
            Seconds(self.measured.seconds)
        )];
        let mut verdict = Verdict::Communication;
        if let Some(replay) = self.replay {
            let latency = replay.latency_share();
            if latency > 0.5 {
                verdict = Verdict::Latency;
            }
            evidence.push(format!(
                "{} calls and messages of rank 0 per step, whose time is {:.0} % latency and \
                 {:.0} % transfer at the speed of the links",
                replay.num_calls(0),
                100.0 * latency,
                100.0 * (1.0 - latency)
            ));
        }
        if let Some(links) = self.facts.links {
            evidence.push(format!(
                "the slowest link has a latency of {} and {}",
                Seconds(links.latency),
                BytesPerSecond(links.bandwidth)
            ));
        }
        Some(Cause { verdict, share, culprit_rank: None, evidence })
    }

    fn bubble(&self) -> Option<Cause> {
        let recipe = &self.facts.recipe;
        let share = self.share(self.parts.bubble_seconds);
        if share < BUBBLE_SHARE || recipe.parallel.pipeline == 1 {
            return None;
        }
        let ranks = &self.measured.ranks;
        let mean = self.measured.mean(|rank| rank.compute_seconds);
        let longest =
            ranks.iter().max_by(|a, b| a.compute_seconds.total_cmp(&b.compute_seconds))?;
        let factor = longest.compute_seconds / mean.max(f64::MIN_POSITIVE);
        let mut evidence = vec![format!(
            "pipeline stages are idle for {:.0} % of the step besides waiting for messages",
            100.0 * share
        )];
        let mut culprit_rank = None;
        if factor >= UNBALANCED {
            culprit_rank = Some(longest.rank);
            evidence.push(format!(
                "stages are unbalanced: the passes of rank {} take {}, {factor:.2} times the mean",
                longest.rank,
                Seconds(longest.compute_seconds)
            ));
        } else {
            let work = work_by_rank(recipe).iter().copied().fold(0.0, f64::max);
            evidence.push(format!(
                "{} micro-batches per replica for {} stages; the largest stage has {work:.2} times \
                 the mean FLOPs",
                recipe.num_microbatches() / recipe.parallel.data,
                recipe.parallel.num_stages()
            ));
        }
        Some(Cause { verdict: Verdict::Bubble, share, culprit_rank, evidence })
    }

    fn input(&self) -> Option<Cause> {
        let data = self.parts.data_seconds;
        let share = self.share(data);
        let is_cause = share >= DATA_SHARE && self.is_lasting(data);
        is_cause.then(|| Cause {
            verdict: Verdict::Input,
            share,
            culprit_rank: None,
            evidence: vec![format!(
                "ranks wait {} of {} for the next batch, which the loader prepares during the step",
                Seconds(data),
                Seconds(self.measured.seconds)
            )],
        })
    }

    fn checkpoint(&self) -> Option<Cause> {
        let checkpoints = &self.facts.checkpoints;
        let share = self.share(self.parts.checkpoint_seconds);
        let stall = median_of(checkpoints, |at| at.stall);
        if share < CHECKPOINT_SHARE || !self.is_lasting(stall) {
            return None;
        }
        let write = median_of(checkpoints, |at| at.write);
        let bytes = median_of(checkpoints, |at| at.bytes as f64);
        let evidence = vec![
            format!(
                "training stalled for {} per checkpoint, {} checkpoints in {} steps",
                Seconds(stall),
                checkpoints.len(),
                self.facts.steps.len()
            ),
            format!(
                "a checkpoint takes {} to write, {} on rank 0",
                Seconds(write),
                BytesPerSecond(bytes / write.max(f64::MIN_POSITIVE))
            ),
        ];
        Some(Cause { verdict: Verdict::Checkpoint, share, culprit_rank: None, evidence })
    }

    fn memory(&self) -> Option<Cause> {
        let recipe = &self.facts.recipe;
        if recipe.parallel.recompute == Recompute::None || recipe.model.family.is_problem() {
            return None;
        }
        let whole = blueprint_of(recipe);
        let costs = stages::costs(&whole);
        let repeated = costs.iter().zip(recomputed_shares(recipe, &whole));
        let repeated: f64 = repeated.map(|(cost, share)| *cost as f64 * share).sum();
        let all = costs.iter().sum::<u64>() as f64 + repeated;
        let share = self.share(self.parts.compute_seconds * repeated / all.max(1.0));
        let (is_cause, setting) = (share >= RECOMPUTED_SHARE, recipe.parallel.recompute);
        is_cause.then(|| Cause {
            verdict: Verdict::Memory,
            share,
            culprit_rank: None,
            evidence: vec![format!(
                "parallel.recompute = \"{setting}\" repeats {:.0} % of the passes' FLOPs to save \
                 activation memory",
                100.0 * repeated / all.max(1.0)
            )],
        })
    }

    fn compute(&self) -> Cause {
        let share = self.share(self.parts.compute_seconds + self.parts.optimizer_seconds);
        let mut evidence = vec![format!(
            "passes and updates take {:.0} % of the step; no other part reaches its threshold",
            100.0 * share
        )];
        if let Some(mfu) = self.mfu() {
            evidence.push(format!("{:.0} % of the machine's peak FLOP/s (MFU)", 100.0 * mfu));
        }
        evidence.extend(self.small_microbatch());
        Cause { verdict: Verdict::Compute, share, culprit_rank: None, evidence }
    }

    /// Model FLOP/s over the peak.
    fn mfu(&self) -> Option<f64> {
        let (flops, peak) = (self.facts.flops_per_token?, self.facts.peak_flops_per_second?);
        let tokens = self.facts.recipe.tokens_per_step() as f64;
        Some(flops * tokens / self.measured.seconds / peak)
    }

    /// Evidence of micro-batches that read every weight for too few tokens: 2 FLOPs per weight and
    /// token, less than the ridge of the device, where a measurement says so as well. That is the
    /// time of a token beside the calibration of larger micro-batches, or else the FLOP/s of the
    /// passes beside the bound of the roofline: passes above it find their weights in a cache.
    pub(super) fn small_microbatch(&self) -> Option<String> {
        let recipe = &self.facts.recipe;
        let tokens = recipe.train.microbatch_size * recipe.model.context;
        let weight_bytes = if recipe.precision.compute == Dtype::F32 { 4.0 } else { 2.0 };
        let intensity = 2.0 * tokens as f64 / weight_bytes;
        let ridge = RIDGE[usize::from(self.facts.is_accelerated)];
        let microbatches = recipe.num_microbatches() / recipe.parallel.data;
        let is_real = !recipe.model.family.is_problem() && recipe.emulate.microbatch.0 == 0.0;
        if intensity >= ridge || microbatches <= 1 || !is_real {
            return None;
        }
        let measured = self.slow_token().or_else(|| self.low_pass_flops(intensity / ridge))?;
        Some(format!(
            "micro-batches are small: {tokens} tokens make {intensity:.0} FLOPs per byte of \
             weights, where the device needs about {ridge:.0} to be busy; a rank runs \
             {microbatches} of them per step; {measured}"
        ))
    }

    /// Compares the time of a token in passes with the calibration of larger micro-batches.
    fn slow_token(&self) -> Option<String> {
        let recipe = &self.facts.recipe;
        let machine = self.machine?.with(recipe.precision.compute)?;
        let larger = (1..=LARGER_MICROBATCH).rev().find_map(|times| {
            let settings = microbatch_settings(recipe, times * recipe.train.microbatch_size)?;
            changed(recipe, &settings)
        })?;
        let predicted = |recipe: &Recipe| {
            engine::mean(recipe, &Interconnect::of_recipe(recipe), &machine).compute.0
        };
        let measured = self.parts.compute_seconds + self.parts.bubble_seconds;
        let [own, best] = [recipe, &larger].map(predicted);
        let is_slow = best > 0.0 && own.min(measured) > SLOW_TOKEN * best;
        let tokens = recipe.tokens_per_step() as f64;
        is_slow.then(|| {
            format!(
                "a token takes {} in passes, and {} in micro-batches of {} by the calibration",
                Seconds(measured / tokens),
                Seconds(best / tokens),
                larger.train.microbatch_size
            )
        })
    }

    /// Compares the FLOP/s of the passes with the bound of the roofline, a share of the peak.
    fn low_pass_flops(&self, bound: f64) -> Option<String> {
        let (flops, peak) = (self.facts.flops_per_token?, self.facts.peak_flops_per_second?);
        let tokens = self.facts.recipe.tokens_per_step() as f64;
        let reached = flops * tokens / self.parts.compute_seconds / peak;
        (reached <= bound).then(|| {
            format!(
                "passes reach {:.0} % of the peak FLOP/s, at most {:.0} % while weights come from \
                 memory",
                100.0 * reached,
                100.0 * bound
            )
        })
    }
}
