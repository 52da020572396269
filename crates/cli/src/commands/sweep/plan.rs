//! What a sweep will do, proven before anything of it runs.
//!
//! Every combination is resolved like the recipe of a run; what is wrong with some of them is told
//! in one line each, with how many of them it concerns.

use super::Arguments;
use super::figure::Figure;
use super::halving::{Rung, rungs};
use super::space::{self, Axis, Choice};
use crate::failure::Failure;
use crate::forecast;
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_planner::memory::Process;
use lockstep_platform::World;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Keys that belong to the sweep.
const OWN: &[(&str, &str)] = &[
    ("run.dir", "every run has a folder of its own under --out"),
    ("checkpoint.dir", "every run keeps checkpoints in its own folder"),
];

/// See the module's text.
pub(super) struct Plan {
    /// The keys that differ.
    pub(super) keys: Vec<String>,
    pub(super) runs: Vec<Run>,
    pub(super) rungs: Vec<Rung>,
    pub(super) by: Figure,
    pub(super) eta: u64,
    /// How many runs there are at a time.
    pub(super) jobs: usize,
    /// Compute threads of each worker of each run, where the recipe leaves them open: several runs
    /// share the machine, and results do not depend on that.
    pub(super) threads: Vec<Option<usize>>,
    pub(super) is_text: bool,
    /// How long it will take, if that can be told.
    pub(super) seconds: Option<Seconds>,
}

/// One configuration. What identifies it: the same values of the same recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Its name, which is that of its folder.
    pub(super) name: String,
    /// The value of each key.
    pub(super) values: Choice,
    /// What else is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) also: Vec<String>,
    /// Steps of a whole run.
    pub(super) steps: u64,
    /// Of the part of the recipe that determines the result.
    pub(super) recipe_hash: String,
}

impl Run {
    /// `key=value` for each key, and for what else is set.
    pub(super) fn sets(&self, keys: &[String]) -> Vec<String> {
        let pairs = keys.iter().zip(&self.values);
        let also = self.also.iter().cloned();
        pairs.map(|(key, value)| format!("{key}={value}")).chain(also).collect()
    }

    /// One that is not proven yet.
    pub(super) fn asked(name: String, values: Choice, also: Vec<String>) -> Self {
        Self { name, values, also, steps: 0, recipe_hash: String::new() }
    }
}

impl Plan {
    /// Proves what was asked for; all that is wrong comes at once.
    pub(super) fn prove(arguments: &Arguments, world: &World) -> Result<Self, Failure> {
        let (keys, choices) = choices(arguments)?;
        let named = |(index, values)| Run::asked(format!("{:04}", index + 1), values, Vec::new());
        Self::of(arguments, world, keys, choices.into_iter().enumerate().map(named).collect())
    }

    /// Proves these runs.
    pub(super) fn of(
        arguments: &Arguments,
        world: &World,
        keys: Vec<String>,
        mut runs: Vec<Run>,
    ) -> Result<Self, Failure> {
        let process = forecast::process(world);
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
        Ok(Self { keys, runs, rungs, by, eta, jobs, threads, is_text, seconds })
    }
}

/// The keys and the combinations of their values.
fn choices(arguments: &Arguments) -> Result<(Vec<String>, Vec<Choice>), Failure> {
    let parsed: Vec<_> = arguments.over.iter().map(|text| Axis::parse(text)).collect();
    let mut wrong: Vec<String> = parsed.iter().filter_map(|axis| axis.clone().err()).collect();
    let axes: Vec<Axis> = parsed.into_iter().flatten().collect();
    let mut keys = Vec::new();
    for axis in &axes {
        if keys.contains(&axis.key) {
            wrong.push(format!("--over {} is there twice; put all values into one", axis.key));
        }
        if let Some((key, why)) = OWN.iter().find(|(key, _)| *key == axis.key) {
            wrong.push(format!("--over {key} cannot be: {why}; leave it away"));
        }
        if arguments.halving.is_some() && axis.key == "train.steps" {
            let fix = "set it with --set train.steps=N";
            wrong.push(format!("--over train.steps cannot be with --halving; {fix}"));
        }
        keys.push(axis.key.clone());
    }
    if arguments.halving.is_some_and(|eta| eta < 2) {
        wrong.push("--halving keeps one run in N, of 2 or more; try 3".to_owned());
    }
    if arguments.jobs == Some(0) {
        wrong.push("--jobs 0 would run nothing; try 1".to_owned());
    }
    if wrong.is_empty() {
        let choices = match arguments.random {
            Some(count) => space::random(&axes, count, arguments.seed),
            None => space::grid(&axes),
        };
        match choices {
            Ok(choices) => return Ok((keys, choices)),
            Err(error) => wrong.push(error),
        }
    }
    Err(Failure::user(wrong.join("\n")))
}

/// The recipe of each combination, or everything that is wrong with any of them.
fn resolve(
    arguments: &Arguments,
    world: &World,
    keys: &[String],
    runs: &[Run],
) -> Result<Vec<Recipe>, Failure> {
    let mut recipes = Vec::new();
    let mut wrong = Complaints::default();
    // Texts are opened once, however many runs read them.
    let mut seen = BTreeSet::new();
    for run in runs {
        let sets = run.sets(keys);
        match arguments.recipe.with(&sets).resolve(world) {
            Err(failure) => wrong.add(failure.text(), &sets),
            Ok(recipe) => {
                let dir = &recipe.checkpoint.dir;
                if !dir.is_empty() {
                    let rule = "would be shared by all runs; leave it away";
                    wrong.add(&format!("checkpoint.dir = \"{dir}\" {rule}"), &sets);
                }
                if let Err(line) = arguments.by.check(&recipe) {
                    wrong.add(&line, &sets);
                }
                let Recipe { data, model, optim, .. } = &recipe;
                if seen.insert(format!("{data:?}{model:?}{:?}", optim.groups))
                    && let Err(error) = lockstep_trainer::check_inputs(&recipe, world)
                {
                    wrong.add(&error.to_string(), &sets);
                }
                recipes.push(recipe);
            }
        }
    }
    wrong.end(runs.len())?;
    Ok(recipes)
}

