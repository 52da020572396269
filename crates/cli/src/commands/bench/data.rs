//! `lockstep bench data`: throughput of a recipe's data without a model.

use crate::automatic::Purpose;
use crate::failure::Failure;
use crate::output;
use crate::quantity::digits;
use crate::recipe_args::RecipeArguments;
use lockstep_config::units::Seconds;
use lockstep_data::loading_speed::measure_loading;
use lockstep_platform::World;
use std::time::Duration;

/// Seconds of a measurement, at most: a minute says all there is to say.
const MAX_SECONDS: f64 = 3600.0;

/// Time data loading alone: reading, tokenizing and mixing, without a model
#[derive(clap::Args)]
#[command(after_help = "\
One worker loads the batches of the recipe as fast as they come. Training waits for its data where
it consumes more tokens a second; compare with `lockstep bench train`.

Examples:
  lockstep bench data mix.toml
  lockstep bench data --set data.source='texts/*.jsonl.zst' --set data.tokenizer=t.json --seconds 30
  lockstep bench data mix.toml --set data.tokenizer_threads=1 --json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Duration of the measurement, after two batches of warm-up
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    if !(arguments.seconds > 0.0 && arguments.seconds <= MAX_SECONDS) {
        return Err(Failure::user(format!(
            "--seconds {} is not between 0 and {MAX_SECONDS}; try 10",
            arguments.seconds
        )));
    }
    let (recipe, _) = arguments.recipe.resolve_for(Purpose::Run(None), world, None)?;
    let duration = Duration::from_secs_f64(arguments.seconds);
    let speed = measure_loading(&recipe, world, duration)?;
    if arguments.json {
        return output::json(&speed);
    }
    output::text(&format!(
        "{} tokens/s: {} steps of {} tokens in {}\n",
        digits(speed.tokens_per_second),
        speed.steps,
        speed.tokens / speed.steps.max(1),
        Seconds(speed.seconds),
    ))
}
