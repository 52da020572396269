//! `lockstep train`: train as a recipe says.

use crate::failure::Failure;
use crate::forecast;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers::{self, Care};
use lockstep_comm::Comm;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_config::{Recipe, lints};
use lockstep_planner::Forecast;
use lockstep_planner::memory::Process;
use lockstep_planner::traffic::Wires;
use lockstep_platform::World;
use lockstep_telemetry::{Console, Event, Sink, Stamped, TelemetryError};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::sampling::Sampling;
use lockstep_trainer::{Options, RunFolder, Summary, Target};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Characters of sample text after a run.
const SAMPLE_TOKENS: usize = 400;

/// Train a model as a recipe says
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep train                                       the default recipe on the bundled corpus
  lockstep train --preset tiny --set train.steps=20    a quick look
  lockstep train --set run.workers=4                   four workers; the result is the same
  lockstep train my.toml --set data.source=book.txt    your own text
  lockstep train my.toml --stop-after 100              stop early, then go on where it stopped:
  lockstep train my.toml --resume runs/0001
  lockstep train my.toml --from runs/0001 --warm-up 50   what fits of another model's weights
  lockstep train --set run.restarts=3                  workers that die are started again
  lockstep train --set 'run.workers={min=2,max=4}'     and the run goes on without those gone
  lockstep train my.toml --listen 10.0.0.1:29500       and others join it from their hosts:
  lockstep train my.toml --join 10.0.0.1:29500
  lockstep train --preset digits                       a small problem: see also quadratic, ridge
  lockstep train --json > run.json                     figures for a program

Workers are processes that this one starts (run.workers, run.isolation); each line they write to
standard error begins with their rank. A process that finds RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in its environment is itself a worker, so other launchers can start them too.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Go on from where the run in this folder stopped (run.* and parallel.* may differ)
    #[arg(long, value_name = "RUN")]
    resume: Option<PathBuf>,
    /// Take from this run, checkpoint or model what tensors it has in common with the recipe's own
    /// model, and begin the others afresh
    #[arg(long, value_name = "FOLDER", conflicts_with = "resume")]
    from: Option<PathBuf>,
    /// Steps of --from in which the learning rate rises and the optimizer's moments settle
    #[arg(long, value_name = "STEPS", requires = "from")]
    warm_up: Option<u64>,
    /// Stop after this many steps of the recipe
    #[arg(long, value_name = "STEPS")]
    stop_after: Option<u64>,
    /// Let workers of other hosts come and go; they call this address (host:port)
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Offer a worker of this host to the run that listens at this address
    #[arg(long, value_name = "ADDR", conflicts_with = "listen")]
    join: Option<String>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let process = forecast::process(world);
    let recipe = arguments.recipe.with(&partial(arguments)).resolve(world)?;
    if let Some(addr) = arguments.join.as_ref().filter(|_| !workers::is_worker(world)) {
        lockstep_trainer::check_inputs(&recipe, world)?;
        return workers::serve(world, addr, arguments.quiet);
    }
    let (resume, stop_after) = (arguments.resume.clone(), arguments.stop_after);
    let options = move || Options { resume: resume.clone(), stop_after, ..Options::default() };
    let asked = options();
    // Known where the checks were made in this process.
    let text = Arc::new(OnceLock::new());
    let found = Arc::clone(&text);
    let check = || {
        arguments.listen.iter().try_for_each(|addr| workers::check_listen(&recipe, addr))?;
        // With the fewest workers each of them has the most to hold.
        let fewest = recipe.sized(recipe.worker_sizes()[0]);
        forecast::fits(&fewest, world, process)?;
        forecast::fits(&recipe, world, process)?;
        let held = Bytes(lockstep_trainer::check(&recipe, world, &asked)? as u64);
        forecast::fits(&recipe, world, Process { text: held, ..process })?;
        let findings = if arguments.quiet { Vec::new() } else { lints::findings(&recipe) };
        for finding in findings {
            workers::tell(&format!("warning: {finding}\n"));
        }
        let told = forecast::told(*found.get_or_init(|| held));
        let listen = arguments.listen.clone();
        Ok(workers::Care { listen, told, ..care_of(&recipe, world)? })
    };
    let (quiet, own_world) = (arguments.quiet, World::clone(world));
    let life = move |recipe: &Recipe, comm: &Comm| {
        let mut options = options();
        options.life = workers::life(&own_world);
        // The others neither say nor keep anything of the forecast.
        if comm.rank().0 == 0 {
            let (costs, domains) = comm.costs();
            let told = || forecast::text_bytes_told(recipe, &own_world);
            let process = Process { text: *text.get_or_init(told), ..process };
            // What does not fit has been refused; other hosts may have more room than this one.
            if let Ok(forecast) = forecast::of(recipe, &own_world, process) {
                let machine = forecast::machine(&own_world).ok();
                let wires = Wires { costs, domains };
                let forecast = forecast.over(recipe, &wires, machine.as_ref());
                let rows = forecast::rows(recipe, &own_world, &forecast);
                let forecast = forecast.with_rows(recipe, &wires, &rows);
                options.predicted = forecast::predicted(recipe, &forecast);
                if !quiet {
                    options.sinks = sinks(recipe, &own_world, &forecast);
                }
            }
        }
        lockstep_trainer::train(recipe, &own_world, comm, options)
    };
    let Some(summary) = workers::run(&recipe, world, quiet, check, life)? else { return Ok(()) };
    if arguments.json {
        return output::json(&summary);
    }
    output::text(&report(&summary))?;
    if recipe.model.family.is_problem() {
        return Ok(());
    }
    output::text(&sample(&summary, &recipe, world)?)
}

