//! What a run will cost on this machine, and the file that keeps what the machine was measured at.

use crate::failure::Failure;
use lockstep_config::units::Bytes;
use lockstep_config::{Recipe, Source};
use lockstep_data::{Feed, Seat};
use lockstep_planner::Forecast;
use lockstep_planner::forecast::BucketForecast;
use lockstep_planner::memory::{Room, TooLarge};
use lockstep_planner::time::Calibration;
use lockstep_platform::World;
use lockstep_trainer::{Predicted, PredictedBytes};
use std::path::PathBuf;

impl From<TooLarge> for Failure {
    fn from(error: TooLarge) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}

/// The forecast for this machine; refuses what does not fit.
pub(crate) fn of(recipe: &Recipe, world: &World) -> Result<Forecast, Failure> {
    Ok(Forecast::of(recipe, room(recipe, world), calibration(world).as_ref())?)
}

/// What this machine has, and what a process like this one takes before it has a model.
fn room(recipe: &Recipe, world: &World) -> Room {
    let host = world.host();
    let process = Bytes(host.current_rss_bytes()) + text_bytes(recipe, world);
    Room { memory: Bytes(host.memory_bytes()), process }
}

/// What the text takes where that is quick to find out: the corpus inside the binary. Others are
/// opened by the workers only, since that may take minutes.
fn text_bytes(recipe: &Recipe, world: &World) -> Bytes {
    if recipe.data.source != Source::Bundled {
        return Bytes(0);
    }
    let feed = Feed::open(recipe, world, &Seat::unknown(recipe, 0));
    Bytes(feed.map_or(0, |feed| feed.held_bytes()) as u64)
}

/// What this machine was measured at, if it was.
pub(crate) fn calibration(world: &World) -> Option<Calibration> {
    let text = world.files().read_to_string(&path(world)?).ok()?;
    let found: Calibration = serde_json::from_str(&text).ok()?;
    found.is_of(&world.host().name(), world.threads().available()).then_some(found)
}

/// Where that is kept: in the user's folder for things that can be made again.
pub(crate) fn path(world: &World) -> Option<PathBuf> {
    let env = |name: &str| world.host().env(name).filter(|value| !value.is_empty());
    if let Some(path) = env("LOCKSTEP_CALIBRATION") {
        return Some(PathBuf::from(path));
    }
    let cache = env("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env("HOME")?).join(".cache")))?;
    Some(cache.join("lockstep").join("calibration.json"))
}

/// The figures that a run's summary keeps.
pub(crate) fn predicted(forecast: &Forecast) -> Predicted {
    let bytes = |of: &BucketForecast| PredictedBytes {
        bucket_len: of.bucket_len,
        peak_bytes: of.peak_bytes.0,
        wire_bytes: of.wire_bytes.0,
    };
    Predicted {
        step_seconds: forecast.step_seconds().map(|seconds| seconds.0),
        bytes: forecast.by_bucket_len.iter().map(bytes).collect(),
    }
}

/// One line of it, at the start of a run.
pub(crate) fn line(forecast: &Forecast) -> String {
    let peak = forecast.peak_bytes;
    let moved = match forecast.wire_bytes() {
        Bytes(0) => String::new(),
        bytes if forecast.calls.is_exact => format!(", {bytes} moved a step"),
        bytes => format!(", about {bytes} moved a step"),
    };
    let time = match (forecast.step_seconds(), forecast.tokens_per_second()) {
        (Some(step), Some(speed)) => format!(", {step} a step, {speed}"),
        _ => "; lockstep plan calibrate lets it say the time too".to_owned(),
    };
    format!("forecast: peak {peak}{moved}{time}\n")
}
