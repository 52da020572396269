//! Peak FLOP/s of the machine that a run is on, for the run's share of it (MFU).
//!
//! The calibration has it; without one the process that starts a run measures it for some 20 ms
//! before the workers start, and passes it to them in the environment. A run over several hosts, or
//! with emulated speed, has no peak that this machine could know.

use crate::calibration_file;
use crate::quantity::grouped;
use crate::workers::WorkerEnv;
use lockstep_cluster::role::has_launcher;
use lockstep_config::Recipe;
use lockstep_config::units::Seconds;
use lockstep_planner::forecast::step_time;
use lockstep_planner::traffic::Interconnect;
use lockstep_platform::World;
use lockstep_trainer::bench::measure_peak_flops;
use lockstep_trainer::utilization::Utilization;

/// Environment variable with the peak FLOP/s of this machine.
const PEAK_FLOPS: &str = "LOCKSTEP_PEAK_FLOPS";

/// Peak of this machine in the number format of a recipe's matmuls: calibrated, or else measured.
/// Call it in the process that starts the run.
pub(crate) fn find(recipe: &Recipe, world: &World) -> Option<f64> {
    if recipe.emulate.description().is_some() {
        return None;
    }
    calibrated(recipe, world).or_else(|| measure_peak_flops(recipe, world).ok())
}

/// A step that takes longer deserves a word before it starts: until its end there is no progress
/// and no checkpoint.
const LONG_STEP_SECONDS: f64 = 60.0;

/// Share of the peak that a run is assumed to reach where nothing was calibrated. Small models are
/// below it and large ones above: `tiny` trains 143 k tokens/s, 3.2e10 of the 1.5e11 FLOP/s of two
/// AVX-512 cores.
const ASSUMED_MFU: f64 = 0.25;

/// Step time of a recipe by the calibration of this machine, if there is one.
pub(crate) fn calibrated_step(recipe: &Recipe, world: &World) -> Option<Seconds> {
    let machine = calibration_file::load(recipe, world).ok()?;
    let step = step_time(recipe, &Interconnect::of_recipe(recipe), Some(&machine))?;
    Some(step.seconds())
}

/// Warning about steps that take long: by the calibration, or else by the peak of this machine.
pub(crate) fn long_step_warning(
    recipe: &Recipe,
    peak: Option<f64>,
    calibrated: Option<Seconds>,
) -> Option<String> {
    let peak = peak.filter(|peak| *peak > 0.0)?;
    let least = Seconds(Utilization::least_step_seconds(recipe, peak));
    let seconds = calibrated.unwrap_or(least * (1.0 / ASSUMED_MFU));
    (seconds.0 > LONG_STEP_SECONDS).then(|| {
        let (batch, tokens) = (recipe.train.batch, grouped(recipe.tokens_per_step() as f64));
        format!(
            "a step of train.batch = {batch} ({tokens} tokens) takes about {seconds} ({least} at \
             the peak FLOP/s of this machine), and train.steps = {} about {}; lower train.batch or \
             train a smaller model",
            recipe.train.steps,
            seconds * recipe.train.steps as f64
        )
    })
}

/// Environment that passes the peak to workers.
pub(crate) fn to_env(peak: Option<f64>) -> WorkerEnv {
    peak.map(|flops| (PEAK_FLOPS, flops.to_string())).into_iter().collect()
}

/// Peak in a worker: from its launcher, or calibrated where another launcher started all workers on
/// this host.
pub(crate) fn of_worker(recipe: &Recipe, world: &World) -> Option<f64> {
    if has_launcher(world) {
        return world.host().env(PEAK_FLOPS)?.parse().ok();
    }
    let size = |name| world.host().env(name).and_then(|text| text.parse::<usize>().ok());
    let is_one_host =
        size("WORLD_SIZE").is_some() && size("WORLD_SIZE") == size("LOCAL_WORLD_SIZE");
    let is_emulated = recipe.emulate.description().is_some();
    if is_one_host && !is_emulated { calibrated(recipe, world) } else { None }
}

fn calibrated(recipe: &Recipe, world: &World) -> Option<f64> {
    let machine = calibration_file::load(recipe, world).ok()?;
    let compute = recipe.precision.compute.name();
    let format = machine.formats.iter().find(|format| format.compute == compute)?;
    Some(format.peak_flops_per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    #[test]
    fn steps_that_take_longer_than_a_minute_are_reported() {
        let warning = |batch: usize, peak: f64, calibrated: Option<f64>| {
            let sets = vec![format!("train.batch={batch}"), "train.steps=10".to_owned()];
            let sources = Sources { preset: Some("tiny".to_owned()), sets, ..Sources::default() };
            let recipe = resolve(&sources).expect("a sound recipe");
            long_step_warning(&recipe, Some(peak), calibrated.map(Seconds))
        };
        assert_eq!(warning(8, 1e11, None), None);
        // Such a step takes some 230 s on two cores of 1.5e11 FLOP/s together.
        for peak in [1e11, 1.5e11, 4e11] {
            let found = warning(1 << 20, peak, None).expect("a million sequences");
            assert!(found.starts_with("a step of train.batch = 1048576 (33,554,432 "), "{found}");
            assert!(found.contains("train.steps = 10 about "), "{found}");
        }
        assert_eq!(warning(1 << 20, 0.0, None), None, "an unknown peak");
        // A calibration knows better, either way.
        assert_eq!(warning(1 << 20, 1e11, Some(59.0)), None);
        assert!(warning(8, 1e11, Some(61.0)).is_some_and(|it| it.contains("takes about 61")));
    }
}
