//! The calibration of this machine: the file that `plan calibrate` writes, and why step time is
//! unknown without it.

use lockstep_config::Recipe;
use lockstep_planner::calibration::Machine;
use lockstep_planner::calibration::machine::VERSION;
use lockstep_platform::World;
use lockstep_trainer::device::accelerator;
use std::path::PathBuf;

/// Reads the calibration of this machine, for the device of a recipe.
pub(crate) fn load(recipe: &Recipe, world: &World) -> Result<Machine, Uncalibrated> {
    let accelerator = accelerator(recipe).map_err(|_| Uncalibrated::NoDevice)?;
    let accelerator = accelerator.map(|accelerator| accelerator.name);
    let path = path(world, accelerator.as_deref()).ok_or(Uncalibrated::Missing)?;
    if world.files().metadata(&path).is_none() {
        return Err(Uncalibrated::Missing);
    }
    let unreadable = || Uncalibrated::Unreadable { path: path.clone() };
    let text = world.files().read_to_string(&path).map_err(|_| unreadable())?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|_| unreadable())?;
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(u64::from(VERSION)) {
        return Err(Uncalibrated::OtherVersion { path });
    }
    let found: Machine = serde_json::from_value(value).map_err(|_| unreadable())?;
    if !found.is_of(&world.host().name(), world.threads().available()) {
        return Err(Uncalibrated::OtherMachine { path, host: found.host, cores: found.cores });
    }
    if found.accelerator != accelerator {
        return Err(Uncalibrated::OtherDevice { path, measured: found.kernels });
    }
    Ok(found)
}

/// Why step time cannot be predicted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Uncalibrated {
    /// There is no calibration file.
    Missing,
    /// The device of the recipe is not on this machine.
    NoDevice,
    /// The file is damaged.
    Unreadable { path: PathBuf },
    /// Another version of this program wrote the file.
    OtherVersion { path: PathBuf },
    /// The file is of another machine.
    OtherMachine { path: PathBuf, host: String, cores: usize },
    /// The file is of another device of this machine.
    OtherDevice { path: PathBuf, measured: String },
    /// The number format of the recipe is not calibrated.
    OtherFormats { requested: &'static str, calibrated: Vec<String> },
    /// Steps of small problems are too short to predict.
    SmallProblem,
}

/// Why the step time of a recipe is unknown, with a fix.
pub(crate) fn why_no_step_time(recipe: &Recipe, world: &World) -> String {
    if let Some(cause) = recipe.unmodelled_traffic() {
        return format!("step time of {cause} is not modelled");
    }
    let compute = recipe.precision.compute.name();
    let why = match load(recipe, world) {
        _ if recipe.model.family.is_problem() => Uncalibrated::SmallProblem,
        Ok(machine) => {
            let calibrated = machine.formats.into_iter().map(|format| format.compute).collect();
            Uncalibrated::OtherFormats { requested: compute, calibrated }
        }
        Err(why) => why,
    };
    match why {
        Uncalibrated::Missing => "lockstep plan calibrate adds the step time".to_owned(),
        Uncalibrated::NoDevice => format!(
            "lockstep plan calibrate --device {} adds the step time, on a machine with that device",
            recipe.run.device
        ),
        Uncalibrated::Unreadable { path } => format!(
            "{} is not a readable calibration; lockstep plan calibrate writes a new one",
            path.display()
        ),
        Uncalibrated::OtherVersion { path } => format!(
            "{} is of another version; lockstep plan calibrate writes a new one",
            path.display()
        ),
        Uncalibrated::OtherMachine { path, host, cores } => format!(
            "{} is of {host} with {cores} cores; lockstep plan calibrate measures this machine",
            path.display()
        ),
        Uncalibrated::OtherDevice { path, measured } => format!(
            "{} is of {measured}; lockstep plan calibrate --device {} measures this device",
            path.display(),
            recipe.run.device
        ),
        Uncalibrated::OtherFormats { requested, mut calibrated } => {
            let known = calibrated.join(" and ");
            calibrated.push(requested.to_owned());
            let all = calibrated.join(",");
            format!(
                "calibrated in {known} only; lockstep plan calibrate --formats {all} adds \
                 {requested}"
            )
        }
        Uncalibrated::SmallProblem => "step time of small problems is not modelled".to_owned(),
    }
}

/// Path of the calibration: LOCKSTEP_CALIBRATION, or one by device in the user's cache folder.
pub(crate) fn path(world: &World, accelerator: Option<&str>) -> Option<PathBuf> {
    let env = |name: &str| world.host().env(name).filter(|value| !value.is_empty());
    if let Some(path) = env("LOCKSTEP_CALIBRATION") {
        return Some(PathBuf::from(path));
    }
    let cache = env("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(env("HOME")?).join(".cache")))?;
    let name = match accelerator {
        Some(name) => {
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            format!("calibration-{}.json", name.chars().map(plain).collect::<String>())
        }
        None => "calibration.json".to_owned(),
    };
    Some(cache.join("lockstep").join(name))
}
