//! `lockstep sweep`: which settings learn best?
//!
//! Many runs of one recipe that differ in some keys, each a `lockstep train` of its own.
//!
//! # Layout
//! - [`space`]: the values of each key, and which combinations are tried.
//! - [`halving`]: who goes on when all have had a part of their steps.
//! - [`plan`]: what was asked for, proven before anything runs; [`figure`]: what decides.
//! - [`store`]: the folder, from which a killed sweep goes on.
//! - [`pool`]: several processes at a time; [`work`]: what they do and how far they are.
//! - [`table`]: what came of it; [`plot`]: the same as a picture, on axes of [`scale`].
//! - [`methods`]: another command on the same ground, `lockstep bench methods`.

mod figure;
mod halving;
pub(crate) mod methods;
mod plan;
mod plot;
mod pool;
mod scale;
mod space;
mod store;
mod table;
mod work;

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers;
use figure::Figure;
use halving::{Rung, Score};
use lockstep_platform::World;
use plan::{Plan, Run};
use std::path::PathBuf;
use store::Store;
use table::{Row, Table};
use work::Work;

/// Search for settings: many runs that differ in some keys, and a table of what came of them
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep sweep my.toml --over optim.lr=1e-3,3e-3,1e-2 --over train.batch=8,16   all six
  lockstep sweep my.toml --over optim.lr=log:1e-4..1e-1 --random 20 --seed 1      twenty draws
  lockstep sweep my.toml --over optim.lr=log:1e-4..1e-1 --random 27 --halving 3   the best third
                                                           goes on for three times as many steps
  lockstep sweep --preset quadratic --over optim.lr=0.1,0.3,1 --by suboptimality --svg lr.svg
  lockstep sweep my.toml --over optim.lr=1e-3,3e-3 --csv > table.csv

Values: a list with commas between, or a range to draw from with --random: log:LOW..HIGH, where each
order of magnitude is as likely, lin:LOW..HIGH, or int:LOW..HIGH for whole numbers.

Each run is a `lockstep train` with a folder under --out. The same command again goes on where a
sweep was stopped or killed, and ends with the same table; a plain search may also grow, by a larger
--random or more values of the first key. A run that diverges is a result and stands last.")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// A key and its values; may be repeated
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    over: Vec<String>,
    /// Draw so many combinations instead of trying all
    #[arg(long, value_name = "RUNS")]
    random: Option<usize>,
    /// Decides what is drawn
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Begin with a part of the steps, and let one run in N go on for N times as many
    #[arg(long, value_name = "N")]
    halving: Option<u64>,
    /// How many runs at a time; without it, as many as there are cores for
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// What decides
    #[arg(long, value_name = "FIGURE", default_value = "validation_loss")]
    by: Figure,
    /// The folder of the sweep: a new one, or that of this sweep
    #[arg(long, value_name = "DIR", default_value = "sweep")]
    out: PathBuf,
    /// Only say what would run
    #[arg(long)]
    dry_run: bool,
    /// Add measured times and bytes to the table
    #[arg(long)]
    measured: bool,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
    /// The table as CSV on standard output
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Draw what decides over each key into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    world.processes().accept_interrupts();
    let plan = Plan::prove(arguments, world)?;
    if arguments.dry_run {
        return output::text(&(announcement(&plan) + &listing(arguments, &plan)));
    }
    let store = Store::open(world, &arguments.out, &plan)?;
    if !arguments.quiet {
        workers::tell(&announcement(&plan));
    }
    let rows = carry_out(arguments, world, &plan, &store);
    store.leave()?;
    let rows = rows?;
    let table = Table::new(&plan, rows, arguments.measured);
    if let Some(path) = &arguments.svg {
        world.files().write_atomic(path, plot::draw(&table).as_bytes())?;
    }
    if arguments.json {
        let out = arguments.out.display().to_string();
        return output::json(&table.report(&out, |run| command(arguments, &plan, run)));
    }
    if arguments.csv {
        return output::text(&table.csv());
    }
    output::text(&(table.text() + &verdict(arguments, &table)))
}

