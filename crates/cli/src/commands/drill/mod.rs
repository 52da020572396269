//! `lockstep drill`: does this recipe survive the loss of its workers, and at what price?
//!
//! The recipe is trained twice, by commands as a person would type them: once left alone, and once
//! while workers are killed at random moments. Then the two are held side by side.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers;
use blows::{Blows, Kill};
use lockstep_config::{Isolation, Recipe};
use lockstep_platform::World;
use lockstep_trainer::RunFolder;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

mod blows;
mod child;

/// Try whether a recipe survives the loss of workers
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep drill my.toml                          three workers are killed, one after the other
  lockstep drill --preset tiny --set train.steps=300 --kills 5
  lockstep drill my.toml --set run.workers=4 --gone 2   two workers are gone for a while
  lockstep drill my.toml --out trial --json       figures for a program

The recipe is trained twice into the folder --out: `undisturbed`, and `disturbed`, where a random
worker is killed at random moments and the run goes on from its newest checkpoint. A recipe without
checkpoints gets one for every twentieth part of its steps.

With --gone workers that are killed are not started again at once: the run goes on without them,
and takes them back after a quarter of the time that the undisturbed run took (run.rejoin), but
not within two seconds.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// How many workers to kill
    #[arg(long, default_value = "3", value_parser = at_least_one)]
    kills: u64,
    /// How many workers to kill and to leave away for a while, instead
    #[arg(long, value_name = "WORKERS", conflicts_with = "kills", value_parser = at_least_one)]
    gone: Option<u64>,
    /// Decides who is killed and when
    #[arg(long, default_value = "1")]
    seed: u64,
    /// A new folder for both runs
    #[arg(long, value_name = "DIR", default_value = "drill")]
    out: PathBuf,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// A drill without a blow shows nothing.
fn at_least_one(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("without a blow there is nothing to survive; try 1".to_owned()),
        Ok(count) => Ok(count),
        Err(_) => Err("not a whole number; try 3".to_owned()),
    }
}

/// What came of it.
#[derive(Serialize)]
struct Report {
    kills: Vec<Kill>,
    restarts: u64,
    /// Workers of each life of the disturbed run.
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
    if recipe.run.isolation == Isolation::Threads {
        let rule = "run.isolation = \"threads\" leaves nobody to start workers again";
        return Err(Failure::user(format!("{rule}; set run.isolation = \"processes\"")));
    }
    if world.files().metadata(&arguments.out).is_some() {
        let out = arguments.out.display();
        return Err(Failure::user(format!("{out} exists already; choose another --out")));
    }
    let mut sets = protection(&recipe, arguments)?;
    let say = |line: &str| {
        if !arguments.quiet {
            workers::tell(&format!("{line}\n"));
        }
    };
    say("training undisturbed");
    let began = world.clock().now();
    let [alone, struck] = ["undisturbed", "disturbed"].map(|name| arguments.out.join(name));
    child::wait(child::start(world, &alone, &[])?, world, || {})?;
    let undisturbed_seconds = world.clock().since(began).as_secs_f64();
    say("training while workers are killed");
    let began = world.clock().now();
    if arguments.gone.is_some() {
        sets.push(format!("run.rejoin={:.3}", (undisturbed_seconds / 4.0).max(2.0)));
    }
    let child = child::start(world, &struck, &sets)?;
    let kills = arguments.gone.unwrap_or(arguments.kills);
    let mut blows = Blows::new(world, &struck, recipe.train.steps, kills, arguments.seed);
    let id = child.id();
    child::wait(child, world, || blows.look(id, &say))?;
    let disturbed_seconds = world.clock().since(began).as_secs_f64();
    let [expected, found] = [summary(world, &alone)?, summary(world, &struck)?];
    let same = |name: &str| expected[name] == found[name];
    let (workers, kills) = (blows.sizes(), blows.done);
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
    Err(Failure::bug("the disturbed run has other bits than the undisturbed one"))
}

/// What a recipe needs to survive the blows, where it lacks it.
fn protection(recipe: &Recipe, arguments: &Arguments) -> Result<Vec<String>, Failure> {
    let mut sets = Vec::new();
    if recipe.checkpoint.every == 0 {
        sets.push(format!("checkpoint.every={}", (recipe.train.steps / 20).max(1)));
    }
    let Some(gone) = arguments.gone else {
        sets.push(format!("run.restarts={}", recipe.run.restarts.max(arguments.kills)));
        return Ok(sets);
    };
    let (most, each) = (recipe.run.workers, recipe.parallel.workers_per_copy());
    let fewest = most.saturating_sub(each * usize::try_from(gone).unwrap_or(most));
    if fewest == 0 {
        let rule = format!("--gone {gone} leaves nobody of run.workers = {most}");
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
            "killed       rank {rank} after step {at_step}: {lost_steps} steps done again, going \
             on after {recovery_seconds:.2} s"
        );
    }
    let verdict = |same| if same { "the same to the bit" } else { "NOT the same" };
    let _ = writeln!(text, "losses       {}", verdict(report.same_losses));
    let _ = writeln!(text, "weights      {}", verdict(report.same_weights));
    let sizes: Vec<_> = report.workers.iter().map(ToString::to_string).collect();
    let _ = writeln!(text, "workers      {}", sizes.join(", "));
    let (alone, struck) = (report.undisturbed_seconds, report.disturbed_seconds);
    let _ = writeln!(text, "time         {alone:.1} s undisturbed, {struck:.1} s disturbed");
    let _ = writeln!(text, "folder       {}", report.out);
    text
}
