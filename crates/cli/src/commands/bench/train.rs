//! `lockstep bench train`: throughput of training steps and their share of the machine's peak.

use crate::failure::Failure;
use crate::output;
use crate::quantity::{digits, percent};
use crate::recipe_args::RecipeArguments;
use crate::workers::{self, LaunchOptions, RunDir};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_platform::World;
use lockstep_trainer::bench::bench_train;

/// Time training steps: tokens/s and share of the machine's peak FLOP/s
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench train                        6 layers x 384, context 256, batch 16
  lockstep bench train --set run.threads=1 --steps 5
  lockstep bench train my.toml --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Timed steps, after two warm-up steps
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    if arguments.steps == 0 {
        return Err(Failure::user("--steps 0 measures nothing; try 10"));
    }
    let recipe = arguments.recipe.resolve_with_default(world, Some("bench"))?;
    let (steps, own_world) = (arguments.steps, World::clone(world));
    let check = || {
        lockstep_trainer::check_inputs(&recipe, world)?;
        Ok(LaunchOptions::default())
    };
    let work = move |recipe: &Recipe, comm: &Comm| bench_train(recipe, &own_world, comm, steps);
    let Some(bench) = workers::run(&recipe, world, true, &RunDir::default(), check, work)? else {
        return Ok(());
    };
    if arguments.json {
        return output::json(&bench);
    }
    let device = bench.device_bytes.map(|bytes| format!("on device {}\n", Bytes(bytes)));
    output::text(&format!(
        "{} tokens/s, median step {}, {} threads, {} kernels\n\
         {} of {} GFLOP/s peak ({})\n\
         peak memory {}\n{}",
        digits(bench.tokens_per_second),
        Seconds(bench.step_seconds_median),
        bench.threads,
        bench.kernels,
        digits(bench.gflops),
        digits(bench.fma_peak_gflops),
        percent(bench.peak_share),
        Bytes(bench.peak_rss_bytes),
        device.unwrap_or_default(),
    ))
}
