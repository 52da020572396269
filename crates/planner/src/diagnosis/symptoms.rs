//! Known symptoms of a run, each with its evidence, its cause and what to do about it.
//!
//! Verdicts say where the time of a step went. Symptoms are wider: wrong numbers, a batch that is
//! too large to pay, checkpoints too often for the failures that occur. Each is one rule that reads
//! the facts and gives evidence, or nothing. A rule that lacks its measurements gives nothing.
//!
//! Routing of experts has no rule: the engine trains none.

use super::causes::{Cause, Findings, UNBALANCED, Verdict};
use super::facts::{FailureKind, RankFacts, RunFacts, StepFacts};
use super::health::{Health, SCALE_SEARCH_STEPS, SPIKE_DEVIATIONS, SPIKE_RISE};
use super::slow_rank::work_by_rank;
use super::statistics::median_of;
use crate::stability;
use lockstep_config::OptimName;
use lockstep_config::interval::young;
use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_parallel::slow_rank::SLOW_FACTOR;
use lockstep_plot::digits;
use serde::Serialize;
use std::ops::Range;

mod variation;

/// Share of exposed communication from which another division into buckets may pay. Below a
/// twentieth of the step the gain is within the error of a replay.
pub const EXPOSED: f64 = 0.05;
/// Share of the probed bandwidth that calls should reach.
pub const BANDWIDTH_REACHED: f64 = 0.8;
/// Share of gradients that fp16 may round to zero. Below it a loss scale has done its work.
pub const ZEROED: f64 = 0.05;
/// Steps on either side of a change of the loss scale whose gradient norms are compared.
const STEPS_AROUND_CHANGE: usize = 4;
/// Relative error within which the gradient norm follows the loss scale: norms of single steps
/// differ by some tens of percent, a loss scale changes by a factor of two.
const FOLLOWS: f64 = 0.3;
/// Growth of the residuals of error feedback in the second half of a run: residuals of a
/// contraction stay bounded (Karimireddy et al. 2019, lemma 3).
pub const RESIDUAL_GROWTH: f64 = 2.0;
/// Fewest compressed exchanges or rounds from which a trend is read.
const FEWEST: usize = 8;
/// Margin over the drift that independent noise explains.
pub const DRIFT_MARGIN: f64 = 1.5;
/// Share of a step in waits for servers from which they limit it.
pub const SERVER_SHARE: f64 = 0.2;
/// Factor between the interval of checkpoints and the best one from which it matters: at three
/// times or a third of it the expected loss is 5/3 of the least.
pub const INTERVAL_FACTOR: f64 = 3.0;
/// Loss of time to checkpoints and repeated steps that is worth a word.
pub const CHECKPOINT_LOSS: f64 = 0.01;
/// Error of a forecast of the step that says that the machine is not the calibrated one.
pub const STEP_ERROR: f64 = 0.15;
/// Error of a forecast of memory.
pub const MEMORY_ERROR: f64 = 0.05;
/// Peak from which memory is forecast well: what a process holds besides differs by some MiB.
const LEAST_PEAK: u64 = 50 << 20;

/// A symptom of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Symptom {
    /// Name for programs, such as `slow_rank`.
    pub name: &'static str,
    /// Measurement that shows it.
    pub evidence: String,
    /// Usual cause.
    pub cause: &'static str,
    /// Remedy.
    pub remedy: &'static str,
    /// Whether a cause of the step time says so as well.
    #[serde(skip)]
    pub is_reported: bool,
}

/// Findings that rules read.
struct Measured<'a> {
    facts: &'a RunFacts,
    findings: &'a Findings<'a>,
    causes: &'a [Cause],
    health: &'a Health,
    noise_scale: Option<f64>,
}