/// Lines, each once, with the first combination that has it and how many do.
#[derive(Default)]
struct Complaints {
    lines: Vec<String>,
    found: BTreeMap<String, (String, usize)>,
}

impl Complaints {
    fn add(&mut self, text: &str, sets: &[String]) {
        for line in text.lines() {
            if !self.found.contains_key(line) {
                self.lines.push(line.to_owned());
            }
            self.found.entry(line.to_owned()).or_insert((sets.join(" "), 0)).1 += 1;
        }
    }

    fn end(&self, num_runs: usize) -> Result<(), Failure> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let told = |line: &String| match &self.found[line] {
            (_, count) if *count == num_runs => line.clone(),
            (first, 1) => format!("{line} (the run with {first})"),
            (first, count) => format!("{line} ({count} of {num_runs} runs, first with {first})"),
        };
        Err(Failure::user(self.lines.iter().map(told).collect::<Vec<_>>().join("\n")))
    }
}

/// Refuses what does not fit, alone or beside the others; says how long it will take.
fn costs(
    recipes: &[Recipe],
    rungs: &[Rung],
    jobs: usize,
    world: &World,
    process: Process,
) -> Result<Option<Seconds>, Failure> {
    let mut wrong = BTreeSet::new();
    let (mut peaks, mut work) = (Vec::new(), Some(0.0));
    for recipe in recipes {
        match forecast::of(recipe, world, process) {
            Err(failure) => drop(wrong.insert(failure.text().to_owned())),
            Ok(forecast) => {
                peaks.push(forecast.peak_by_rank.iter().map(|peak| peak.0).sum::<u64>());
                // More threads than cores take turns.
                let busy = jobs * recipe.run.workers * recipe.run.threads;
                let crowd = (busy as f64 / world.threads().available() as f64).max(1.0);
                let whole = recipe.train.steps as f64 * crowd / jobs as f64;
                work = work.zip(forecast.step_seconds()).map(|(w, step)| w + whole * step.0);
            }
        }
    }
    if !wrong.is_empty() {
        return Err(Failure::user(wrong.into_iter().collect::<Vec<_>>().join("\n")));
    }
    peaks.sort_unstable_by(|a, b| b.cmp(a));
    fit_together(&peaks, jobs, world.host().memory_bytes())?;
    Ok(work.map(|seconds| Seconds(seconds * share_of_steps(rungs))))
}

/// Refuses more runs at a time than memory holds; `peaks` are theirs, the largest first.
fn fit_together(peaks: &[u64], jobs: usize, memory: u64) -> Result<(), Failure> {
    let of = |jobs: usize| peaks.iter().take(jobs).sum::<u64>();
    if of(jobs) <= memory {
        return Ok(());
    }
    let fitting = (1..jobs).rev().find(|fewer| of(*fewer) <= memory).unwrap_or(1);
    let (together, memory) = (Bytes(of(jobs)), Bytes(memory));
    let rule = format!("--jobs {jobs} would take {together} at a time, and there is {memory}");
    Err(Failure::user(format!("{rule}; try --jobs {fitting}")))
}

/// The part of all runs' steps that a search does: of each rung those that were not done before.
fn share_of_steps(rungs: &[Rung]) -> f64 {
    const WHOLE: u64 = 1 << 40;
    let mut done = (0.0, 0);
    for rung in rungs {
        let steps = rung.steps(WHOLE);
        done = (done.0 + rung.num_runs as f64 * (steps - done.1) as f64, steps);
    }
    done.0 / (rungs[0].num_runs as f64 * WHOLE as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_of_many_runs_is_told_once_with_how_many_they_are() {
        let mut wrong = Complaints::default();
        let sets = |text: &str| vec![text.to_owned()];
        wrong.add("all are wrong\nsome are wrong", &sets("a=1"));
        wrong.add("all are wrong\nsome are wrong", &sets("a=2"));
        wrong.add("all are wrong\none is wrong", &sets("a=3"));
        assert_eq!(
            wrong.end(3).expect_err("three lines").text(),
            "all are wrong\nsome are wrong (2 of 3 runs, first with a=1)\none is wrong (the run \
             with a=3)"
        );
        assert!(Complaints::default().end(3).is_ok());
    }

    #[test]
    fn halving_does_a_part_of_the_steps() {
        assert!((share_of_steps(&rungs(16, 1, 400)) - 1.0).abs() < 1e-9);
        // 16 quarters, 4 of which go on for three quarters more.
        let share = share_of_steps(&rungs(16, 4, 8));
        assert!((share - (16.0 / 4.0 + 4.0 * 0.75) / 16.0).abs() < 1e-9, "{share}");
    }

    #[test]
    fn runs_that_do_not_fit_beside_each_other_are_refused_with_a_number_that_does() {
        assert!(fit_together(&[5, 4, 3], 2, 9).is_ok());
        let error = fit_together(&[5 << 30, 4 << 30, 3 << 30], 3, 9 << 30).expect_err("12 > 9");
        let expected = "--jobs 3 would take 12 GiB at a time, and there is 9 GiB; try --jobs 2";
        assert_eq!(error.text(), expected);
    }
}
