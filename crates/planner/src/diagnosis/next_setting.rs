//! The setting to try first, with its expected gain.
//!
//! Each cause has settings that shorten it; the one with the largest gain in a replay wins. A
//! setting that the recipe's rules refuse is never proposed. Numeric health comes first: a faster
//! step of a diverged run is worth nothing.

use super::causes::{Cause, Findings, Verdict};
use super::health::{Health, OVERFLOW_STORM};
use super::replay::has_small_buckets;
use super::what_if::{WhatIf, WhatIfs, by_gain, changed, microbatch_settings};
use lockstep_config::units::Seconds;
use lockstep_config::{Dtype, PipelineSchedule, Recipe};
use serde::Serialize;

/// Factor of a learning rate that diverged: rates are searched by powers of ten.
const LR_FACTOR: f64 = 0.1;
/// Largest overhead of checkpoints to aim at (Mohan et al. 2021, CheckFreq: 3.5 %).
const CHECKPOINT_OVERHEAD: f64 = 0.035;

/// A setting to try.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Next {
    /// Arguments of `--set`; empty where no recipe key helps.
    pub settings: Vec<String>,
    /// Reason in a sentence.
    pub reason: String,
    /// Share of the step that it is expected to save; null if unknown.
    pub gain: Option<f64>,
    /// Expected duration of a step.
    pub step_seconds: Option<f64>,
}

impl Next {
    fn without_gain(settings: &[String], reason: &str) -> Self {
        let reason = reason.to_owned();
        Self { settings: settings.to_vec(), reason, gain: None, step_seconds: None }
    }

    fn by(what_if: WhatIf, reason: &str) -> Self {
        Self {
            settings: what_if.settings,
            reason: reason.to_owned(),
            gain: Some(what_if.gain),
            step_seconds: Some(what_if.step_seconds),
        }
    }
}

/// Chooses the setting for the first cause.
pub(super) fn choose(
    findings: &Findings<'_>,
    what_ifs: &WhatIfs<'_>,
    cause: &Cause,
    health: &Health,
) -> Next {
    let recipe = &findings.facts.recipe;
    if let Some(next) = for_health(recipe, findings, health) {
        return next;
    }
    match cause.verdict {
        Verdict::Straggler => for_straggler(findings, what_ifs, cause),
        Verdict::Communication | Verdict::Latency => for_communication(findings, what_ifs, cause),
        Verdict::Bubble => for_bubble(what_ifs),
        Verdict::Input => Next {
            settings: Vec::new(),
            reason: "tokenize the corpus once (lockstep data tokenize) and set data.source to the \
                     shards, which training maps; move it to a faster disk, or serve it from \
                     another host (lockstep data-server)"
                .to_owned(),
            gain: Some(cause.share),
            step_seconds: Some(findings.measured.seconds - findings.parts.data_seconds),
        },
        Verdict::Checkpoint => for_checkpoint(findings, cause),
        Verdict::Memory => for_memory(recipe, findings, cause),
        Verdict::Compute => for_compute(findings, what_ifs),
    }
}

/// The first of some settings that the recipe's rules accept.
fn accepted(recipe: &Recipe, settings: &[String]) -> Option<Vec<String>> {
    changed(recipe, settings).map(|_| settings.to_vec())
}

fn for_health(recipe: &Recipe, findings: &Findings<'_>, health: &Health) -> Option<Next> {
    if health.diverged {
        let highest = findings.facts.steps.iter().map(|step| step.lr).fold(0.0, f64::max);
        let lr = if highest > 0.0 { highest } else { recipe.optim.lr };
        // Three digits: a product of decimals has a long tail.
        let lower: f64 = format!("{:.2e}", lr * LR_FACTOR).parse().ok()?;
        let settings = accepted(recipe, &[format!("optim.lr={lower}")])?;
        let reason = "the loss diverged: the learning rate is too high; a tenth of it, or a longer \
                      warm-up (optim.warmup_steps) and clipping (optim.clip)";
        return Some(Next::without_gain(&settings, reason));
    }
    if health.overflow_rate > OVERFLOW_STORM {
        let interval = recipe.precision.loss_scale_interval;
        let longer = 2000.max(interval.saturating_mul(10));
        let longer = [format!("precision.loss_scale_interval={longer}")];
        let settings = accepted(recipe, &longer).unwrap_or_default();
        let gain = Some(health.overflow_rate);
        let reason = "the loss scale grows back too soon, and each overflow wastes a step; \
                      precision.compute = \"bf16\" needs no scale";
        return Some(Next { gain, ..Next::without_gain(&settings, reason) });
    }
    None
}

