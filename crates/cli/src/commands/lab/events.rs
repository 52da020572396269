//! `lockstep lab events`: throughput of the simulator on one core.

use crate::failure::Failure;
use crate::output;
use lockstep_lab::sim::{Throughput, throughput};
use lockstep_platform::World;
use std::fmt::Write;

/// Measure the events per second of the simulator
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep lab events
  lockstep lab events --json")]
pub(super) struct Arguments {
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let rows = throughput(world);
    if arguments.json {
        return output::json(&rows);
    }
    let mut text = String::new();
    for Throughput { simulation, events_per_second, .. } in rows {
        let _ = writeln!(text, "{:>6.2} million events/s: {simulation}", events_per_second / 1e6);
    }
    output::text(&text)
}
