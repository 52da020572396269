//! `lockstep drill`: fault injection. Trains a recipe with and without killed workers and compares.
//!
//! # Layout
//! - [`faults`]: kills workers and records the recovery
//! - [`training`]: the training runs as subprocesses

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers::print_status;
use faults::{FaultInjector, Kill};
use lockstep_config::{Isolation, Recipe};
use lockstep_platform::World;
use lockstep_trainer::RunFolder;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

mod faults;
mod training;

/// Fault injection: kill workers at random and compare with an undisturbed run
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep drill my.toml                          kill three workers, one after the other
  lockstep drill --preset tiny --set train.steps=300 --kills 5
  lockstep drill my.toml --set run.workers=4 --gone 2   two workers leave for a while
  lockstep drill my.toml --out trial --json       JSON

The recipe is trained twice into the folder --out: `undisturbed`, and `disturbed`, where a random
worker is killed at random steps and the run resumes from its newest checkpoint. A recipe without
checkpoints gets one every 5 % of its steps.

With --gone killed workers are not restarted at once: the run continues without them, and they
rejoin after a quarter of the undisturbed run's time (run.rejoin), at least two seconds.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Number of workers to kill
    #[arg(long, default_value = "3", value_parser = at_least_one)]
    kills: u64,
    /// Number of workers to kill without an immediate restart, instead of --kills
    #[arg(long, value_name = "WORKERS", conflicts_with = "kills", value_parser = at_least_one)]
    gone: Option<u64>,
    /// Seed of the killed ranks and steps
    #[arg(long, default_value = "1")]
    seed: u64,
    /// New folder for both runs
    #[arg(long, value_name = "DIR", default_value = "drill")]
    out: PathBuf,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Parses a number of kills.
fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("a drill needs at least one kill; try 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("not a whole number; try 3".to_owned()),
    }
}

/// Result of a drill.
#[derive(Serialize)]
struct Report {
    kills: Vec<Kill>,
    restarts: u64,
    /// Workers of each attempt of the disturbed run.
    workers: Vec<usize>,
    same_weights: bool,
    same_losses: bool,
    weights_hash: String,
    undisturbed_seconds: f64,
    disturbed_seconds: f64,
    recovery_seconds_max: f64,
    lost_steps: u64,
    out: String,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let recipe = arguments.recipe.resolve(world)?;
    lockstep_trainer::device::check(&recipe)?;
    if recipe.run.isolation == Isolation::Threads {
        let rule = "run.isolation = \"threads\" has no launcher to restart workers";
        return Err(Failure::user(format!("{rule}; set run.isolation = \"processes\"")));
    }
    if world.files().metadata(&arguments.out).is_some() {
        let out = arguments.out.display();
        return Err(Failure::user(format!("{out} exists already; choose another --out")));
    }
    let mut sets = survival_settings(&recipe, arguments)?;
    let print = |line: &str| {
        if !arguments.quiet {
            print_status(&format!("{line}\n"));
        }
    };
    print("training undisturbed");
    let began = world.clock().now();
    let [alone, disturbed] = ["undisturbed", "disturbed"].map(|name| arguments.out.join(name));
    training::wait(training::start(world, &alone, &[])?, world, || {})?;
    let undisturbed_seconds = world.clock().since(began).as_secs_f64();
    print("training while workers are killed");
    let began = world.clock().now();
    if arguments.gone.is_some() {
        sets.push(format!("run.rejoin={:.3}", (undisturbed_seconds / 4.0).max(2.0)));
    }
    let child = training::start(world, &disturbed, &sets)?;
    let kills = arguments.gone.unwrap_or(arguments.kills);
    let mut faults =
        FaultInjector::new(world, &disturbed, recipe.train.steps, kills, arguments.seed);
    let id = child.id();
    training::wait(child, world, || faults.poll(id, &print))?;
    let disturbed_seconds = world.clock().since(began).as_secs_f64();
    let [expected, found] = [summary(world, &alone)?, summary(world, &disturbed)?];
    let same = |name: &str| expected[name] == found[name];
    let (workers, kills) = (faults.workers_by_attempt(), faults.kills);
    let report = Report {
        workers,
        restarts: found["restarts"].as_u64().unwrap_or(0),
        same_weights: same("weights_hash"),
        same_losses: same("losses_hash"),
        weights_hash: found["weights_hash"].as_str().unwrap_or_default().to_owned(),
        undisturbed_seconds,
        disturbed_seconds,
        recovery_seconds_max: kills.iter().map(|kill| kill.recovery_seconds).fold(0.0, f64::max),
        lost_steps: kills.iter().map(|kill| kill.lost_steps).sum(),
        kills,
        out: arguments.out.display().to_string(),
    };
    if arguments.json { output::json(&report) } else { output::text(&render(&report)) }?;
    if report.same_weights && report.same_losses {
        return Ok(());
    }
    Err(Failure::bug("the disturbed run is not bit-identical to the undisturbed one"))
}

/// Settings that a recipe needs to survive the kills.
fn survival_settings(recipe: &Recipe, arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let mut sets = Vec::new();
    if recipe.checkpoint.every == 0 {
        sets.push(format!("checkpoint.every={}", (recipe.train.steps / 20).max(1)));
    }
    let Some(gone) = arguments.gone else {
        sets.push(format!("run.restarts={}", recipe.run.restarts.max(arguments.kills)));
        return Ok(sets);
    };
    let (most, each) = (recipe.run.workers, recipe.parallel.workers_per_replica());
    let fewest = most.saturating_sub(each * usize::try_from(gone).unwrap_or(most));
    if fewest == 0 {
        let rule = format!("--gone {gone} leaves no worker of run.workers = {most}");
        let fix = match most / each - 1 {
            0 => format!("set run.workers = {}", 2 * each),
            possible => format!("try {possible}"),
        };
        return Err(Failure::user(format!("{rule}; {fix}")));
    }
    sets.push(format!("run.workers={{min={fewest},max={most}}}"));
    sets.push("run.restarts=0".to_owned());
    Ok(sets)
}

fn summary(world: &World, dir: &Path) -> Result<Value, Failure> {
    let folder = RunFolder::finished(dir, world)?;
    let text = world.files().read_to_string(&folder.summary())?;
    serde_json::from_str(&text).map_err(|error| Failure::bug(error.to_string()))
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    for Kill { rank, at_step, lost_steps, recovery_seconds } in &report.kills {
        let _ = writeln!(
            text,
            "killed       rank {rank} after step {at_step}: {lost_steps} steps repeated, resumed \
             after {recovery_seconds:.2} s"
        );
    }
    let verdict = |same| if same { "bit-identical" } else { "DIFFERENT" };
    let _ = writeln!(text, "losses       {}", verdict(report.same_losses));
    let _ = writeln!(text, "weights      {}", verdict(report.same_weights));
    let sizes: Vec<_> = report.workers.iter().map(ToString::to_string).collect();
    let _ = writeln!(text, "workers      {}", sizes.join(", "));
    let (alone, disturbed) = (report.undisturbed_seconds, report.disturbed_seconds);
    let _ = writeln!(text, "time         {alone:.1} s undisturbed, {disturbed:.1} s disturbed");
    let _ = writeln!(text, "folder       {}", report.out);
    text
}