/// What `--from` stands for.
fn partial(arguments: &Arguments) -> Vec<String> {
    let Some(from) = &arguments.from else { return Vec::new() };
    let from = [format!("model.from={}", from.display()), "model.partial=true".to_owned()];
    let warm_up = arguments.warm_up.map(|steps| format!("optim.warmup_steps={steps}"));
    from.into_iter().chain(warm_up).collect()
}

/// What a launcher must know. All lives of a run share the folder that is free before the first.
fn care_of(recipe: &Recipe, world: &World) -> Result<Care, Failure> {
    let (restarts, saves_on_request) = (recipe.run.restarts, recipe.checkpoint.is_on());
    let run_dir = match (restarts, recipe.run.elastic) {
        (0, None) => None,
        _ => Some(RunFolder::planned(recipe, world)?.path().to_owned()),
    };
    Ok(Care { restarts, run_dir, saves_on_request, ..Care::default() })
}

/// What people see of a run: how a batch comes about, then progress.
fn sinks(recipe: &Recipe, world: &World, forecast: &Forecast) -> Vec<Box<dyn Sink>> {
    let mut line = batch_line(recipe) + &promise_line(recipe) + &emulated_line(recipe);
    line += &forecast::line(recipe, world, forecast);
    let batch = Announcement { line };
    let console = Console::new(Box::new(std::io::stderr()), workers::surface(world));
    vec![Box::new(batch), Box::new(console)]
}

/// Says a line when the run has begun, and not when it is refused at the last moment.
struct Announcement {
    line: String,
}

