//! `lockstep train`: trains the model of a recipe.

use crate::automatic::{self, AutomaticSettings, Purpose};
use crate::calibration_file;
use crate::commands::serve::DEFAULT_LISTEN;
use crate::common_flags::CommonFlags;
use crate::console;
use crate::diagnosis;
use crate::epochs;
use crate::failure::Failure;
use crate::machine_peak;
use crate::output;
use crate::prediction;
use crate::quantity::{digits, percent, si_bytes};
use crate::rank_flags::RankFlags;
use crate::recipe_args::RecipeArguments;
use crate::resume_command::restart_command;
use crate::sample::sample;
use crate::training_dashboard::TrainingDashboard;
use crate::workers::{self, LaunchOptions, RunDir, print_status};
use lockstep_comm::Comm;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_config::{DataFormat, Recipe, lints};
use lockstep_planner::Forecast;
use lockstep_planner::memory::Process;
use lockstep_planner::traffic::Interconnect;
use lockstep_platform::World;
use lockstep_telemetry::Sink;
use lockstep_trainer::{Options, RunFolder, Summary, Target, TrainError};
use std::f64::consts::LN_2;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Columns of the labels in a report.
const LABEL_COLUMNS: usize = 13;

/// Train the model of a recipe
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep train                                       default recipe on the bundled corpus
  lockstep train --preset tiny --steps 20              a short run
  lockstep train --workers 4                           four workers, bit-identical result
  lockstep train my.toml --data book.txt --lr 1e-3     your own text and learning rate
  lockstep train my.toml --set optim.clip=0.5          any key; `lockstep config` lists them
  lockstep train my.toml --stop-after 100              stop early, then resume:
  lockstep train --resume runs/0001                    by the run's own recipe
  lockstep train my.toml --from runs/0001 --warm-up 50   start from matching tensors
  lockstep train --set run.restarts=3                  restart lost workers
  lockstep train --set 'run.workers={min=2,max=4}'     elastic: continue without lost workers
  lockstep train my.toml --listen 10.0.0.1:29500       accept remote workers, which join with:
  lockstep train my.toml --join 10.0.0.1:29500
  lockstep train --preset digits                       a small problem; also quadratic, ridge
  lockstep train --serve                               watch it in a browser
  lockstep train --json > run.json                     JSON summary

This process launches the workers (run.workers, run.isolation) and prefixes each line of their
standard error with the rank. A process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its
environment is a worker itself, so torchrun and other launchers work too; so is one that mpirun,
srun or an indexed job of Kubernetes started, or that has --rank, --world-size and --master.

