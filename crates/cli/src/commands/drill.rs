//! `lockstep drill`: does this recipe survive the loss of its workers, and at what price?
//!
//! The recipe is trained twice, by commands as a person would type them: once left alone, and once
//! while workers are killed at random moments. Then the two are held side by side.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers;
use lockstep_config::{Isolation, Recipe};
use lockstep_platform::{Exit, Process, ProcessCommand, World};
use lockstep_telemetry::{Event, Stamped, load_events};
use lockstep_trainer::RunFolder;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Between two looks at the run.
const LOOK: Duration = Duration::from_millis(5);

/// Try whether a recipe survives the loss of workers
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep drill my.toml                          three workers are killed, one after the other
  lockstep drill --preset tiny --set train.steps=300 --kills 5
  lockstep drill my.toml --out trial --json       figures for a program

The recipe is trained twice into the folder --out: `undisturbed`, and `disturbed`, where a random
worker is killed at random moments and the run goes on from its newest checkpoint. A recipe without
checkpoints gets one for every twentieth part of its steps.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// How many workers to kill
    #[arg(long, default_value = "3")]
    kills: u64,
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

/// What came of it.
#[derive(Serialize)]
struct Report {
    kills: Vec<Kill>,
    restarts: u64,
    same_weights: bool,
    same_losses: bool,
    weights_hash: String,
    undisturbed_seconds: f64,
    disturbed_seconds: f64,
    recovery_seconds_max: f64,
    lost_steps: u64,
    out: String,
}

