//! `lockstep plan`: what a run will cost, before it costs it.
//!
//! # Layout
//! - [`recipe`]: memory, bytes and time of a recipe on this machine.
//! - [`calibrate`]: measures this machine.
//! - [`collectives`]: all-reduces on any link, by closed form and by schedule.
//! - [`timeline`]: a pipeline, played and drawn.

mod calibrate;
mod collectives;
mod recipe;
mod timeline;

use crate::failure::Failure;
use crate::recipe_args::RecipeArguments;
use lockstep_platform::World;

/// What a run will cost: memory, bytes, time
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Memory and bytes are counted from the plan that the engine goes by; a recipe that does not fit into
this machine is refused with the nearest one that does. Time needs a machine that was measured.

Examples:
  lockstep plan                                       the default recipe on this machine
  lockstep plan my.toml --set run.workers=4 --json    for a program
  lockstep plan calibrate                             measure this machine, once
  lockstep plan timeline --schedule 1f1b --devices 4  draw a pipeline
  lockstep plan collectives --ranks 64                what all-reduces cost on a link"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    recipe: RecipeArguments,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    Calibrate(calibrate::Arguments),
    Collectives(collectives::Arguments),
    Timeline(timeline::Arguments),
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    match &arguments.command {
        None => recipe::run(&arguments.recipe, arguments.json, world),
        Some(Command::Calibrate(arguments)) => calibrate::run(arguments, world),
        Some(Command::Collectives(arguments)) => collectives::run(arguments),
        Some(Command::Timeline(arguments)) => timeline::run(arguments, world),
    }
}
