//! `lockstep sweep`: hyperparameter search over the keys of a recipe.
//!
//! Each run is a `lockstep train` process. [`lockstep_sweep`] chooses, orders and ranks the runs.
//!
//! # Layout
//! - [`resolve`]: arguments to a checked plan
//! - [`jobs`]: the processes of one rung
//! - [`table`]: results as text, CSV and JSON; [`plot`]: results as SVG
//! - [`methods`]: `lockstep bench methods`, which runs as a sweep

mod jobs;
pub(crate) mod methods;
mod plot;
mod resolve;
mod table;

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers::print_status;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use jobs::RungJobs;
use lockstep_config::units::Seconds;
use lockstep_platform::World;
use lockstep_sweep::halving::{self, Rung, Score};
use lockstep_sweep::metric::Metric;
use lockstep_sweep::plan::{Plan, Run};
use lockstep_sweep::ranking::{Ranking, Row};
use lockstep_sweep::store::Store;
use std::path::PathBuf;
use table::Table;

/// Hyperparameter search: grid, random or successive halving, with a table of results
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep sweep my.toml --over optim.lr=1e-3,3e-3,1e-2 --over train.batch=8,16   grid of six runs
  lockstep sweep my.toml --over optim.lr=log:1e-4..1e-1 --random 20 --seed 1      20 random runs
  lockstep sweep my.toml --over optim.lr=log:1e-4..1e-1 --random 27 --halving 3   successive halving
  lockstep sweep --preset quadratic --over optim.lr=0.1,0.3,1 --by suboptimality --svg lr.svg
  lockstep sweep my.toml --over optim.lr=1e-3,3e-3 --csv > table.csv

Values are a list separated by commas, or a range to draw from with --random: log:A..B
(log-uniform), lin:A..B (uniform) or int:A..B (whole numbers).

Each run is a `lockstep train` with its own folder under --out. The same command resumes a sweep
that was stopped or killed and ends with the same table. A sweep without --halving may also grow,
by a larger --random or more values of the first key. A run that diverges ranks last.")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// A key and its values; repeatable
    #[arg(long, value_name = "KEY=VALUES", required = true)]
    over: Vec<String>,
    /// Number of random combinations, instead of the whole grid
    #[arg(long, value_name = "RUNS")]
    random: Option<usize>,
    /// Seed of the random combinations
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Successive halving: start with few steps; the best run in N continues for N times as many
    #[arg(long, value_name = "N")]
    halving: Option<u64>,
    /// Number of runs at a time (default: as many as the cores allow)
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Metric that ranks runs
    #[arg(
        long,
        value_name = "METRIC",
        default_value = "validation_loss",
        value_parser = metric_parser()
    )]
    by: Metric,
    /// Folder of the sweep: new, or one that this sweep resumes
    #[arg(long, value_name = "DIR", default_value = "sweep")]
    out: PathBuf,
    /// Print the runs without starting them
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
    /// Plot the metric over each key into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Parses a metric by its name.
fn metric_parser() -> impl TypedValueParser<Value = Metric> {
    let values = Metric::ALL.map(|metric| PossibleValue::new(metric.name()));
    PossibleValuesParser::new(values).map(|name| {
        let named = Metric::ALL.into_iter().find(|metric| metric.name() == name);
        named.expect("the parser accepts names of metrics only")
    })
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    world.processes().accept_interrupts();
    let plan = resolve::plan(arguments, world)?;
    if arguments.dry_run {
        return output::text(&(announcement(&plan) + &listing(arguments, &plan)));
    }
    let store = Store::open(world, &arguments.out, &plan)?;
    if !arguments.quiet {
        print_status(&announcement(&plan));
    }
    let rows = run_rungs(arguments, world, &plan, &store);
    store.release()?;
    let rows = rows?;
    let ranking = Ranking::new(&plan, rows);
    let table = Table::new(&ranking, arguments.measured);
    if let Some(path) = &arguments.svg {
        world.files().write_atomic(path, plot::draw(&ranking).as_bytes())?;
    }
    if arguments.json {
        let out = arguments.out.display().to_string();
        return output::json(&table.report(&out, |run| command(arguments, &plan, run)));
    }
    if arguments.csv {
        return output::text(&table.csv());
    }
    output::text(&(table.text() + &render_best(arguments, &ranking)))
}