struct Rule {
    name: &'static str,
    check: fn(&Measured<'_>) -> Option<String>,
    cause: &'static str,
    remedy: &'static str,
    /// Causes of the step time that say the same.
    verdicts: &'static [Verdict],
}

/// All rules, in the order of the report.
const RULES: [Rule; 20] = [
    Rule {
        name: "slow_rank",
        check: slow_rank,
        cause: "one rank computes longer while the others wait: heat, other processes, an older \
                device",
        remedy: "look at its host; sync.stragglers=shares gives it less work until then",
        verdicts: &[Verdict::Straggler],
    },
    Rule {
        name: "slow_host",
        check: slow_host,
        cause: "all ranks of a host are slow: its power, its cooling or a neighbour on it",
        remedy: "start the run without this host",
        verdicts: &[],
    },
    Rule {
        name: "exposed_communication",
        check: exposed_communication,
        cause: "gradients are exchanged too late, or in too small or too large buckets",
        remedy: "parallel.overlap=true, and parallel.bucket_bytes=0 for measured buckets",
        verdicts: &[Verdict::Communication, Verdict::Latency],
    },
    Rule {
        name: "slow_tail",
        check: variation::slow_tail,
        cause: "few steps take much longer than the others: other processes, or a link or a disk \
                that is shared",
        remedy: "lockstep explain lists the slowest steps with what they waited for; in a group, \
                 bounded staleness or sync.stragglers wait for fewer ranks",
        verdicts: &[],
    },
    Rule {
        name: "slower_network",
        check: variation::slower_network,
        cause: "calls take longer than early in the run: the network degrades, or other traffic \
                has begun",
        remedy: "lockstep bench comm on the same hosts; look at their links for errors and retries",
        verdicts: &[],
    },
    Rule {
        name: "low_bandwidth",
        check: low_bandwidth,
        cause: "calls are slower than the probed links: other traffic, or an algorithm that does \
                not fit the topology",
        remedy: "lockstep bench comm on the same hosts; parallel.collectives chooses others",
        verdicts: &[],
    },
    Rule {
        name: "non_finite",
        check: non_finite,
        cause: "one rank overflowed, and the reduction spread it to all",
        remedy: "optim.clip, a lower optim.lr, or precision.compute=bf16",
        verdicts: &[],
    },
    Rule {
        name: "fp16_underflow",
        check: fp16_underflow,
        cause: "the loss scale is too low: fp16 rounds small gradients to zero",
        remedy: "a higher precision.loss_scale, or precision.compute=bf16",
        verdicts: &[],
    },
    Rule {
        name: "scaled_gradients",
        check: scaled_gradients,
        cause: "gradients are not divided by the loss scale before the update",
        remedy: "divide them before clipping and the optimizer",
        verdicts: &[],
    },
    Rule {
        name: "asynchronous_oscillation",
        check: asynchronous_oscillation,
        cause: "gradients are too old for the learning rate",
        remedy: "a lower optim.lr or momentum, or a smaller bound of staleness",
        verdicts: &[],
    },
    Rule {
        name: "growing_residuals",
        check: growing_residuals,
        cause: "compression loses more than error feedback returns",
        remedy: "a larger compress.ratio, compress.bits or compress.rank, or compress.warmup_steps",
        verdicts: &[],
    },
    Rule {
        name: "batch_above_critical",
        check: batch_above_critical,
        cause: "the batch is larger than the gradient noise needs",
        remedy: "a smaller train.batch, or a higher learning rate with warm-up",
        verdicts: &[],
    },
    Rule {
        name: "local_steps_drift",
        check: local_steps_drift,
        cause: "workers move apart further than chance explains: their data or speeds differ, or \
                they take too many local steps",
        remedy: "fewer local steps (sync.local_steps), or data that is shuffled over the workers",
        verdicts: &[],
    },
    Rule {
        name: "idle_pipeline",
        check: idle_pipeline,
        cause: "too few micro-batches, or stages of different duration",
        remedy: "smaller micro-batches, equal stages, or another parallel.schedule",
        verdicts: &[Verdict::Bubble],
    },
    Rule {
        name: "out_of_memory",
        check: out_of_memory,
        cause: "activations of all micro-batches in flight, or states that every rank holds",
        remedy: "parallel.recompute=auto, train.microbatch=auto, a higher parallel.zero; lockstep \
                 inspect shows memory by part",
        verdicts: &[],
    },
    Rule {
        name: "saturated_servers",
        check: saturated_servers,
        cause: "servers answer too slowly for the number of workers, or one has most of the load",
        remedy: "more servers (sync.servers), or sync.mode=all-reduce for dense gradients",
        verdicts: &[],
    },
    Rule {
        name: "replicas_differ",
        check: replicas_differ,
        cause: "a fault of memory or a processor: equal replicas have equal bits here",
        remedy: "test the host of that worker; lockstep compare finds the first different step",
        verdicts: &[],
    },
    Rule {
        name: "loss_jump_at_resume",
        check: loss_jump_at_resume,
        cause: "optimizer state, random numbers or the position in the data were not restored",
        remedy: "resume with the recipe of the checkpoint; lockstep compare with the run before",
        verdicts: &[],
    },
    Rule {
        name: "checkpoint_interval",
        check: checkpoint_interval,
        cause: "the interval of checkpoints does not fit the failures of the run",
        remedy: "checkpoint.interval=auto computes it from the measured stall and failures",
        verdicts: &[],
    },
    Rule {
        name: "wrong_forecast",
        check: wrong_forecast,
        cause: "the machine is not as it was calibrated, or other processes use it",
        remedy: "lockstep plan calibrate",
        verdicts: &[],
    },
];

/// Symptoms of a run, in the order of the rules.
pub(super) fn symptoms(
    findings: &Findings<'_>,
    causes: &[Cause],
    health: &Health,
    noise_scale: Option<f64>,
) -> Vec<Symptom> {
    let run = Measured { facts: findings.facts, findings, causes, health, noise_scale };
    let found = RULES.iter().filter_map(|rule| {
        let &Rule { name, check, cause, remedy, verdicts } = rule;
        let is_reported = causes.iter().any(|cause| verdicts.contains(&cause.verdict));
        Some(Symptom { name, evidence: check(&run)?, cause, remedy, is_reported })
    });
    found.collect()
}

/// Evidence of the cause with a verdict.
fn evidence_of(run: &Measured<'_>, verdict: Verdict) -> Option<String> {
    let cause = run.causes.iter().find(|cause| cause.verdict == verdict)?;
    cause.evidence.first().cloned()
}

fn slow_rank(run: &Measured<'_>) -> Option<String> {
    let evidence = evidence_of(run, Verdict::Straggler)?;
    let slow = run.findings.slow.and_then(|slow| *run.facts.throttle_counts.get(slow.rank)?);
    Some(match slow.filter(|count| *count > 0) {
        Some(count) => format!("{evidence}; its host was throttled {count} times"),
        None => evidence,
    })
}

fn slow_host(run: &Measured<'_>) -> Option<String> {
    let RunFacts { ranks, first_rank_on_host: hosts, recipe, .. } = run.facts;
    if hosts.len() != ranks.len() || run.facts.is_accelerated {
        return None;
    }
    let work = work_by_rank(recipe);
    let pace = |(rank, work): (&RankFacts, &f64)| rank.compute[1] / work;
    let paces: Vec<f64> = ranks.iter().zip(&work).map(pace).collect();
    let of_host = |host: usize| {
        let on_host = paces.iter().zip(hosts).filter(move |(_, of)| **of == host);
        on_host.map(|(pace, _)| *pace).collect::<Vec<f64>>()
    };
    let others_of = |host: usize| {
        let elsewhere = paces.iter().zip(hosts).filter(move |(_, of)| **of != host);
        elsewhere.map(|(pace, _)| *pace).collect::<Vec<f64>>()
    };
    let mut names = hosts.clone();
    names.sort_unstable();
    names.dedup();
    let is_slow = |host: &usize| {
        let (own, others) = (of_host(*host), others_of(*host));
        let fastest = own.iter().copied().fold(f64::INFINITY, f64::min);
        let usual = median_of(&others, |pace| *pace);
        (own.len() > 1 && others.len() > 1 && fastest > SLOW_FACTOR * usual)
            .then(|| (*host, own.len(), fastest / usual))
    };
    let (host, num_ranks, factor) = names.iter().find_map(is_slow)?;
    Some(format!(
        "all {num_ranks} ranks on the host of rank {host} compute at least {factor:.2} times as \
         long as the ranks of other hosts"
    ))
}

fn exposed_communication(run: &Measured<'_>) -> Option<String> {
    let exposed = run.findings.parts.exposed_communication_seconds;
    let share = run.findings.share(exposed);
    let is_cause = share >= EXPOSED && run.findings.is_lasting(exposed);
    let bucket = run.facts.bucket_len.filter(|len| *len > 0);
    is_cause.then(|| {
        let buckets =
            bucket.map_or_else(String::new, |len| format!(", buckets of {len} gradients"));
        format!("communication is exposed for {:.1} % of the step{buckets}", 100.0 * share)
    })
}

fn low_bandwidth(run: &Measured<'_>) -> Option<String> {
    let (replay, links) = (run.findings.replay?, run.facts.links?);
    let exposed = run.findings.parts.exposed_communication_seconds;
    let is_exposed = run.findings.share(exposed) >= EXPOSED && run.findings.is_lasting(exposed);
    let reached = 1.0 / replay.factor;
    (is_exposed && replay.factor > 0.0 && reached < BANDWIDTH_REACHED).then(|| {
        format!(
            "calls reach {:.0} % of what the probed links ({}, {}) would allow",
            100.0 * reached,
            Seconds(links.latency),
            BytesPerSecond(links.bandwidth)
        )
    })
}

fn non_finite(run: &Measured<'_>) -> Option<String> {
    let steps = &run.facts.steps;
    let of_loss = steps.iter().find(|step| !step.loss.is_finite());
    if let Some(step) = of_loss {
        return Some(format!("the loss of step {} is not finite, on every rank", step.step));
    }
    let failure = run.facts.failure.as_ref();
    let failure = failure.filter(|failure| failure.kind == FailureKind::Diverged)?;
    Some(failure.reason.clone())
}

fn fp16_underflow(run: &Measured<'_>) -> Option<String> {
    let settled: Vec<&StepFacts> =
        run.facts.steps.iter().filter(|step| step.step > SCALE_SEARCH_STEPS).collect();
    let with_scale: Vec<f64> =
        settled.iter().filter_map(|step| step.loss_scale.and(step.zeroed_fraction)).collect();
    let share = median_of(&with_scale, |share| *share);
    (share > ZEROED).then(|| {
        format!("fp16 rounds {:.0} % of the gradients to zero at the loss scale", 100.0 * share)
    })
}

/// Changes of the loss scale by which the gradient norm changes as well.
fn scaled_gradients(run: &Measured<'_>) -> Option<String> {
    let is_taken = |step: &&StepFacts| !step.is_skipped && step.grad_norm.is_finite();
    let steps: Vec<&StepFacts> = run.facts.steps.iter().filter(is_taken).collect();
    let scales: Vec<f64> = steps.iter().map(|step| step.loss_scale.unwrap_or(0.0)).collect();
    let mut changes = 0;
    let mut followed = 0;
    for at in STEPS_AROUND_CHANGE..steps.len().saturating_sub(STEPS_AROUND_CHANGE - 1) {
        let [before, after] = [at - STEPS_AROUND_CHANGE..at, at..at + STEPS_AROUND_CHANGE];
        let is_level = |range: &Range<usize>| {
            scales[range.clone()]
                .iter()
                .all(|scale| scale.to_bits() == scales[range.start].to_bits())
        };
        let factor = scales[at] / scales[at - 1];
        let is_change = factor.is_finite() && factor > 0.0 && (factor - 1.0).abs() > FOLLOWS;
        if !is_change || !is_level(&before) || !is_level(&after) {
            continue;
        }
        let norm = |range: Range<usize>| median_of(&steps[range], |step| step.grad_norm);
        let ratio = norm(after) / norm(before).max(f64::MIN_POSITIVE);
        changes += 1;
        followed += u32::from((ratio / factor - 1.0).abs() < FOLLOWS);
    }
    (changes >= 2 && followed == changes)
        .then(|| format!("the gradient norm followed all {changes} changes of the loss scale"))
}

fn asynchronous_oscillation(run: &Measured<'_>) -> Option<String> {
    let mut counts: Vec<(u64, u64)> = run.facts.staleness.values().flatten().copied().collect();
    counts.sort_unstable();
    let all: u64 = counts.iter().map(|(_, count)| count).sum();
    let mut before = 0;
    let reaches = |(_, count): &&(u64, u64)| {
        before += count;
        before as f64 >= 0.99 * all as f64
    };
    let stale = counts.iter().find(reaches)?.0;
    let is_unstable = run.health.diverged || run.health.loss_spikes.len() > 2;
    if stale == 0 || !is_unstable {
        return None;
    }
    let optim = &run.facts.recipe.optim;
    let momentum = if optim.name == OptimName::Sgd { 0.0 } else { optim.momentum };
    let delay = u32::try_from(stale).ok()?;
    let factor = stability::limit(0, momentum) / stability::limit(delay, momentum);
    Some(format!(
        "the loss is unstable, and a hundredth of the gradients miss {stale} or more updates, with \
         which descent diverges at a learning rate {factor:.1} times lower than without"
    ))
}

/// Medians of the second and of the last quarter of a series.
pub(super) fn quarters<T>(items: &[T], number: impl Fn(&T) -> f64 + Copy) -> [f64; 2] {
    let quarter = items.len() / 4;
    [&items[quarter..2 * quarter], &items[items.len() - quarter..]]
        .map(|items| median_of(items, number))
}

fn growing_residuals(run: &Measured<'_>) -> Option<String> {
    let exchanges = &run.facts.compression;
    if exchanges.len() < FEWEST {
        return None;
    }
    let [before, after] = quarters(exchanges, |at| at.residual_norm);
    let delta = median_of(exchanges, |at| at.delta);
    (before > 0.0 && after > RESIDUAL_GROWTH * before).then(|| {
        format!(
            "residuals grew from {} to {}; an exchange loses {:.0} % of the squared norm",
            digits(before),
            digits(after),
            100.0 * delta
        )
    })
}

fn batch_above_critical(run: &Measured<'_>) -> Option<String> {
    let scale = run.noise_scale?;
    let batch = run.facts.recipe.train.batch;
    (batch as f64 > scale.max(1.0)).then(|| {
        format!(
            "a batch of {batch} sequences, where the measured noise scale is {scale:.1}: more \
             sequences hardly save steps"
        )
    })
}

/// Independent noise of equal workers moves each of `n` as far from their average as the average
/// itself times `n - 1`, in squares: the average has a `1/n` of the variance of each.
fn local_steps_drift(run: &Measured<'_>) -> Option<String> {
    let rounds = &run.facts.rounds;
    if rounds.len() < FEWEST {
        return None;
    }
    let ratio = |round: &super::RoundFacts| {
        let explained = round.num_averaged.saturating_sub(1).max(1) as f64;
        round.drift / (explained * round.update_norm_squared)
    };
    let [before, after] = quarters(rounds, ratio);
    (after > DRIFT_MARGIN && after > before).then(|| {
        format!(
            "the squared distance of workers from their average is {after:.1} times what \
             independent noise explains, {before:.1} times early in the run"
        )
    })
}

fn idle_pipeline(run: &Measured<'_>) -> Option<String> {
    evidence_of(run, Verdict::Bubble)
}

fn out_of_memory(run: &Measured<'_>) -> Option<String> {
    let failure = run.facts.failure.as_ref()?;
    // No message of a killed process says why; the log of its kernel does.
    let is_killed = failure.reason.contains("SIGKILL");
    match failure.kind {
        FailureKind::OutOfMemory => Some(failure.reason.clone()),
        FailureKind::Other if is_killed => Some(format!(
            "{}, as the kernel does when memory runs out (see dmesg on its host)",
            failure.reason
        )),
        _ => None,
    }
}

fn saturated_servers(run: &Measured<'_>) -> Option<String> {
    let servers = run.facts.servers.as_ref()?;
    let waits = run.findings.parts.exposed_communication_seconds;
    let share = run.findings.share(waits);
    if share < SERVER_SHARE || !run.findings.is_lasting(waits) {
        return None;
    }
    let [pull, push] = [servers.pull, servers.push]
        .map(|[half, most]| format!("{} in the median and up to {}", Seconds(half), Seconds(most)));
    let mut evidence = format!(
        "workers wait {:.0} % of the step for servers: a pull takes {pull}, a push {push}",
        100.0 * share
    );
    let load = &servers.load_by_server;
    let mean = load.iter().sum::<u64>() as f64 / load.len().max(1) as f64;
    let most = load.iter().enumerate().max_by_key(|(_, load)| **load);
    if let Some((server, most)) = most.filter(|(_, most)| **most as f64 > UNBALANCED * mean) {
        let factor = *most as f64 / mean;
        evidence = format!("{evidence}; server {server} has {factor:.1} times the mean load");
    }
    Some(evidence)
}

fn replicas_differ(run: &Measured<'_>) -> Option<String> {
    let failure = run.facts.failure.as_ref()?;
    (failure.kind == FailureKind::ReplicasDiffer).then(|| failure.reason.clone())
}

fn loss_jump_at_resume(run: &Measured<'_>) -> Option<String> {
    let (before, steps) = (&run.facts.losses_before_resume, &run.facts.steps);
    if before.len() < FEWEST || steps.len() < 2 {
        return None;
    }
    let usual = median_of(before, |loss| *loss);
    let deviation = median_of(before, |loss| (loss - usual).abs());
    let first = &steps[..steps.len().min(STEPS_AROUND_CHANGE)];
    let after = median_of(first, |step| step.loss);
    let rise = after - usual;
    let is_jump = rise > SPIKE_DEVIATIONS * deviation && rise > SPIKE_RISE * usual.abs();
    is_jump.then(|| {
        let step = first[0].step;
        format!("the loss was {usual:.3} before the run resumed and {after:.3} from step {step} on")
    })
}

/// Compares the interval with Young's, for the failures that the run had.
fn checkpoint_interval(run: &Measured<'_>) -> Option<String> {
    let RunFacts { checkpoints, steps, restarts, .. } = run.facts;
    if *restarts == 0 || checkpoints.is_empty() || steps.is_empty() {
        return None;
    }
    let stall = median_of(checkpoints, |at| at.stall);
    let run_seconds = run.findings.measured.total() * steps.len() as f64;
    let mtbf = run_seconds / *restarts as f64;
    let interval = run_seconds / checkpoints.len() as f64;
    let best = young(stall, mtbf);
    let loss = |interval: f64| stall / interval + interval / (2.0 * mtbf);
    let factor = (interval / best).max(best / interval);
    (factor > INTERVAL_FACTOR && loss(interval) - loss(best) > CHECKPOINT_LOSS).then(|| {
        format!(
            "a checkpoint every {} with a failure every {}: {} would lose {:.1} % of the time \
             instead of {:.1} %",
            Seconds(interval),
            Seconds(mtbf),
            Seconds(best),
            100.0 * loss(best),
            100.0 * loss(interval)
        )
    })
}

fn wrong_forecast(run: &Measured<'_>) -> Option<String> {
    let measured = run.findings.measured.seconds;
    let step = run.facts.predicted_step_seconds.map(|predicted| predicted / measured - 1.0);
    let peak = run.facts.peak_bytes.filter(|[measured, _]| *measured > LEAST_PEAK);
    let memory = peak.map(|[measured, predicted]| predicted as f64 / measured as f64 - 1.0);
    let of =
        |what: &str, error: f64| format!("the forecast of {what} is {:+.0} % off", 100.0 * error);
    let step = step.filter(|error| error.abs() > STEP_ERROR).map(|error| of("the step", error));
    let memory = memory.filter(|error| error.abs() > MEMORY_ERROR).map(|error| of("memory", error));
    let found: Vec<String> = step.into_iter().chain(memory).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

#[cfg(test)]
mod tests;
