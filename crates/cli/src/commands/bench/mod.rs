//! `lockstep bench`: benchmarks of this machine.
//!
//! # Layout
//! - [`train`]: training steps
//! - [`comm`][]: collectives
//! - [`data`]: reading, tokenizing and mixing
//! - [`methods`]: distributed training methods compared

mod comm;
mod data;
mod train;

use super::sweep::methods;
use crate::failure::Failure;
use lockstep_platform::World;

/// Benchmark this machine
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Train(train::Arguments),
    Comm(comm::Arguments),
    Data(data::Arguments),
    Methods(methods::Arguments),
}

pub(crate) fn run(command: &Command, world: &World) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => train::run(arguments, world),
        Command::Comm(arguments) => comm::run(arguments, world),
        Command::Data(arguments) => data::run(arguments, world),
        Command::Methods(arguments) => methods::run(arguments, world),
    }
}