fn for_straggler(findings: &Findings<'_>, what_ifs: &WhatIfs<'_>, cause: &Cause) -> Next {
    let recipe = &findings.facts.recipe;
    let reason = match cause.culprit_rank {
        Some(rank) => format!(
            "look at the host of rank {rank} first: clocks, temperature, other processes; until \
             then give it fewer leaves"
        ),
        None => "find the slow rank: let the run come to its end, or trace it (telemetry.trace)"
            .to_owned(),
    };
    let settings = accepted(recipe, &["sync.stragglers=shares".to_owned()]);
    let Some(settings) = settings.filter(|_| cause.culprit_rank.is_some()) else {
        let without = what_ifs.no_straggler();
        let gain = without.as_ref().map(|it| it.gain);
        let step_seconds = without.map(|it| it.step_seconds);
        return Next { gain, step_seconds, ..Next::without_gain(&[], &reason) };
    };
    // With shares by speed all ranks are busy for the same time, whole leaves apart.
    let speeds = findings.measured.ranks.iter().map(|rank| 1.0 / rank.compute_seconds.max(1e-12));
    let equal = findings.measured.ranks.len() as f64 / speeds.sum::<f64>();
    let longest =
        findings.measured.ranks.iter().map(|rank| rank.compute_seconds).fold(0.0, f64::max);
    let saved = (longest - equal).max(0.0);
    Next {
        gain: Some(saved / findings.measured.total()),
        step_seconds: Some(findings.measured.seconds - saved),
        ..Next::without_gain(&settings, &reason)
    }
}

fn for_communication(findings: &Findings<'_>, what_ifs: &WhatIfs<'_>, cause: &Cause) -> Next {
    let recipe = &findings.facts.recipe;
    let mut tries: Vec<Vec<String>> = Vec::new();
    let bucket = findings.facts.bucket_len;
    if bucket.is_some_and(|len| has_small_buckets(recipe, len)) {
        tries.push(vec!["parallel.bucket_bytes=0".to_owned()]);
    }
    if !recipe.parallel.overlap {
        tries.push(vec!["parallel.overlap=true".to_owned()]);
    }
    tries.push(vec!["precision.wire=bf16".to_owned()]);
    if recipe.parallel.zero > 1 {
        tries.push(vec!["parallel.zero=1".to_owned()]);
    }
    let candidates = tries.iter().filter_map(|settings| what_ifs.setting(settings, 1.0));
    let reason = match cause.verdict {
        Verdict::Latency => "fewer, larger messages: most of the time is latency",
        _ => "fewer bytes, or more of them behind computation",
    };
    let best = candidates.chain(what_ifs.other_layout()).max_by(by_gain);
    if let Some(best) = best.filter(|best| best.gain > 0.0) {
        return Next::by(best, reason);
    }
    let batch = [format!("train.batch={}", 2 * recipe.train.batch)];
    let settings = accepted(recipe, &batch).unwrap_or_default();
    let reason = "a larger batch exchanges gradients less often per token (it changes the result); \
                  compression and local SGD do too";
    Next::without_gain(&settings, reason)
}