Ctrl-C saves a checkpoint after the step, exits with code 130 and prints the command that resumes;
a second Ctrl-C stops at once.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    #[command(flatten)]
    flags: CommonFlags,
    /// Resume the run in this folder, by its own recipe unless a recipe or preset is given (run.*
    /// and parallel.* may differ)
    #[arg(long, value_name = "RUN")]
    resume: Option<PathBuf>,
    /// Initialize from the tensors of this run, checkpoint or model that match the recipe's model;
    /// the others are initialized randomly
    #[arg(long, value_name = "FOLDER", conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// Warm-up steps of the learning rate and the optimizer's moments after --from
    #[arg(long, value_name = "STEPS", requires = "from")]
    warm_up: Option<u64>,
    /// Stop after this many steps
    #[arg(long, value_name = "STEPS")]
    stop_after: Option<u64>,
    /// Accept remote workers at this address (host:port); they may join and leave
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Join the run that listens at this address as a remote worker
    #[arg(long, value_name = "ADDR", conflicts_with = "listen")]
    join: Option<String>,
    /// Serve the dashboard of the run in the process of rank 0 while it trains (default address:
    /// 127.0.0.1 with a free port); lockstep serve shows runs of other commands
    #[arg(
        long,
        value_name = "ADDR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = DEFAULT_LISTEN
    )]
    serve: Option<String>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: RankFlags,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let world = &arguments.place.apply(world)?;
    let process = prediction::measure_process(world);
    let mut recipe = arguments.flags.add_to(&arguments.recipe)?.with(&from_settings(arguments));
    if let Some(run) = &arguments.resume {
        recipe = recipe.or_recorded_in(run, world);
    }
    let (recipe, settings) = recipe.resolve_for(Purpose::Run(None), world, None)?;
    if let Some(addr) = arguments.join.as_ref().filter(|_| !workers::is_worker(world)) {
        lockstep_trainer::check_inputs(&recipe, world)?;
        return workers::serve(world, addr, arguments.quiet);
    }
    let (resume, stop_after) = (arguments.resume.clone(), arguments.stop_after);
    let options = move || Options { resume: resume.clone(), stop_after, ..Options::default() };
    let requested = options();
    // Set where this process made the checks.
    let (text, peak) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let (found, found_peak) = (Arc::clone(&text), Arc::clone(&peak));
    let check = || {
        arguments.listen.iter().try_for_each(|addr| workers::check_listen(&recipe, addr))?;
        // Memory per worker is largest with the fewest workers.
        let fewest = recipe.with_workers(recipe.worker_counts()[0]);
        prediction::check_memory(&fewest, world, process)?;
        prediction::check_memory(&recipe, world, process)?;
        let held = lockstep_trainer::check(&recipe, world, &requested);
        let held = Bytes(held.map_err(|error| with_restart(error, world))? as u64);
        prediction::check_memory(&recipe, world, Process { text: held, ..process })?;
        if !arguments.quiet {
            print_findings(&recipe, settings.as_ref(), world);
        }
        let mut env = prediction::text_env(*found.get_or_init(|| held));
        env.extend(epochs::to_env(&recipe));
        if settings.is_some() {
            env.extend(automatic::to_env(&recipe));
        }
        // Other hosts may join, and a quiet run shows no share.
        if !arguments.quiet && arguments.listen.is_none() {
            let peak = *found_peak.get_or_init(|| machine_peak::find(&recipe, world));
            let calibrated = machine_peak::calibrated_step(&recipe, world);
            if let Some(warning) = machine_peak::long_step_warning(&recipe, peak, calibrated) {
                print_status(&console::wrap_status(world, &format!("warning: {warning}")));
            }
            env.extend(machine_peak::to_env(peak));
        }
        let listen = arguments.listen.clone();
        Ok(LaunchOptions { listen, env, ..launch_options(&recipe, world)? })
    };
    let (quiet, own_world) = (arguments.quiet, World::clone(world));
    let run_dir = RunDir::default();
    let shared_dir = run_dir.clone();
    let (listen, dashboard) = (arguments.serve.clone(), TrainingDashboard::default());
    let work = move |recipe: &Recipe, comm: &Comm| {
        let mut options = options();
        workers::prepare(&mut options, &shared_dir, comm, &own_world);
        // Only rank 0 prints and records predictions.
        if comm.rank().0 == 0 {
            dashboard.attach(&mut options, listen.as_deref(), process, &own_world);
            options.peak_flops_per_second =
                *peak.get_or_init(|| machine_peak::of_worker(recipe, &own_world));
            let (costs, domains) = comm.costs();
            let passed = || prediction::text_bytes_from_env(recipe, &own_world);
            let process = Process { text: *text.get_or_init(passed), ..process };
            // The launcher refused what does not fit; other hosts may have more memory.
            if let Ok(forecast) = prediction::predict(recipe, &own_world, process) {
                let machine = calibration_file::load(recipe, &own_world).ok();
                let wires = Interconnect { costs, domains }.with_algorithms_of(recipe);
                let forecast = forecast.over(recipe, &wires, machine.as_ref());
                let rows = prediction::sparse_rows(recipe, &own_world, &forecast);
                let forecast = forecast.with_rows(recipe, &wires, &rows);
                options.predicted = prediction::predicted(recipe, &forecast);
                if !quiet {
                    options.sinks = sinks(recipe, &own_world, &forecast);
                }
            }
        }
        lockstep_trainer::train(recipe, &own_world, comm, options)
    };
    let Some(summary) = workers::run(&recipe, world, quiet, &run_dir, check, work)? else {
        return Ok(());
    };
    if arguments.json {
        return console::print_result(world, &output::to_json(&summary));
    }
    let has_sample = !recipe.model.family.is_problem() && !quiet;
    let text = if has_sample { sample(&summary, &recipe, world)? } else { String::new() };
    let verdict = diagnosis::verdict_line(Path::new(&summary.run_dir), world);
    // The hashes are the last lines, where they are found and compared.
    let report = console::wrap_report(world, &report(&summary, &recipe, verdict), LABEL_COLUMNS);
    console::print_result(world, &(text + &report))
}