/// Runs what is not done yet, rung by rung; returns the result of each run.
fn run_rungs<'a>(
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
        // A run that has reached train.target_loss is done before its last step.
        let is_over = |run: &usize| {
            let before = index.checked_sub(1).map(|before| plan.rungs[before]);
            let outcome = rows[*run].as_ref().map(|row| &row.outcome);
            let target = |before: Rung| before.steps(plan.runs[*run].steps);
            before.zip(outcome).is_some_and(|(before, outcome)| outcome.steps < target(before))
        };
        let (over, going): (Vec<usize>, Vec<usize>) = alive.iter().partition(|run| is_over(run));
        for run in over {
            rows[run].iter_mut().for_each(|row| row.rung = index);
        }
        let mut jobs = RungJobs::new(arguments, world, plan, store, index);
        for (run, outcome) in jobs.run(&going)? {
            let score = plan.by.score(&outcome);
            rows[run] = Some(Row { run: &plan.runs[run], rung: index, outcome, score });
        }
    }
    Ok(rows.into_iter().flatten().collect())
}

/// One line: runs, steps, jobs and predicted time.
fn announcement(plan: &Plan) -> String {
    let runs = |count: usize| if count == 1 { "run" } else { "runs" };
    let of = |rung: &Rung| {
        let steps = rung.steps(plan.runs[0].steps);
        format!("{} {} of {steps} steps", rung.num_runs, runs(rung.num_runs))
    };
    let is_uniform = plan.runs.iter().all(|run| run.steps == plan.runs[0].steps);
    let what = match &plan.rungs[..] {
        [only] if !is_uniform => format!("{} {}", only.num_runs, runs(only.num_runs)),
        rungs => rungs.iter().map(of).collect::<Vec<_>>().join(", then "),
    };
    let time = plan
        .seconds
        .map_or(String::new(), |seconds| format!("; about {} in total", Seconds(seconds)));
    format!("{what}, {} at a time{time}\n", plan.jobs.min(plan.runs.len()))
}

fn listing(arguments: &Arguments, plan: &Plan) -> String {
    let line = |run: &Run| format!("{}  {}\n", run.name, command(arguments, plan, run));
    plan.runs.iter().map(line).collect()
}

/// The last lines: the best run and the command that trains it.
fn render_best(arguments: &Arguments, ranking: &Ranking<'_>) -> String {
    let plan = ranking.plan;
    let Some(best) = ranking.best() else {
        return "\nall runs diverged; try smaller values of optim.lr\n".to_owned();
    };
    let value = best.outcome.figures.get(plan.by.name()).copied().unwrap_or(f64::NAN);
    let (name, metric) = (&best.run.name, plan.by.label());
    let sets = best.run.sets(&plan.keys).join(" ");
    let command = command(arguments, plan, best.run);
    format!("\nbest  {name}: {sets}, {metric} {}\ntrain {command}\n", plan.by.format(value))
}

/// The command line that trains one run.
fn command(arguments: &Arguments, plan: &Plan, run: &Run) -> String {
    let arguments = arguments.recipe.with(&run.sets(&plan.keys)).to_arguments();
    let arguments: Vec<String> = arguments.iter().map(|one| quoted(one)).collect();
    format!("lockstep train {}", arguments.join(" "))
}

/// An argument quoted for a shell.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !argument.is_empty() && argument.chars().all(is_plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_a_shell_would_split_are_quoted() {
        assert_eq!(quoted("optim.lr=1e-3"), "optim.lr=1e-3");
        assert_eq!(quoted("run.workers={min=2,max=4}"), "'run.workers={min=2,max=4}'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn the_announcement_lists_every_rung() {
        let values: Vec<_> = ["1", "2", "3", "4"].map(|value| (value, "a")).to_vec();
        let plan = table::tests::plan(&values, 2);
        assert_eq!(
            announcement(&plan),
            "4 runs of 25 steps, then 2 runs of 50 steps, then 1 run of 100 steps, 1 at a time\n"
        );
    }
}
