//! The plan of a sweep from its arguments: every run is resolved and checked before the first one
//! starts.

use super::Arguments;
use crate::failure::Failure;
use crate::prediction;
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_planner::memory::Process;
use lockstep_platform::World;
use lockstep_sweep::halving::{Rung, rungs};
use lockstep_sweep::plan::{
    Plan, Problems, Run, max_jobs_in_memory, parallel_bytes, share_of_steps,
};
use lockstep_sweep::search_space::{self, Axis, Choice};
use std::collections::BTreeSet;

/// Keys that the sweep sets itself.
const OWN_KEYS: &[(&str, &str)] = &[
    ("run.dir", "every run has its own folder under --out"),
    ("checkpoint.dir", "every run keeps checkpoints in its own folder"),
];

/// Plans the sweep of the arguments, or reports every error in them.
pub(super) fn plan(arguments: &Arguments, world: &World) -> Result<Plan, Failure> {
    let (keys, choices) = choices(arguments)?;
    let run = |(index, values)| Run::unresolved(format!("{:04}", index + 1), values, Vec::new());
    plan_runs(arguments, world, keys, choices.into_iter().enumerate().map(run).collect())
}

/// Plans these runs.
pub(super) fn plan_runs(
    arguments: &Arguments,
    world: &World,
    keys: Vec<String>,
    mut runs: Vec<Run>,
) -> Result<Plan, Failure> {
    let process = prediction::measure_process(world);
    let mut recipes = resolve(arguments, world, &keys, &runs)?;
    let most_workers = recipes.iter().map(|recipe| recipe.run.workers).max().unwrap_or(1);
    let cores = world.threads().available();
    let jobs = arguments.jobs.unwrap_or_else(|| (cores / most_workers).max(1));
    let at_a_time = jobs.min(recipes.len()).max(1);
    let mut threads = Vec::new();
    for (run, recipe) in runs.iter_mut().zip(&mut recipes) {
        let share = (cores / (at_a_time * recipe.run.workers)).max(1);
        threads.push((recipe.run.threads == 0).then_some(share));
        recipe.run.threads = recipe.run.num_threads(share, 1);
        (run.steps, run.recipe_hash) = (recipe.train.steps, recipe.hash());
    }
    let eta = arguments.halving.unwrap_or(1);
    let rungs = rungs(runs.len(), eta, runs[0].steps);
    let seconds = costs(&recipes, &rungs, at_a_time, world, process)?;
    let is_text = recipes.iter().all(|recipe| !recipe.model.family.is_problem());
    let by = arguments.by;
    Ok(Plan { keys, runs, rungs, by, eta, jobs, threads, is_text, seconds })
}

/// The keys and the combinations of their values.
fn choices(arguments: &Arguments) -> Result<(Vec<String>, Vec<Choice>), Failure> {
    let parsed: Vec<_> = arguments.over.iter().map(|text| Axis::parse(text)).collect();
    let mut wrong: Vec<String> = parsed.iter().filter_map(|axis| axis.clone().err()).collect();
    let axes: Vec<Axis> = parsed.into_iter().flatten().collect();
    let mut keys = Vec::new();
    for axis in &axes {
        if keys.contains(&axis.key) {
            wrong.push(format!("--over {} is repeated; give all its values once", axis.key));
        }
        if let Some((key, why)) = OWN_KEYS.iter().find(|(key, _)| *key == axis.key) {
            wrong.push(format!("--over {key} is not possible: {why}; drop it"));
        }
        if arguments.halving.is_some() && axis.key == "train.steps" {
            let fix = "set it with --set train.steps=N";
            wrong.push(format!("--over train.steps is not possible with --halving; {fix}"));
        }
        keys.push(axis.key.clone());
    }
    if arguments.halving.is_some_and(|eta| eta < 2) {
        wrong.push("--halving N keeps one run in N, at least 2; try 3".to_owned());
    }
    if arguments.jobs == Some(0) {
        wrong.push("--jobs 0 runs nothing; try 1".to_owned());
    }
    if wrong.is_empty() {
        let choices = match arguments.random {
            Some(count) => search_space::random(&axes, count, arguments.seed),
            None => search_space::grid(&axes),
        };
        match choices {
            Ok(choices) => return Ok((keys, choices)),
            Err(error) => wrong.push(error),
        }
    }
    Err(Failure::user(wrong.join("\n")))
}