/// Prints automatic settings and warnings about a recipe.
fn print_findings(recipe: &Recipe, settings: Option<&AutomaticSettings>, world: &World) {
    let settings = settings.map(ToString::to_string);
    let warnings = lints::findings(recipe).into_iter().map(|finding| format!("warning: {finding}"));
    for line in settings.into_iter().chain(warnings) {
        print_status(&console::wrap_status(world, &line));
    }
}

/// Settings of `--from`.
fn from_settings(arguments: &Arguments) -> Vec<String> {
    let Some(from) = &arguments.from else { return Vec::new() };
    let from = [format!("model.from={}", from.display()), "model.partial=true".to_owned()];
    let warm_up = arguments.warm_up.map(|steps| format!("optim.warmup_steps={steps}"));
    from.into_iter().chain(warm_up).collect()
}

/// The failure of a check, with the command that starts a run again that cannot be resumed.
fn with_restart(error: TrainError, world: &World) -> Failure {
    let next = match &error {
        TrainError::NoCheckpoint { dir, .. } => {
            let program = std::env::args_os().next().unwrap_or_else(|| "lockstep".into());
            restart_command(&program.to_string_lossy(), Path::new(dir), world)
        }
        _ => None,
    };
    Failure::from(error).with_next(next)
}

/// Options of the launcher. All attempts of a run share the run directory of the first.
fn launch_options(recipe: &Recipe, world: &World) -> Result<LaunchOptions, Failure> {
    let restarts = recipe.run.restarts;
    let run_dir = match (restarts, recipe.run.elastic) {
        (0, None) => None,
        _ => Some(RunFolder::planned(recipe, world)?.path().to_owned()),
    };
    Ok(LaunchOptions { restarts, run_dir, ..workers::saving_options(recipe) })
}

/// Console output of a run: lines about the recipe, then progress.
fn sinks(recipe: &Recipe, world: &World, forecast: &Forecast) -> Vec<Box<dyn Sink>> {
    let mut line = batch_line(recipe) + &epochs::render_line(recipe).unwrap_or_default();
    line += &fine_tuning_line(recipe);
    line += &(layout_dependence_line(recipe) + &emulation_line(recipe));
    line += &prediction::render_line(recipe, world, forecast);
    vec![Box::new(console::console(world, line))]
}

/// The global batch as micro-batch size x micro-batches x data-parallel workers.
fn batch_line(recipe: &Recipe) -> String {
    let (batch, microbatch_size) = (recipe.train.batch, recipe.train.microbatch_size);
    let shares = recipe.leaf_shares();
    let microbatches: Vec<_> =
        shares.iter().map(|leaves| leaves * recipe.microbatches_per_leaf()).collect();
    let (replicas, each) = (microbatches.len(), recipe.parallel.workers_per_replica());
    let plural = if replicas == 1 { "" } else { "s" };
    let workers = match each {
        1 => format!("{replicas} data-parallel worker{plural}"),
        _ => format!("{replicas} data-parallel replica{plural} of {each} workers"),
    };
    if microbatches.iter().all(|each| *each == microbatches[0]) {
        let each = microbatches[0];
        let plural = if each == 1 { "" } else { "es" };
        let work = format!("{microbatch_size} x {each} micro-batch{plural} x {workers}");
        return format!("global batch {batch} = micro-batch size {work}\n");
    }
    let microbatches: Vec<_> = microbatches.iter().map(ToString::to_string).collect();
    let microbatches = microbatches.join(" + ");
    format!(
        "global batch {batch} = micro-batch size {microbatch_size} x ({microbatches}) \
         micro-batches on {workers}\n"
    )
}

/// A line where the rule of fine-tuning chose the learning rate.
fn fine_tuning_line(recipe: &Recipe) -> String {
    recipe.fine_tuning_rule().map_or(String::new(), |line| line + "\n")
}

/// A line where results depend on the layout.
fn layout_dependence_line(recipe: &Recipe) -> String {
    recipe.layout_dependence().map_or(String::new(), |line| line + "\n")
}

/// A line where links or workers are emulated, so that figures are not of this machine.
fn emulation_line(recipe: &Recipe) -> String {
    let description = recipe.emulate.description();
    description.map_or(String::new(), |text| format!("emulated: {text}\n"))
}

