//! Diagnosis of a run folder: its records as facts for `lockstep_planner::diagnosis`.

use crate::calibration_file;
use lockstep_config::{Recipe, Sources, resolve};
use lockstep_planner::diagnosis::{
    CheckpointFacts, Diagnosis, LinkFacts, NoiseFacts, RankFacts, RunFacts, StepFacts, TaskFacts,
    diagnose,
};
use lockstep_platform::World;
use lockstep_telemetry::Event;
use lockstep_trainer::TrainError;
use lockstep_trainer::recorded_run::{RecordedRun, RecordedSummary};
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
        peak_bytes: peak_bytes(summary),
        predicted_step_seconds: summary.predicted_step_seconds,
        flops_per_token: None,
        peak_flops_per_second: None,
        noise: Vec::new(),
        staleness: BTreeMap::new(),
        failure: run.failure.clone().map(|failure| (failure.reason, failure.is_diverged)),
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
            facts.steps.clear();
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
        Event::Staleness { worker, counts, .. } => {
            facts.staleness.insert(*worker, counts.clone());
        }
        // Only rank 0 writes events; the last sample is the farthest from the start.
        Event::TaskSpans { spans, .. } => {
            let task = |(id, action, _, seconds): &(u32, String, f64, f64)| {
                (*id, TaskFacts { action: action.clone(), seconds: *seconds })
            };
            facts.spans.insert(0, spans.iter().map(task).collect());
        }
        _ => {}
    }
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