/// Runs what is not done yet, rung by rung, and gives what came of each run.
fn carry_out<'a>(
    arguments: &Arguments,
    world: &World,
    plan: &'a Plan,
    store: &Store<'_>,
) -> Result<Vec<Row<'a>>, Failure> {
    let mut rows: Vec<Option<Row<'a>>> = plan.runs.iter().map(|_| None).collect();
    let mut alive: Vec<usize> = (0..plan.runs.len()).collect();
    for (index, rung) in plan.rungs.iter().enumerate() {
        let scores: Vec<(usize, Score)> =
            alive.iter().map(|run| (*run, rows[*run].as_ref().and_then(|row| row.score))).collect();
        if index > 0 {
            alive = halving::survivors(&scores, rung.num_runs);
        }
        // A run that has reached train.target_loss is done, whatever steps were left.
        let is_over = |run: &usize| {
            let before = index.checked_sub(1).map(|before| plan.rungs[before]);
            let outcome = rows[*run].as_ref().map(|row| &row.outcome);
            let asked = |before: Rung| before.steps(plan.runs[*run].steps);
            before.zip(outcome).is_some_and(|(before, outcome)| outcome.steps < asked(before))
        };
        let (over, going): (Vec<usize>, Vec<usize>) = alive.iter().partition(|run| is_over(run));
        for run in over {
            rows[run].iter_mut().for_each(|row| row.rung = index);
        }
        let mut work = Work::new(arguments, world, plan, store, index);
        for (run, outcome) in work.carry_out(&going)? {
            let score = plan.by.score(&outcome);
            rows[run] = Some(Row { run: &plan.runs[run], rung: index, outcome, score });
        }
    }
    Ok(rows.into_iter().flatten().collect())
}

/// What will happen.
fn announcement(plan: &Plan) -> String {
    let runs = |count: usize| if count == 1 { "run" } else { "runs" };
    let of = |rung: &Rung| {
        let steps = rung.steps(plan.runs[0].steps);
        format!("{} {} of {steps} steps", rung.num_runs, runs(rung.num_runs))
    };
    let is_even = plan.runs.iter().all(|run| run.steps == plan.runs[0].steps);
    let what = match &plan.rungs[..] {
        [only] if !is_even => format!("{} {}", only.num_runs, runs(only.num_runs)),
        rungs => rungs.iter().map(of).collect::<Vec<_>>().join(", then "),
    };
    let time = plan.seconds.map_or(String::new(), |seconds| format!("; about {seconds} in all"));
    format!("{what}, {} at a time{time}\n", plan.jobs.min(plan.runs.len()))
}

fn listing(arguments: &Arguments, plan: &Plan) -> String {
    let line = |run: &Run| format!("{}  {}\n", run.name, command(arguments, plan, run));
    plan.runs.iter().map(line).collect()
}

/// The last lines: the best run and how to train it.
fn verdict(arguments: &Arguments, table: &Table<'_>) -> String {
    let plan = table.plan;
    let Some(best) = table.best() else {
        return "\nall runs diverged; try smaller values of optim.lr\n".to_owned();
    };
    let value = best.outcome.figures.get(plan.by.name()).copied().unwrap_or(f64::NAN);
    let (name, words) = (&best.run.name, plan.by.words());
    let sets = best.run.sets(&plan.keys).join(" ");
    let command = command(arguments, plan, best.run);
    format!("\nbest  {name}: {sets}, {words} {}\ntrain {command}\n", plan.by.shown(value))
}

/// What a person types to train one run.
fn command(arguments: &Arguments, plan: &Plan, run: &Run) -> String {
    let words = arguments.recipe.with(&run.sets(&plan.keys)).typed();
    let words = words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    format!("lockstep train {words}")
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_a_shell_would_change_are_quoted() {
        assert_eq!(quoted("optim.lr=1e-3"), "optim.lr=1e-3");
        assert_eq!(quoted("run.workers={min=2,max=4}"), "'run.workers={min=2,max=4}'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn what_will_happen_is_told_rung_by_rung() {
        let values: Vec<_> = ["1", "2", "3", "4"].map(|value| (value, "a")).to_vec();
        let plan = table::tests::plan(&values, 2);
        assert_eq!(
            announcement(&plan),
            "4 runs of 25 steps, then 2 runs of 50 steps, then 1 run of 100 steps, 1 at a time\n"
        );
    }
}