/// The last lines of a run.
fn report(summary: &Summary, recipe: &Recipe, verdict: Option<String>) -> String {
    let mut text = String::new();
    let Summary { steps, first_loss, final_loss, baseline_loss, .. } = summary;
    let _ = writeln!(text, "loss         {first_loss:.4} -> {final_loss:.4} in {steps} steps");
    if let Some(solution) = render_solution(summary) {
        let _ = writeln!(text, "solution     {solution}");
    } else if let (true, Some(loss)) = (recipe.finetune.has_pairs(), summary.validation_loss) {
        let _ = writeln!(
            text,
            "validation   {loss:.4} per pair, ln 2 = {LN_2:.4} before training; lockstep eval has \
             accuracy and margin"
        );
    } else if let Some(loss) = summary.validation_loss {
        let baseline = &summary.baseline;
        let is_chat = recipe.data.format == DataFormat::Chat;
        let unit = if baseline.starts_with("byte") { "byte" } else { "token" };
        let unit = if is_chat { format!("answered {unit}") } else { unit.to_owned() };
        let _ = writeln!(
            text,
            "validation   {loss:.4} nats per {unit}; {baseline} baseline {baseline_loss:.4}"
        );
    }
    if let Some(Target { loss, steps, tokens, wire_bytes, seconds, .. }) = &summary.target {
        let bytes = si_bytes(*wire_bytes);
        let _ = writeln!(
            text,
            "target       {loss} with {steps} steps, {tokens} tokens, {bytes} sent, {seconds:.1} s"
        );
    }
    let _ = writeln!(
        text,
        "speed        {} tokens/s, median step {}, data loading {}",
        digits(summary.tokens_per_second),
        Seconds(summary.step_seconds_median),
        Seconds(summary.data_wait_seconds)
    );
    if let Some(mfu) = summary.mfu {
        let _ = writeln!(text, "MFU          {} of this machine's peak FLOP/s", percent(mfu));
    }
    text += &privacy_line(summary.asynchronous.epsilon.zip(summary.asynchronous.delta));
    text += &straggler_lines(summary);
    if let Some(emulated) = &summary.emulated {
        let _ = writeln!(text, "emulated     {emulated}");
    }
    let _ = writeln!(text, "peak memory  {}", Bytes(summary.peak_rss_bytes));
    if let Some(device) = summary.device_bytes {
        let _ = writeln!(text, "on device    {}", Bytes(device));
    }
    text += &prediction_line(summary);
    if let Some(verdict) = verdict {
        let _ = writeln!(text, "verdict      {verdict}");
    }
    let _ = writeln!(text, "run folder   {}", summary.run_dir);
    let _ = writeln!(text, "losses_hash  {}", summary.losses_hash);
    let _ = writeln!(text, "weights_hash {}", summary.weights_hash);
    text
}

/// Differential privacy of a client: epsilon and delta.
fn privacy_line(spent: Option<(f64, f64)>) -> String {
    let line = |(epsilon, delta)| {
        format!("privacy      epsilon {} of every client, at delta {delta}\n", digits(epsilon))
    };
    spent.map_or(String::new(), line)
}

/// Stragglers: workers that others waited for, or skipped.
fn straggler_lines(summary: &Summary) -> String {
    let stragglers = &summary.stragglers;
    let missed = |rank: usize| stragglers.missed_steps_by_rank[rank];
    let skipped = |rank: usize| match missed(rank) {
        0 => String::new(),
        steps => format!(", skipped in {steps} of {} steps", summary.steps),
    };
    let mut lines = String::new();
    if let (Some(rank), Some(times)) = (stragglers.slow_rank, stragglers.slow_factor) {
        let waits = &stragglers.straggler_wait_seconds_by_rank;
        let wait = waits.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            lines,
            "straggler    worker {rank}, {times:.1}x the median micro-batch time{}; others wait up \
             to {} per step",
            skipped(rank),
            Seconds(wait)
        );
    }
    for rank in (0..stragglers.missed_steps_by_rank.len())
        .filter(|rank| Some(*rank) != stragglers.slow_rank)
    {
        if missed(rank) > 0 {
            let _ = writeln!(lines, "             worker {rank}{}", skipped(rank));
        }
    }
    lines
}

