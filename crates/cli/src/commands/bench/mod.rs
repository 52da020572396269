//! `lockstep bench`: how fast this machine is with this engine.
//!
//! # Layout
//! - [`train`]: steps of a model.
//! - [`comm`]: collectives between ranks.
//! - [`methods`]: ways to distribute learning, held against each other.

mod comm;
mod train;

use super::sweep::methods;
use crate::failure::Failure;
use lockstep_platform::World;

/// Measure this machine
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Train(train::Arguments),
    Comm(comm::Arguments),
    Methods(methods::Arguments),
}

pub(crate) fn run(command: &Command, world: &World) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => train::run(arguments, world),
        Command::Comm(arguments) => comm::run(arguments, world),
        Command::Methods(arguments) => methods::run(arguments, world),
    }
}
