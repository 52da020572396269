//! Diagnosis of a run folder: its records as facts for `lockstep_planner::diagnosis`.

use crate::calibration_file;
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_planner::diagnosis::health::WINDOW;
use lockstep_planner::diagnosis::{
    AlgorithmFacts, CheckpointFacts, CompressionFacts, Diagnosis, FailureFacts, FailureKind,
    LinkFacts, NoiseFacts, RankFacts, RoundFacts, RunFacts, StepFacts, TaskFacts, TracedRank,
    TracedStep, diagnose,
};
use lockstep_platform::World;
use lockstep_telemetry::{AlgorithmBytes, Event, MemoryByPart};
use lockstep_trainer::TrainError;
use lockstep_trainer::failure_record::{FailureKind as Kind, RecordedFailure};
use lockstep_trainer::recorded_run::{RecordedRun, RecordedSummary, TracedTimes};
use std::collections::BTreeMap;
use std::path::Path;

/// Steps of a long run that are read: its last ones, up to twice as many.
const MAX_STEPS: usize = 1 << 16;

/// Diagnoses a run; `None` if it has no finished step.
pub(crate) fn diagnose_run(
    run: &RecordedRun,
    world: &World,
) -> Result<Option<Diagnosis>, TrainError> {
    let machine = calibration_file::load(&run.recipe, world).ok();
    Ok(diagnose(&facts_of(run, world)?, machine.as_ref()))
}

/// The verdict of the run in a folder as one line; `None` if it cannot be read.
pub(crate) fn verdict_line(folder: &Path, world: &World) -> Option<String> {
    let run = RecordedRun::read(folder, world).ok()?;
    let diagnosis = diagnose_run(&run, world).ok()??;
    let cause = diagnosis.causes.first()?;
    let rank = diagnosis.culprit_rank.map_or_else(String::new, |rank| format!(", rank {rank}"));
    let health = diagnosis.health.warnings.first().map_or_else(String::new, |it| format!("; {it}"));
    let (verdict, share) = (cause.verdict, 100.0 * cause.share);
    let folder = folder.display();
    Some(format!("{verdict}{rank} ({share:.0} % of the step){health}; lockstep explain {folder}"))
}

/// Facts of a run.
pub(crate) fn facts_of(run: &RecordedRun, world: &World) -> Result<RunFacts, TrainError> {
    let none = RecordedSummary::default();
    let summary = run.summary.as_ref().unwrap_or(&none);
    let mut facts = RunFacts {
        recipe: run.recipe.clone(),
        is_accelerated: false,
        cores: Some(world.threads().available()),
        steps: Vec::new(),
        ranks: ranks_of(summary),
        checkpoints: Vec::new(),
        validation: BTreeMap::new(),
        links: None,
        bucket_len: summary.bucket_len,
        spans: BTreeMap::new(),
        traced: traced_steps(run),
        peak_bytes: peak_bytes(summary),
        predicted_step_seconds: summary.predicted_step_seconds,
        flops_per_token: None,
        peak_flops_per_second: None,
        noise: Vec::new(),
        staleness: BTreeMap::new(),
        compression: Vec::new(),
        rounds: Vec::new(),
        servers: None,
        first_rank_on_host: Vec::new(),
        throttle_counts: Vec::new(),
        memory_by_rank: Vec::new(),
        bytes_by_algorithm: Vec::new(),
        restarts: 0,
        losses_before_resume: Vec::new(),
        failure: run.failure.clone().map(failure_of),
    };
    run.visit_events(world, |event| add_event(&mut facts, event))?;
    for (rank, tasks) in &run.tasks {
        let task = |(id, (action, seconds)): (&u32, &(String, f64))| {
            (*id, TaskFacts { action: action.clone(), seconds: *seconds })
        };
        facts.spans.insert(*rank, tasks.iter().map(task).collect());
    }
    Ok(facts)
}

/// Times of the ranks in the steps that the trace has.
fn traced_steps(run: &RecordedRun) -> Vec<TracedStep> {
    let of_rank = |(rank, times): (&usize, &TracedTimes)| TracedRank {
        rank: *rank,
        seconds: times.step,
        compute_seconds: times.compute,
        communication_seconds: times.communication,
        optimizer_seconds: times.optimizer,
        data_seconds: times.data,
        waiting_for_rank_seconds: times.waiting,
        passes_end_seconds: times.passes_end,
    };
    let of_step = |(step, ranks): (&u64, &BTreeMap<usize, TracedTimes>)| TracedStep {
        step: *step,
        ranks: ranks.iter().map(of_rank).collect(),
    };
    run.traced.iter().map(of_step).collect()
}

