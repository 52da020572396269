//! Predicted memory, communication and step time of a recipe on this machine.
//!
//! The launcher predicts once its checks have opened the corpus. It passes the size of the corpus
//! to its workers in the environment, so that none opens it for that alone; rank 0, which prints
//! the prediction, computes it again.

use crate::calibration_file;
use crate::failure::Failure;
use crate::quantity::si_bytes;
use crate::workers::WorkerEnv;
use lockstep_config::units::Bytes;
use lockstep_config::{Isolation, Recipe, Source};
use lockstep_data::{Cursor, DataRank, Feed};
use lockstep_model::problem::sample_bytes;
use lockstep_planner::Forecast;
use lockstep_planner::forecast::BucketForecast;
use lockstep_planner::memory::{self, MemoryBudget, OutOfMemory, Process};
use lockstep_planner::traffic::{ByteRange, embedding_rows};
use lockstep_platform::World;
use lockstep_trainer::device::{Accelerator, accelerator};
use lockstep_trainer::{Predicted, PredictedBytes};

impl From<OutOfMemory> for Failure {
    fn from(error: OutOfMemory) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}

/// Environment variable with the bytes of text that a worker holds.
const TEXT_BYTES: &str = "LOCKSTEP_TEXT_BYTES";

/// Predicts a recipe on this machine; refuses one that does not fit, or whose device is absent.
pub(crate) fn predict(
    recipe: &Recipe,
    world: &World,
    process: Process,
) -> Result<Forecast, Failure> {
    let accelerator = accelerator(recipe)?;
    let room = room(accelerator.as_ref(), world, process);
    let machine = calibration_file::load(recipe, world).ok();
    let forecast = Forecast::of(recipe, room, machine.as_ref());
    Ok(forecast.map_err(|error| on_accelerator(error, accelerator.as_ref()))?)
}

/// Predicts a recipe on this machine, whether or not it fits.
pub(crate) fn predict_unchecked(recipe: &Recipe, world: &World, process: Process) -> Forecast {
    Forecast::unchecked(recipe, process, calibration_file::load(recipe, world).as_ref().ok())
}

/// Refuses a recipe that does not fit in memory, or whose device is absent; takes no time.
pub(crate) fn check_memory(
    recipe: &Recipe,
    world: &World,
    process: Process,
) -> Result<(), Failure> {
    check_memory_on(accelerator(recipe)?.as_ref(), recipe, world, process)
}

/// Refuses a recipe that does not fit in the memory of this accelerator, or else of this machine.
pub(crate) fn check_memory_on(
    accelerator: Option<&Accelerator>,
    recipe: &Recipe,
    world: &World,
    process: Process,
) -> Result<(), Failure> {
    memory::check(recipe, room(accelerator, world, process))
        .map_err(|error| on_accelerator(error, accelerator))?;
    Ok(())
}

/// Memory for the model: that of the accelerator, or of this machine.
pub(crate) fn room(
    accelerator: Option<&Accelerator>,
    world: &World,
    process: Process,
) -> MemoryBudget {
    let memory = accelerator.map_or_else(|| world.host().memory_bytes(), |it| it.memory_bytes);
    MemoryBudget { memory: Bytes(memory), process, is_accelerator: accelerator.is_some() }
}

pub(crate) fn on_accelerator(error: OutOfMemory, accelerator: Option<&Accelerator>) -> OutOfMemory {
    match accelerator {
        Some(accelerator) => error.on(&accelerator.name),
        None => error,
    }
}

/// Whether the model is in the memory of an accelerator, which may be absent here.
pub(crate) fn is_accelerated(recipe: &Recipe) -> bool {
    !matches!(accelerator(recipe), Ok(None))
}

/// Memory of this process before it has a model or a corpus; call it first.
pub(crate) fn measure_process(world: &World) -> Process {
    Process { start: Bytes(world.host().current_rss_bytes()), text: Bytes(0) }
}

/// Bytes of data that a worker holds: samples of a small problem, or text of the bundled corpus.
/// Other corpora are opened by a run only, because that may take minutes.
pub(crate) fn text_bytes(recipe: &Recipe, world: &World) -> Bytes {
    if recipe.model.family.is_problem() {
        return Bytes(sample_bytes(&recipe.model, true) as u64);
    }
    if recipe.data.source != Source::Bundled || recipe.data.mixture.is_on() {
        return Bytes(0);
    }
    let feed = Feed::open(recipe, world, &DataRank::probe(recipe, 0));
    Bytes(feed.map_or(0, |feed| feed.held_bytes()) as u64)
}

