//! `lockstep bench train`: how fast a model trains here, beside the best the machine could do.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use crate::workers;
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_platform::World;
use lockstep_trainer::bench::bench_train;

/// Time training steps; says which share of the machine's peak they reach
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep bench train                        6 layers x 384, context 256, batch 16
  lockstep bench train --set run.threads=1 --steps 5
  lockstep bench train my.toml --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Timed steps, after two that warm up
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
    let check =
        || Ok(lockstep_trainer::check_inputs(&recipe, world).map(|()| workers::Care::default())?);
    let life = move |recipe: &Recipe, comm: &Comm| bench_train(recipe, &own_world, comm, steps);
    let Some(bench) = workers::run(&recipe, world, true, check, life)? else { return Ok(()) };
    if arguments.json {
        return output::json(&bench);
    }
    output::text(&format!(
        "{:.0} tokens/s, median step {:.3} s, {} threads, {} kernels\n\
         {:.1} GFLOP/s of {:.1} at best ({:.0} %)\n\
         peak memory {}\n",
        bench.tokens_per_second,
        bench.step_seconds_median,
        bench.threads,
        bench.kernels,
        bench.gflops,
        bench.fma_peak_gflops,
        100.0 * bench.peak_share,
        Bytes(bench.peak_rss_bytes),
    ))
}