/// Predictions with their errors.
fn prediction_line(summary: &Summary) -> String {
    let mut parts = Vec::new();
    let error = |predicted: f64, measured: f64| 100.0 * (predicted / measured - 1.0);
    if let Some(step) = summary.predicted_step_seconds {
        let error = error(step, summary.step_seconds_median);
        parts.push(format!("step {} ({error:+.0} %)", Seconds(step)));
    }
    if let Some(peak) = summary.predicted_peak_bytes {
        let error = error(peak as f64, summary.peak_rss_bytes as f64);
        parts.push(format!("peak {} ({error:+.0} %)", Bytes(peak)));
    }
    if let Some((predicted, measured)) = summary.predicted_device_bytes.zip(summary.device_bytes) {
        let error = error(predicted as f64, measured as f64);
        parts.push(format!("on device {} ({error:+.1} %)", Bytes(predicted)));
    }
    if let Some(wire) = summary.predicted_wire_bytes.filter(|wire| *wire > 0) {
        let error = error(wire as f64, summary.wire_bytes as f64);
        let is_exact = wire == summary.wire_bytes;
        let verdict = if is_exact { "exact".to_owned() } else { format!("{error:+.2} %") };
        parts.push(format!("sent per step {} ({verdict})", si_bytes(wire)));
    }
    if parts.is_empty() { String::new() } else { format!("predicted    {}\n", parts.join(", ")) }
}

/// Quality of a small problem's solution.
fn render_solution(summary: &Summary) -> Option<String> {
    let solution = &summary.solution;
    if let Some(accuracy) = solution.accuracy {
        return Some(format!("{:.2} % validation accuracy", 100.0 * accuracy));
    }
    let (excess, distance) = (solution.suboptimality?, solution.distance?);
    let optimum = solution.optimum_loss?;
    Some(format!("loss {excess:.3e} above the optimum {optimum:.6}, distance {distance:.3e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    fn line(sets: &[&str]) -> String {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("bible-small".to_owned());
        let sources = Sources { sets, preset, ..Sources::default() };
        batch_line(&resolve(&sources).expect("a sound recipe"))
    }

    #[test]
    fn a_run_reports_when_its_result_depends_on_the_layout() {
        let line = |sets: &[&str]| {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            layout_dependence_line(
                &resolve(&Sources { sets, ..Sources::default() }).expect("sound"),
            )
        };
        let cut = ["parallel.tensor=2", "run.workers=2"];
        assert_eq!(
            line(&cut),
            "parallel.tensor = 2 is more than numerics.invariant_tensor_up_to = 1: the sums of \
             sharded layers follow the tensor-parallel ranks, so another parallel.tensor gives \
             other bits\n"
        );
        assert_eq!(line(&[cut[0], cut[1], "numerics.invariant_tensor_up_to=2"]), "");
        assert_eq!(line(&["numerics.invariant_tensor_up_to=2"]), "");
        let local = ["data.placement=local", "data.source=text-{rank}.txt"];
        assert!(line(&local).starts_with("data.placement = local: "));
    }

    #[test]
    fn noise_on_federated_updates_is_reported_as_epsilon() {
        assert_eq!(privacy_line(None), "");
        assert_eq!(
            privacy_line(Some((12.345, 1e-5))),
            "privacy      epsilon 12.3 of every client, at delta 0.00001\n"
        );
    }

    #[test]
    fn the_global_batch_is_size_times_microbatches_times_workers() {
        let one = line(&["run.workers=1"]);
        assert_eq!(
            one,
            "global batch 16 = micro-batch size 2 x 8 micro-batches x 1 data-parallel worker\n"
        );
        let four = line(&["run.workers=4"]);
        assert_eq!(
            four,
            "global batch 16 = micro-batch size 2 x 2 micro-batches x 4 data-parallel workers\n"
        );
        let three = line(&["run.workers=3", "train.batch=32"]);
        assert_eq!(
            three,
            "global batch 32 = micro-batch size 2 x (6 + 6 + 4) micro-batches on 3 data-parallel \
             workers\n"
        );
        let unequal = line(&["run.workers=2", "parallel.leaf_shares=5,3"]);
        assert_eq!(
            unequal,
            "global batch 16 = micro-batch size 2 x (5 + 3) micro-batches on 2 data-parallel \
             workers\n"
        );
        let stages = line(&["run.workers=6", "parallel.pipeline=3"]);
        assert_eq!(
            stages,
            "global batch 16 = micro-batch size 2 x 4 micro-batches x 2 data-parallel replicas of \
             3 workers\n"
        );
    }
}