/// The recipe of each run, or every error in them.
fn resolve(
    arguments: &Arguments,
    world: &World,
    keys: &[String],
    runs: &[Run],
) -> Result<Vec<Recipe>, Failure> {
    let mut recipes = Vec::new();
    let mut problems = Problems::default();
    // A corpus is opened once, however many runs train on it.
    let mut checked = BTreeSet::new();
    for run in runs {
        let sets = run.sets(keys);
        match arguments.recipe.with(&sets).resolve(world) {
            Err(failure) => problems.add(failure.text(), &sets),
            Ok(recipe) => {
                let dir = &recipe.checkpoint.dir;
                if !dir.is_empty() {
                    let rule = "would be shared by all runs; drop it";
                    problems.add(&format!("checkpoint.dir = \"{dir}\" {rule}"), &sets);
                }
                if let Err(line) = arguments.by.check(&recipe) {
                    problems.add(&line, &sets);
                }
                let Recipe { data, model, optim, .. } = &recipe;
                if checked.insert(format!("{data:?}{model:?}{:?}", optim.groups))
                    && let Err(error) = lockstep_trainer::check_inputs(&recipe, world)
                {
                    problems.add(&error.to_string(), &sets);
                }
                recipes.push(recipe);
            }
        }
    }
    match problems.render(runs.len()) {
        Some(text) => Err(Failure::user(text)),
        None => Ok(recipes),
    }
}

/// Refuses runs that do not fit in memory, alone or in parallel; predicts the seconds of the sweep.
fn costs(
    recipes: &[Recipe],
    rungs: &[Rung],
    jobs: usize,
    world: &World,
    process: Process,
) -> Result<Option<f64>, Failure> {
    let mut wrong = BTreeSet::new();
    let (mut peaks, mut work) = (Vec::new(), Some(0.0));
    for recipe in recipes {
        match prediction::predict(recipe, world, process) {
            Err(failure) => drop(wrong.insert(failure.text().to_owned())),
            Ok(forecast) => {
                peaks.push(forecast.peak_by_rank().iter().map(|peak| peak.0).sum::<u64>());
                // More threads than cores share them.
                let busy = jobs * recipe.run.workers * recipe.run.threads;
                let sharing = (busy as f64 / world.threads().available() as f64).max(1.0);
                let whole = recipe.train.steps as f64 * sharing / jobs as f64;
                work = work.zip(forecast.step_seconds()).map(|(w, step)| w + whole * step.0);
            }
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::user(wrong.into_iter().collect::<Vec<_>>().join("\n")));
    }
    peaks.sort_unstable_by(|a, b| b.cmp(a));
    check_memory(&peaks, jobs, world.host().memory_bytes())?;
    Ok(work.map(|seconds| seconds * share_of_steps(rungs)))
}

/// Refuses more parallel runs than memory holds; `peaks` are in descending order.
fn check_memory(peaks: &[u64], jobs: usize, memory: u64) -> Result<(), Failure> {
    let needed = parallel_bytes(peaks, jobs);
    if needed <= memory {
        return Ok(());
    }
    let fewer = max_jobs_in_memory(peaks, jobs, memory);
    let (needed, memory) = (Bytes(needed), Bytes(memory));
    let rule = format!("--jobs {jobs} needs {needed} of memory at a time, the host has {memory}");
    Err(Failure::user(format!("{rule}; try --jobs {fewer}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_runs_that_exceed_memory_are_refused_with_a_number_that_fits() {
        assert!(check_memory(&[5, 4, 3], 2, 9).is_ok());
        let error = check_memory(&[5 << 30, 4 << 30, 3 << 30], 3, 9 << 30).expect_err("12 > 9");
        let expected =
            "--jobs 3 needs 12 GiB of memory at a time, the host has 9 GiB; try --jobs 2";
        assert_eq!(error.text(), expected);
    }
}