/// Environment that passes the bytes of text to workers.
pub(crate) fn text_env(text: Bytes) -> WorkerEnv {
    vec![(TEXT_BYTES, text.0.to_string())]
}

/// Bytes of text from the launcher's environment, or counted under another launcher.
pub(crate) fn text_bytes_from_env(recipe: &Recipe, world: &World) -> Bytes {
    let passed = world.host().env(TEXT_BYTES).and_then(|text| text.parse().ok());
    passed.map_or_else(|| text_bytes(recipe, world), Bytes)
}

/// Embedding rows that each rank updates in each step, where they are sent sparsely and the corpus
/// is bundled. A long run is represented by its first steps, and a very long step is not read.
pub(crate) fn sparse_rows(recipe: &Recipe, world: &World, forecast: &Forecast) -> Vec<Vec<usize>> {
    const MAX_TOKENS: u64 = 1 << 22;
    let num_steps = recipe.train.steps.min(MAX_TOKENS / recipe.tokens_per_step() as u64);
    let is_bundled = recipe.data.source == Source::Bundled && !recipe.data.mixture.is_on();
    if !forecast.has_rows() || !is_bundled || num_steps == 0 {
        return Vec::new();
    }
    let feed = Feed::open(recipe, world, &DataRank::alone(recipe));
    let loader = feed.and_then(|mut feed| feed.loader(world, Cursor::start()));
    let Ok(mut loader) = loader else { return Vec::new() };
    let of_step = |step| {
        let batch = loader.next_batch().ok()?;
        Some(embedding_rows::by_rank(recipe, step, |microbatch| batch.microbatch(microbatch).0))
    };
    (0..num_steps).map_while(of_step).collect()
}

/// Predictions for a run's summary; none where part of the traffic is not modelled.
pub(crate) fn predicted(recipe: &Recipe, forecast: &Forecast) -> Predicted {
    if recipe.unmodelled_traffic().is_some() {
        return Predicted::default();
    }
    let bytes = |of: &BucketForecast| PredictedBytes {
        bucket_len: of.bucket_len,
        peak_bytes_by_rank: of.peak_by_rank.iter().map(|peak| peak.0).collect(),
        device_bytes_by_rank: of.accelerator_by_rank.iter().map(|peak| peak.0).collect(),
        wire_bytes: of.wire_bytes.0,
    };
    Predicted {
        step_seconds: forecast.step_seconds().map(|seconds| seconds.0),
        bytes: forecast.by_bucket_len.iter().map(bytes).collect(),
    }
}

/// The part of the peak that only a run with checkpoints has.
fn checkpoint_note(recipe: &Recipe, forecast: &Forecast) -> String {
    let ranks = &forecast.memory.ranks;
    let copy = match recipe.run.isolation {
        Isolation::Threads => ranks.iter().map(|rank| rank.checkpoint).sum(),
        Isolation::Processes => ranks[forecast.largest_process().0].checkpoint,
    };
    if copy == Bytes(0) { String::new() } else { format!(" ({copy} for checkpoints)") }
}

/// Bytes of the accelerator with the most.
pub(crate) fn device_bytes(forecast: &Forecast) -> Bytes {
    forecast.memory.on_accelerators().into_iter().max().unwrap_or_default()
}

/// One line for the start of a run.
pub(crate) fn render_line(recipe: &Recipe, world: &World, forecast: &Forecast) -> String {
    let (place, peak) = if is_accelerated(recipe) {
        ("device memory", device_bytes(forecast).to_string())
    } else {
        let note = checkpoint_note(recipe, forecast);
        ("peak memory of a process", format!("{}{note}", forecast.peak_bytes()))
    };
    if let Some(cause) = recipe.unmodelled_traffic() {
        return format!("predicted: {place} at least {peak}; {cause} is not modelled\n");
    }
    let sent = match forecast.wire_bytes() {
        Bytes(0) => String::new(),
        Bytes(bytes) if forecast.is_exact() => format!(", {} sent per step", si_bytes(bytes)),
        Bytes(_) => {
            let ByteRange { low, high } = forecast.wire_range();
            format!(", {} to {} sent per step", si_bytes(low.0), si_bytes(high.0))
        }
    };
    let time = match (forecast.step_seconds(), forecast.tokens_per_second()) {
        (Some(step), Some(speed)) => format!(", {step} per step, {speed}"),
        _ => format!("; {}", calibration_file::why_no_step_time(recipe, world)),
    };
    format!("predicted: {place} {peak}{sent}{time}\n")
}