fn for_bubble(what_ifs: &WhatIfs<'_>) -> Next {
    let recipe = &what_ifs.facts.recipe;
    let mut tries: Vec<Vec<String>> = Vec::new();
    if !recipe.parallel.stage_layers.is_empty() {
        tries.push(vec!["parallel.stage_layers=".to_owned()]);
    }
    if recipe.parallel.schedule != PipelineSchedule::ZeroBubble {
        tries.push(vec!["parallel.schedule=zero-bubble".to_owned()]);
    }
    if recipe.parallel.schedule == PipelineSchedule::GPipe {
        tries.push(vec!["parallel.schedule=1f1b".to_owned()]);
    }
    let candidates = tries.iter().filter_map(|settings| what_ifs.setting(settings, 1.0));
    let smaller = what_ifs.other_microbatch();
    let best = candidates.chain(smaller).chain(what_ifs.other_layout()).max_by(by_gain);
    let reason = "stages of equal duration, and more micro-batches for each of them";
    if let Some(best) = best.filter(|best| best.gain > 0.0) {
        return Next::by(best, reason);
    }
    let measured = ["parallel.partition=measured".to_owned()];
    let settings = accepted(recipe, &measured).unwrap_or_default();
    Next::without_gain(&settings, reason)
}

fn for_checkpoint(findings: &Findings<'_>, cause: &Cause) -> Next {
    let recipe = &findings.facts.recipe;
    let total = findings.measured.total();
    let mut settings = Vec::new();
    if !recipe.checkpoint.background {
        settings.push("checkpoint.background=true".to_owned());
    }
    let stall = findings.parts.checkpoint_seconds;
    if recipe.checkpoint.every > 0 {
        let times = stall / (CHECKPOINT_OVERHEAD * findings.measured.seconds);
        let every = (recipe.checkpoint.every as f64 * times).ceil();
        settings.push(format!("checkpoint.every={every}"));
    }
    let rest = CHECKPOINT_OVERHEAD * findings.measured.seconds;
    let gain = ((stall - rest) / total).min(cause.share);
    let reason = format!(
        "checkpoints that stall training for less than {:.1} % of its time; or a faster disk",
        100.0 * CHECKPOINT_OVERHEAD
    );
    let settings = accepted(recipe, &settings).unwrap_or_default();
    let step_seconds = Some(findings.measured.seconds);
    Next { gain: Some(gain), step_seconds, ..Next::without_gain(&settings, &reason) }
}

fn for_memory(recipe: &Recipe, findings: &Findings<'_>, cause: &Cause) -> Next {
    let tries = ["selective", "none"].map(|value| vec![format!("parallel.recompute={value}")]);
    let is_selective = recipe.parallel.recompute == lockstep_config::Recompute::Selective;
    let settings = accepted(recipe, &tries[usize::from(is_selective)]).unwrap_or_default();
    let reason = "keep more activations where memory allows (lockstep inspect shows it), or auto";
    let step_seconds = Some(findings.measured.seconds - cause.share * findings.measured.total());
    Next { gain: Some(cause.share), step_seconds, ..Next::without_gain(&settings, reason) }
}

fn for_compute(findings: &Findings<'_>, what_ifs: &WhatIfs<'_>) -> Next {
    let recipe = &findings.facts.recipe;
    if findings.small_microbatch().is_some() {
        let reason = "larger micro-batches read each weight for more tokens";
        if let Some(best) = what_ifs.other_microbatch().filter(|best| best.gain > 0.0) {
            return Next::by(best, reason);
        }
        let sizes = [8, 4, 2].map(|times| times * recipe.train.microbatch_size);
        let settings = sizes.iter().find_map(|size| microbatch_settings(recipe, *size));
        if let Some(settings) = settings {
            return Next::without_gain(&settings, reason);
        }
    }
    if let Some(best) = what_ifs.other_layout().filter(|best| best.gain > super::LEAST_GAIN) {
        return Next::by(best, "another division of the ranks");
    }
    if recipe.precision.compute == Dtype::F32 {
        let settings = accepted(recipe, &["precision.compute=bf16".to_owned()]).unwrap_or_default();
        let reason = "matrix products in bf16 are faster where the device has them (it changes the \
                      result)";
        return Next::without_gain(&settings, reason);
    }
    let reason = format!(
        "computation takes {} of {}: more or faster devices",
        Seconds(findings.parts.compute_seconds),
        Seconds(findings.measured.seconds)
    );
    Next::without_gain(&[], &reason)
}