impl Sink for Announcement {
    fn write(&mut self, stamped: &Stamped) -> Result<(), TelemetryError> {
        if matches!(stamped.event, Event::RunStarted { .. }) {
            let written = std::io::stderr().write_all(self.line.as_bytes());
            let (sink, reason) = ("standard error".to_owned(), |e: std::io::Error| e.to_string());
            written.map_err(|error| TelemetryError::Write { sink, reason: reason(error) })?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(())
    }
}

/// What a step learns from, and who computes it.
fn batch_line(recipe: &Recipe) -> String {
    let (batch, microbatch_size) = (recipe.train.batch, recipe.train.microbatch_size);
    let shares = recipe.leaf_shares();
    let microbatches: Vec<_> =
        shares.iter().map(|leaves| leaves * recipe.microbatches_per_leaf()).collect();
    let (copies, each) = (microbatches.len(), recipe.parallel.workers_per_copy());
    let plural = if copies == 1 { "" } else { "s" };
    let workers = match each {
        1 => format!("{copies} worker{plural}"),
        _ => format!("{copies} cop{} of {each} workers", if copies == 1 { "y" } else { "ies" }),
    };
    if microbatches.iter().all(|each| *each == microbatches[0]) {
        let each = microbatches[0];
        let work = format!("microbatch {microbatch_size} x {each} micro-batches x {workers}");
        return format!("batch {batch} sequences = {work}\n");
    }
    let microbatches: Vec<_> = microbatches.iter().map(ToString::to_string).collect();
    let microbatches = microbatches.join(" + ");
    format!(
        "batch {batch} sequences = microbatch {microbatch_size} x ({microbatches}) micro-batches on {workers}\n"
    )
}

/// What the run cannot promise.
fn promise_line(recipe: &Recipe) -> String {
    recipe.bits_depend_on().map_or(String::new(), |words| words + "\n")
}

/// What the figures of the run are not those of this machine for.
fn emulated_line(recipe: &Recipe) -> String {
    let words = recipe.emulate.in_words();
    words.map_or(String::new(), |words| format!("emulated: {words}\n"))
}

/// The last lines of a run: what came out.
fn report(summary: &Summary) -> String {
    let mut text = String::new();
    let Summary { steps, first_loss, final_loss, baseline_loss, .. } = summary;
    let _ = writeln!(text, "loss         {first_loss:.4} -> {final_loss:.4} in {steps} steps");
    if let Some(verdict) = verdict(summary) {
        let _ = writeln!(text, "solution     {verdict}");
    } else if let Some(loss) = summary.validation_loss {
        let baseline = &summary.baseline;
        let unit = if baseline.starts_with("byte") { "byte" } else { "token" };
        let _ = writeln!(
            text,
            "validation   {loss:.4} nats a {unit}; the corpus' {baseline} alone: {baseline_loss:.4}"
        );
    }
    if let Some(Target { loss, steps, tokens, wire_bytes, seconds, .. }) = &summary.target {
        let bytes = Bytes(*wire_bytes);
        let _ = writeln!(
            text,
            "target       {loss} with {steps} steps, {tokens} tokens, {bytes} moved, {seconds:.1} s"
        );
    }
    let _ = writeln!(
        text,
        "speed        {:.0} tokens/s, median step {:.3} s, waited {:.3} s for data",
        summary.tokens_per_second, summary.step_seconds_median, summary.data_wait_seconds
    );
    text += &slow_line(summary);
    if let Some(words) = &summary.emulated {
        let _ = writeln!(text, "emulated     {words}");
    }
    let _ = writeln!(text, "peak memory  {}", Bytes(summary.peak_rss_bytes));
    text += &beside(summary);
    let _ = writeln!(text, "losses_hash  {}", summary.losses_hash);
    let _ = writeln!(text, "weights_hash {}", summary.weights_hash);
    let _ = writeln!(text, "run folder   {}", summary.run_dir);
    text
}

/// The worker that the others wait for, or go without.
fn slow_line(summary: &Summary) -> String {
    let pace = &summary.pace;
    let missed = |rank: usize| pace.missed_steps_by_rank[rank];
    let often = |rank: usize| match missed(rank) {
        0 => String::new(),
        steps => format!(", missing in {steps} of {} steps", summary.steps),
    };
    let mut lines = String::new();
    if let (Some(rank), Some(times)) = (pace.slow_rank, pace.slow_factor) {
        let often = often(rank);
        let _ =
            writeln!(lines, "slow         worker {rank}, {times:.1} times the middle one{often}");
    }
    for rank in (0..pace.missed_steps_by_rank.len()).filter(|rank| Some(*rank) != pace.slow_rank) {
        if missed(rank) > 0 {
            let _ = writeln!(lines, "             worker {rank}{}", often(rank));
        }
    }
    lines
}

/// What was predicted beside what was measured.
fn beside(summary: &Summary) -> String {
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
    if let Some(wire) = summary.predicted_wire_bytes.filter(|wire| *wire > 0) {
        let error = error(wire as f64, summary.wire_bytes as f64);
        let is_exact = wire == summary.wire_bytes;
        let verdict = if is_exact { "exact".to_owned() } else { format!("{error:+.2} %") };
        parts.push(format!("moved a step {} ({verdict})", Bytes(wire)));
    }
    if parts.is_empty() { String::new() } else { format!("predicted    {}\n", parts.join(", ")) }
}

/// How good the solution of a small problem is.
fn verdict(summary: &Summary) -> Option<String> {
    let verdict = &summary.verdict;
    if let Some(accuracy) = verdict.accuracy {
        return Some(format!("{:.2} % of the held-out samples are right", 100.0 * accuracy));
    }
    let (surplus, distance) = (verdict.suboptimality?, verdict.distance?);
    let optimum = verdict.optimum_loss?;
    Some(format!("{surplus:.3e} above the optimum {optimum:.6}, {distance:.3e} away from it"))
}

/// A taste of what the model writes.
fn sample(summary: &Summary, recipe: &Recipe, world: &World) -> Result<String, Failure> {
    let folder = RunFolder::finished(Path::new(&summary.run_dir), world)?;
    let generator = Generator::open(&folder, recipe, world)?;
    let sampling = Sampling { temperature: 0.7, top_k: 0, top_p: 0.95, seed: recipe.train.seed };
    let tokens = generator.generate("\n", SAMPLE_TOKENS, sampling, |_| true)?;
    let text = generator.tokenizer().decode(&tokens);
    Ok(format!("\nA sample (lockstep generate makes more):\n\n{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    fn line(sets: &[&str]) -> String {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        batch_line(&resolve(&Sources { sets, ..Sources::default() }).expect("a sound recipe"))
    }

    #[test]
    fn a_run_says_in_words_what_its_bits_depend_on() {
        let line = |sets: &[&str]| {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            promise_line(&resolve(&Sources { sets, ..Sources::default() }).expect("sound"))
        };
        let cut = ["parallel.tensor=2", "run.workers=2"];
        assert_eq!(
            line(&cut),
            "parallel.tensor = 2 is more than numerics.invariant_tensor_up_to = 1: sums over \
             slices of layers go by the workers that hold them, so another parallel.tensor gives \
             other bits\n"
        );
        assert_eq!(line(&[cut[0], cut[1], "numerics.invariant_tensor_up_to=2"]), "");
        assert_eq!(line(&["numerics.invariant_tensor_up_to=2"]), "");
        let local = ["data.placement=local", "data.source=text-{rank}.txt"];
        assert!(line(&local).starts_with("data.placement = local: "));
    }

    #[test]
    fn a_batch_is_microbatches_times_microbatches_times_workers() {
        let one = line(&["run.workers=1"]);
        assert_eq!(one, "batch 16 sequences = microbatch 2 x 8 micro-batches x 1 worker\n");
        let four = line(&["run.workers=4"]);
        assert_eq!(four, "batch 16 sequences = microbatch 2 x 2 micro-batches x 4 workers\n");
        let three = line(&["run.workers=3", "train.batch=32"]);
        assert_eq!(
            three,
            "batch 32 sequences = microbatch 2 x (6 + 6 + 4) micro-batches on 3 workers\n"
        );
        let unequal = line(&["run.workers=2", "parallel.shares=5,3"]);
        assert_eq!(
            unequal,
            "batch 16 sequences = microbatch 2 x (5 + 3) micro-batches on 2 workers\n"
        );
        let stages = line(&["run.workers=6", "parallel.pipeline=3"]);
        assert_eq!(
            stages,
            "batch 16 sequences = microbatch 2 x 4 micro-batches x 2 copies of 3 workers\n"
        );
    }
}