fn add_event(facts: &mut RunFacts, event: &Event) {
    match event {
        Event::RunStarted {
            device,
            microbatch,
            recompute,
            flops_per_token,
            peak_flops_per_second,
            ..
        } => {
            // Earlier events are of another attempt, or of the run that this one resumes.
            let last = facts.steps.len().saturating_sub(WINDOW);
            facts.losses_before_resume = facts.steps[last..].iter().map(|step| step.loss).collect();
            facts.steps.clear();
            facts.compression.clear();
            facts.rounds.clear();
            facts.checkpoints.clear();
            facts.noise.clear();
            facts.spans.clear();
            facts.is_accelerated = device.as_ref().is_some_and(|device| device != "cpu");
            facts.flops_per_token = *flops_per_token;
            facts.peak_flops_per_second = *peak_flops_per_second;
            let chosen = with_choices(&facts.recipe, *microbatch, recompute.as_deref());
            facts.recipe = chosen.unwrap_or_else(|| facts.recipe.clone());
        }
        Event::Step { .. } => {
            facts.steps.extend(step_of(event));
            if facts.steps.len() == 2 * MAX_STEPS {
                facts.steps.drain(..MAX_STEPS);
            }
        }
        Event::CheckpointSaved { stall_seconds, write_seconds, bytes, .. } => {
            let (stall, write, bytes) = (*stall_seconds, *write_seconds, *bytes);
            facts.checkpoints.push(CheckpointFacts { stall, write, bytes });
        }
        Event::Evaluated { step, validation_loss, .. } => {
            facts.validation.insert(*step, *validation_loss);
        }
        Event::LinksMeasured { latency_seconds, bytes_per_second, port_bytes_per_second } => {
            facts.links = Some(LinkFacts {
                latency: *latency_seconds,
                bandwidth: *bytes_per_second,
                port: *port_bytes_per_second,
            });
        }
        Event::GradientNoise {
            small_batch,
            large_batch,
            small_norm_squared,
            large_norm_squared,
            ..
        } => facts.noise.push(NoiseFacts {
            small_batch: *small_batch,
            large_batch: *large_batch,
            small_norm_squared: *small_norm_squared,
            large_norm_squared: *large_norm_squared,
        }),
        Event::RankCounters { .. } => add_rank(facts, event),
        Event::AlgorithmBytes { step, bytes } => {
            let first = facts.steps.first().map_or(0, |first| first.step - 1);
            let num_steps = step.saturating_sub(first).max(1) as f64;
            let of_algorithm = |sent: &AlgorithmBytes| AlgorithmFacts {
                axis: sent.axis.clone(),
                algorithm: sent.algorithm.clone(),
                bytes_per_step: sent.bytes as f64 / num_steps,
            };
            facts.bytes_by_algorithm = bytes.iter().map(of_algorithm).collect();
        }
        // Only rank 0 writes events; the last sample is the farthest from the start.
        Event::TaskSpans { spans, .. } => {
            let task = |(id, action, _, seconds): &(u32, String, f64, f64)| {
                (*id, TaskFacts { action: action.clone(), seconds: *seconds })
            };
            facts.spans.insert(0, spans.iter().map(task).collect());
        }
        _ => add_strategy_event(facts, event),
    }
}

/// Events of sync strategies other than the all-reduce, and of compression.
fn add_strategy_event(facts: &mut RunFacts, event: &Event) {
    match event {
        Event::Staleness { worker, counts, .. } => {
            facts.staleness.insert(*worker, counts.clone());
        }
        &Event::Compressed { step, delta, residual_norm, .. } => {
            facts.compression.push(CompressionFacts { step, delta, residual_norm });
        }
        &Event::RoundFinished { step, drift, update_norm_squared, .. } => {
            let num_averaged = facts.recipe.run.workers;
            facts.rounds.push(RoundFacts { step, num_averaged, drift, update_norm_squared });
        }
        &Event::Aggregated { step, counted, drift, update_norm_squared, .. } => {
            let num_averaged = counted;
            facts.rounds.push(RoundFacts { step, num_averaged, drift, update_norm_squared });
        }
        Event::ServersJoined { params_by_server, .. } => {
            let servers = facts.servers.get_or_insert_default();
            servers.load_by_server.clone_from(params_by_server);
        }
        Event::SparseRows { bytes_by_server, .. } => {
            let servers = facts.servers.get_or_insert_default();
            servers.load_by_server.clone_from(bytes_by_server);
        }
        &Event::ServerRequests {
            pull_p50_seconds,
            pull_p99_seconds,
            push_p50_seconds,
            push_p99_seconds,
            ..
        } => {
            let servers = facts.servers.get_or_insert_default();
            servers.pull = [pull_p50_seconds, pull_p99_seconds];
            servers.push = [push_p50_seconds, push_p99_seconds];
        }
        _ => {}
    }
}

