//! What a run will cost on this machine, and the file that keeps what the machine was measured at.
//!
//! The process that was typed makes the forecast once its checks have opened the text; workers that
//! it starts are told how much text there is, so that none of them opens it for that only, and only
//! rank 0, which shows the forecast, makes it again.

use crate::failure::Failure;
use crate::workers::Told;
use lockstep_config::units::Bytes;
use lockstep_config::{Recipe, Source};
use lockstep_data::{Cursor, Feed, Seat};
use lockstep_planner::Forecast;
use lockstep_planner::forecast::BucketForecast;
use lockstep_planner::memory::{self, Process, Room, TooLarge};
use lockstep_planner::time::Machine;
use lockstep_planner::time::calibration::VERSION;
use lockstep_planner::traffic::rows;
use lockstep_platform::World;
use lockstep_trainer::{Predicted, PredictedBytes};
use std::path::PathBuf;

impl From<TooLarge> for Failure {
    fn from(error: TooLarge) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}

/// The variable by which rank 0 is told how much text a worker holds.
const TEXT_BYTES: &str = "LOCKSTEP_TEXT_BYTES";

/// The forecast for this machine; refuses what does not fit.
pub(crate) fn of(recipe: &Recipe, world: &World, process: Process) -> Result<Forecast, Failure> {
    Ok(Forecast::of(recipe, room(world, process), machine(world).as_ref().ok())?)
}

/// Refuses what does not fit, which takes no time.
pub(crate) fn fits(recipe: &Recipe, world: &World, process: Process) -> Result<(), Failure> {
    memory::check(recipe, room(world, process))?;
    Ok(())
}

fn room(world: &World, process: Process) -> Room {
    Room { memory: Bytes(world.host().memory_bytes()), process }
}

/// The recipe with the microbatch that suits this machine, where that is asked for. What it follows
/// from is the same for every process of a run.
pub(crate) fn with_microbatch(recipe: Recipe, world: &World) -> Recipe {
    let start = Bytes(64 << 20);
    memory::with_microbatch(recipe, room(world, Process { start, text: Bytes(0) }))
}

/// This process, before it has a model or a text. Ask before anything else is done.
pub(crate) fn process(world: &World) -> Process {
    Process { start: Bytes(world.host().current_rss_bytes()), text: Bytes(0) }
}

/// What a worker's text takes where that is quick to find out: the corpus inside the binary. Others
/// are opened by a run only, since that may take minutes.
pub(crate) fn text_bytes(recipe: &Recipe, world: &World) -> Bytes {
    if recipe.data.source != Source::Bundled {
        return Bytes(0);
    }
    let feed = Feed::open(recipe, world, &Seat::unknown(recipe, 0));
    Bytes(feed.map_or(0, |feed| feed.held_bytes()) as u64)
}

/// The words in which started workers are told how much text there is.
pub(crate) fn told(text: Bytes) -> Told {
    vec![(TEXT_BYTES, text.0.to_string())]
}

/// How much text there is, as the launcher said; another one's workers look for themselves.
pub(crate) fn text_bytes_told(recipe: &Recipe, world: &World) -> Bytes {
    let told = world.host().env(TEXT_BYTES).and_then(|text| text.parse().ok());
    told.map_or_else(|| text_bytes(recipe, world), Bytes)
}

/// What this machine was measured at, or why that is not known.
pub(crate) fn machine(world: &World) -> Result<Machine, Unmeasured> {
    let path = path(world).ok_or(Unmeasured::Never)?;
    if world.files().metadata(&path).is_none() {
        return Err(Unmeasured::Never);
    }
    let unreadable = || Unmeasured::Unreadable { path: path.clone() };
    let text = world.files().read_to_string(&path).map_err(|_| unreadable())?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|_| unreadable())?;
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(VERSION)) {
        return Err(Unmeasured::OtherVersion { path });
    }
    let found: Machine = serde_json::from_value(value).map_err(|_| unreadable())?;
    if !found.is_of(&world.host().name(), world.threads().available()) {
        return Err(Unmeasured::OtherMachine { path, host: found.host, cores: found.cores });
    }
    Ok(found)
}

/// Why nothing can be said about the time of a step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unmeasured {
    /// Nobody has measured this machine.
    Never,
    /// The file is none of ours, or damaged.
    Unreadable {
        path: PathBuf,
    },
    /// What another version of this program measured.
    OtherVersion {
        path: PathBuf,
    },
    OtherMachine {
        path: PathBuf,
        host: String,
        cores: usize,
    },
    /// It was measured, but not in the number format of the recipe.
    OtherFormats {
        asked: &'static str,
        measured: Vec<String>,
    },
    /// Steps of small problems are over before anything could be said about them.
    Problem,
}