/// One blow.
#[derive(Serialize)]
struct Kill {
    rank: usize,
    /// Steps that were done.
    at_step: u64,
    /// Steps that had to be done again.
    lost_steps: u64,
    /// From the blow to the next finished step.
    recovery_seconds: f64,
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
    let say = |line: &str| {
        if !arguments.quiet {
            workers::tell(&format!("{line}\n"));
        }
    };
    say("training undisturbed");
    let began = world.clock().now();
    let [alone, struck] = ["undisturbed", "disturbed"].map(|name| arguments.out.join(name));
    let mut quiet = start(world, &alone, &[])?;
    let exit = wait(world, quiet.as_mut(), || {})?;
    refuse_failure(exit, quiet.as_mut())?;
    let undisturbed_seconds = world.clock().since(began).as_secs_f64();
    say("training while workers are killed");
    let began = world.clock().now();
    let mut process = start(world, &struck, &protection(&recipe, arguments.kills))?;
    let mut blows = Blows::new(world, arguments, &recipe, &struck);
    let id = process.id();
    let exit = wait(world, process.as_mut(), || blows.look(id, &say))?;
    refuse_failure(exit, process.as_mut())?;
    let disturbed_seconds = world.clock().since(began).as_secs_f64();
    let [expected, found] = [summary(world, &alone)?, summary(world, &struck)?];
    let same = |name: &str| expected[name] == found[name];
    let kills = blows.done;
    let report = Report {
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

/// What a recipe needs to survive so many blows, where it lacks it.
fn protection(recipe: &Recipe, kills: u64) -> Vec<String> {
    let mut sets = vec![format!("run.restarts={}", recipe.run.restarts.max(kills))];
    if !recipe.checkpoint.is_on() {
        sets.push(format!("checkpoint.every={}", (recipe.train.steps / 20).max(1)));
    }
    sets
}

/// Starts `lockstep train` with the recipe of this command.
fn start(world: &World, dir: &Path, sets: &[String]) -> Result<Box<dyn Process>, Failure> {
    // What was typed, without what is this command's own.
    let mut typed: Vec<OsString> = vec!["train".into(), "--quiet".into()];
    let mut rest = std::env::args_os().skip(2);
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        match name {
            "--kills" | "--seed" | "--out" if name == text => drop(rest.next()),
            "--kills" | "--seed" | "--out" | "--json" | "--quiet" => {}
            _ => typed.push(argument),
        }
    }
    let dir = format!("run.dir={}", dir.display());
    for set in sets.iter().chain([&dir]) {
        typed.extend(["--set".into(), set.into()]);
    }
    let program =
        world.processes().own_program().map_err(|error| Failure::bug(error.to_string()))?;
    let command =
        ProcessCommand { program, arguments: typed, environment: Vec::new(), shares_stdout: false };
    world.processes().spawn(&command).map_err(|error| Failure::bug(error.to_string()))
}

/// Waits for a process, looking around meanwhile.
fn wait(world: &World, process: &mut dyn Process, mut look: impl FnMut()) -> Result<Exit, Failure> {
    loop {
        let ended = process.try_wait().map_err(|error| Failure::bug(error.to_string()))?;
        if let Some(exit) = ended {
            return Ok(exit);
        }
        look();
        world.clock().sleep(LOOK);
    }
}

/// A run that failed ends the drill with its own words and code.
fn refuse_failure(exit: Exit, process: &mut dyn Process) -> Result<(), Failure> {
    if exit == Exit::Code(0) {
        return Ok(());
    }
    let mut words = Vec::new();
    let mut buffer = [0; 4096];
    if let Some(mut output) = process.take_stderr() {
        loop {
            match output.read(&mut buffer, LOOK) {
                Ok(0) => break,
                Ok(count) => words.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    }
    let words = String::from_utf8_lossy(&words);
    let lines: Vec<_> = words.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    let text =
        if lines.is_empty() { format!("the run ended with {exit}") } else { lines.join("\n") };
    let code = match exit {
        Exit::Code(code) => u8::try_from(code).unwrap_or(101),
        Exit::Signal(_) => 3,
    };
    Err(Failure::with_code(code, text))
}

fn summary(world: &World, dir: &Path) -> Result<Value, Failure> {
    let folder = RunFolder::finished(dir, world)?;
    let text = world.files().read_to_string(&folder.summary())?;
    serde_json::from_str(&text).map_err(|error| Failure::bug(error.to_string()))
}

/// Kills workers of a run at random moments.
struct Blows<'a> {
    world: &'a World,
    dir: PathBuf,
    left: u64,
    num_steps: u64,
    random: u64,
    /// Steps of the run, counted with those that were done again, after which the next blow falls.
    next: u64,
    /// Between two blows, in steps.
    distance: u64,
    /// The last blow, until a step has followed it.
    open: Option<(usize, u64, u64, Duration)>,
    done: Vec<Kill>,
}

impl<'a> Blows<'a> {
    fn new(world: &'a World, arguments: &Arguments, recipe: &Recipe, dir: &Path) -> Self {
        let num_steps = recipe.train.steps;
        let distance = (num_steps / (arguments.kills + 1)).max(1);
        let mut blows = Self {
            world,
            dir: dir.to_owned(),
            left: arguments.kills,
            num_steps,
            random: arguments.seed,
            next: 0,
            distance,
            open: None,
            done: Vec::new(),
        };
        blows.next = blows.below(distance) + 1;
        blows
    }

    /// A number below `bound` (SplitMix64).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// Looks how far the run is, and strikes where it is time to.
    fn look(&mut self, launcher: u32, say: &dyn Fn(&str)) {
        let path = self.dir.join("events.jsonl");
        // A line that is being written is read at the next look.
        let Ok(events) = load_events(self.world, &path) else { return };
        let steps: Vec<u64> = events.iter().filter_map(step_of).collect();
        let (num_seen, last) = (steps.len() as u64, steps.last().copied().unwrap_or(0));
        if let Some((rank, at_step, seen, struck)) = self.open {
            if num_seen <= seen {
                return;
            }
            // Steps that were finished between the look and the blow belong to the life before.
            let after = events.iter().rposition(|stamped| is_start(&stamped.event)).unwrap_or(0);
            let first = events[after..].iter().find_map(step_of);
            let begun = events.iter().filter(|stamped| is_start(&stamped.event)).count();
            let Some(first) = first.filter(|_| begun > self.done.len() + 1) else { return };
            let recovery_seconds = self.world.clock().since(struck).as_secs_f64();
            let lost_steps = (at_step + 1).saturating_sub(first);
            say(&format!("going on with step {first} after {recovery_seconds:.2} s"));
            self.done.push(Kill { rank, at_step, lost_steps, recovery_seconds });
            self.open = None;
            let random = self.below(self.distance);
            self.next = last + random + 1;
        }
        if self.left == 0 || last < self.next || last >= self.num_steps {
            return;
        }
        let children = self.children(launcher);
        if children.is_empty() {
            return;
        }
        let rank = self.below(children.len() as u64) as usize;
        let struck = self.world.clock().now();
        if self.world.processes().kill(children[rank]) {
            say(&format!("killed rank {rank} after step {last}"));
            self.left -= 1;
            self.open = Some((rank, last, num_seen, struck));
        }
    }

    /// The workers that a launcher has started, which it does in the order of ranks.
    fn children(&self, launcher: u32) -> Vec<u32> {
        let path = format!("/proc/{launcher}/task/{launcher}/children");
        let list = self.world.files().read_to_string(Path::new(&path)).unwrap_or_default();
        list.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    }
}

fn step_of(stamped: &Stamped) -> Option<u64> {
    match stamped.event {
        Event::Step { step, .. } => Some(step),
        _ => None,
    }
}

fn is_start(event: &Event) -> bool {
    matches!(event, Event::RunStarted { .. })
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
    let (alone, struck) = (report.undisturbed_seconds, report.disturbed_seconds);
    let _ = writeln!(text, "time         {alone:.1} s undisturbed, {struck:.1} s disturbed");
    let _ = writeln!(text, "folder       {}", report.out);
    text
}