/// Counters of a rank, at the last evaluation.
fn add_rank(facts: &mut RunFacts, event: &Event) {
    let &Event::RankCounters {
        worker, restarts, first_rank_on_host, throttle_count, memory, ..
    } = event
    else {
        return;
    };
    facts.restarts = restarts;
    // Ranks come in order, each time all of them.
    if worker == 0 {
        facts.first_rank_on_host.clear();
        facts.throttle_counts.clear();
        facts.memory_by_rank.clear();
    }
    facts.first_rank_on_host.extend(first_rank_on_host);
    facts.throttle_counts.push(throttle_count);
    facts.memory_by_rank.extend(memory.map(|held| {
        let MemoryByPart { weights, gradients, optimizer, activations, buffers } = held;
        [weights, gradients, optimizer, activations, buffers]
    }));
}

fn failure_of(failure: RecordedFailure) -> FailureFacts {
    let RecordedFailure { reason, kind } = failure;
    let kind = match kind {
        Some(Kind::Diverged) => FailureKind::Diverged,
        Some(Kind::ReplicasDiffer) => FailureKind::ReplicasDiffer,
        Some(Kind::OutOfMemory) => FailureKind::OutOfMemory,
        None => FailureKind::Other,
    };
    FailureFacts { reason, kind }
}

fn step_of(event: &Event) -> Option<StepFacts> {
    let &Event::Step {
        step,
        loss,
        lr,
        grad_norm,
        step_seconds,
        data_wait_seconds,
        exposed_communication_seconds,
        straggler_wait_seconds,
        is_skipped,
        loss_scale,
        zeroed_fraction,
        ..
    } = event
    else {
        return None;
    };
    Some(StepFacts {
        step,
        loss,
        lr,
        grad_norm,
        seconds: step_seconds,
        data: data_wait_seconds,
        exposed: exposed_communication_seconds,
        waiting: straggler_wait_seconds,
        is_skipped,
        has_overflowed: is_skipped && loss_scale.is_some() && loss.is_finite(),
        loss_scale,
        zeroed_fraction,
    })
}

/// Ranks of a summary; none where a figure is missing.
fn ranks_of(summary: &RecordedSummary) -> Vec<RankFacts> {
    let rank = |(index, compute): (usize, &[Option<f64>; 3])| {
        let of = |figures: &[Option<f64>]| figures.get(index).copied().flatten();
        Some(RankFacts {
            compute: [compute[0]?, compute[1]?, compute[2]?],
            data: of(&summary.data_wait_seconds_by_rank)?,
            exposed: of(&summary.exposed_communication_seconds_by_rank)?,
            waiting: of(&summary.straggler_wait_seconds_by_rank)?,
        })
    };
    let ranks = summary.compute_quartile_seconds_by_rank.iter().enumerate().map(rank);
    ranks.collect::<Option<Vec<_>>>().unwrap_or_default()
}

/// Measured and predicted peak, of the accelerator where there is one.
fn peak_bytes(summary: &RecordedSummary) -> Option<[u64; 2]> {
    let device = summary.device_bytes.zip(summary.predicted_device_bytes);
    let process = summary.peak_rss_bytes.zip(summary.predicted_peak_bytes);
    device.or(process).map(|(measured, predicted)| [measured, predicted])
}

/// A recipe with what `auto` chose.
fn with_choices(
    recipe: &Recipe,
    microbatch: Option<usize>,
    recompute: Option<&str>,
) -> Option<Recipe> {
    let mut sets = Vec::new();
    if let Some(size) = microbatch.filter(|size| *size != recipe.train.microbatch_size) {
        sets.push(format!("train.microbatch={size}"));
    }
    let chosen = recompute.filter(|chosen| *chosen != recipe.parallel.recompute.to_string());
    sets.extend(chosen.map(|chosen| format!("parallel.recompute={chosen}")));
    if sets.is_empty() {
        return None;
    }
    let file = Some(("recipe".to_owned(), recipe.to_toml()));
    resolve(&Sources { file, sets, ..Sources::default() }).ok()
}