/// Why the time of a recipe is not known, with what would help, as the end of a line.
pub(crate) fn why_no_time(recipe: &Recipe, world: &World) -> String {
    if let Some(cause) = recipe.unpriced() {
        return format!("how long {cause} takes is not said");
    }
    let compute = recipe.precision.compute.name();
    let why = match machine(world) {
        _ if recipe.model.family.is_problem() => Unmeasured::Problem,
        Ok(machine) => {
            let measured = machine.formats.into_iter().map(|format| format.compute).collect();
            Unmeasured::OtherFormats { asked: compute, measured }
        }
        Err(why) => why,
    };
    match why {
        Unmeasured::Never => "lockstep plan calibrate lets it say the time too".to_owned(),
        Unmeasured::Unreadable { path } => format!(
            "{} is not a calibration that can be read; lockstep plan calibrate makes a new one",
            path.display()
        ),
        Unmeasured::OtherVersion { path } => format!(
            "{} was made by another version; lockstep plan calibrate lets it say the time again",
            path.display()
        ),
        Unmeasured::OtherMachine { path, host, cores } => format!(
            "{} is of {host} with {cores} cores; lockstep plan calibrate measures this machine",
            path.display()
        ),
        Unmeasured::OtherFormats { asked, mut measured } => {
            let known = measured.join(" and ");
            measured.push(asked.to_owned());
            let all = measured.join(",");
            format!(
                "measured in {known} only; lockstep plan calibrate --formats {all} adds {asked}"
            )
        }
        Unmeasured::Problem => "how long a step takes is not said of small problems".to_owned(),
    }
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

/// How many rows of the embedding each rank touches in each step of a run, where they travel one by
/// one and the text is quick to open; see [`text_bytes`]. A long run is judged by its first steps.
pub(crate) fn rows(recipe: &Recipe, world: &World, forecast: &Forecast) -> Vec<Vec<usize>> {
    const MOST_TOKENS: u64 = 1 << 22;
    if !forecast.has_rows() || recipe.data.source != Source::Bundled {
        return Vec::new();
    }
    let num_steps = recipe.train.steps.min(MOST_TOKENS / recipe.tokens_per_step() as u64).max(1);
    let feed = Feed::open(recipe, world, &Seat::alone(recipe));
    let loader = feed.and_then(|mut feed| feed.loader(world, Cursor::start()));
    let Ok(mut loader) = loader else { return Vec::new() };
    let of_step = |step| {
        let batch = loader.next_batch().ok()?;
        Some(rows::by_rank(recipe, step, |microbatch| batch.microbatch(microbatch).0))
    };
    (0..num_steps).map_while(of_step).collect()
}

/// The figures that a run's summary keeps: none where something is not counted, which a run may
/// learn when it starts.
pub(crate) fn predicted(recipe: &Recipe, forecast: &Forecast) -> Predicted {
    if recipe.uncounted().is_some() {
        return Predicted::default();
    }
    let bytes = |of: &BucketForecast| PredictedBytes {
        bucket_len: of.bucket_len,
        peak_bytes_by_rank: of.peak_by_rank.iter().map(|peak| peak.0).collect(),
        wire_bytes: of.wire_bytes.0,
    };
    Predicted {
        step_seconds: forecast.step_seconds().map(|seconds| seconds.0),
        bytes: forecast.by_bucket_len.iter().map(bytes).collect(),
    }
}

/// One line of it, at the start of a run.
pub(crate) fn line(recipe: &Recipe, world: &World, forecast: &Forecast) -> String {
    let peak = forecast.peak_bytes();
    if let Some(cause) = recipe.uncounted() {
        return format!("forecast: peak at least {peak}; what {cause} adds is not counted\n");
    }
    let moved = match forecast.wire_bytes() {
        Bytes(0) => String::new(),
        bytes if forecast.is_exact() => format!(", {bytes} moved a step"),
        bytes => format!(", about {bytes} moved a step"),
    };
    let time = match (forecast.step_seconds(), forecast.tokens_per_second()) {
        (Some(step), Some(speed)) => format!(", {step} a step, {speed}"),
        _ => format!("; {}", why_no_time(recipe, world)),
    };
    format!("forecast: peak {peak}{moved}{time}\n")
}
