//! `lockstep rendezvous`: where the workers of several hosts meet, and the secret that they share.

use crate::failure::Failure;
use crate::output;
use crate::workers::{tell, warn};
use lockstep_cluster::ClusterError;
use lockstep_cluster::rendezvous::{self, Hosted, Secret, Settings, Ticket};
use lockstep_platform::World;
use serde::Serialize;
use std::time::Duration;

/// Introduce the workers of several hosts to each other, or make the secret that they need
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep rendezvous --new-secret > secret           64 digits; give them to every host
  chmod 600 secret; export LOCKSTEP_SECRET_FILE=secret
  lockstep rendezvous --listen 0.0.0.0:29500 --workers 4
  LOCKSTEP_RENDEZVOUS=10.0.0.1:29500 RANK=0 WORLD_SIZE=4 lockstep train ...

Without it rank 0 listens at MASTER_ADDR and MASTER_PORT. Callers that do not belong to the run are
refused, each with one line on standard error; it ends when all workers have met.")]
pub(crate) struct Arguments {
    /// Where to listen, as host:port
    #[arg(long, required_unless_present = "new_secret")]
    listen: Option<String>,
    /// How many workers come
    #[arg(long, required_unless_present = "new_secret",
          value_parser = clap::value_parser!(u16).range(2..=4096))]
    workers: Option<u16>,
    /// How many seconds to wait for them
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Print a new secret and do nothing else
    #[arg(long, conflicts_with_all = ["listen", "workers"])]
    new_secret: bool,
    /// Print no line when a worker comes or a caller is refused
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let (Some(addr), Some(workers)) = (&arguments.listen, arguments.workers) else {
        return new_secret(arguments, world);
    };
    world.processes().accept_interrupts();
    let ticket = Ticket::from_env(world).map_err(Failure::user)?;
    let listener = world.net().listen(addr).map_err(|error| Failure::user(error.to_string()))?;
    let settings = Settings {
        timeout: Duration::from_secs(arguments.timeout.into()),
        log: (!arguments.quiet).then_some(warn_or_tell),
        ..Settings::default()
    };
    let addr = listener.local_addr();
    if !arguments.quiet {
        tell(&format!("waiting for {workers} workers at {addr}\n"));
    }
    let hosted = rendezvous::host(world, listener, &ticket, workers.into(), &settings);
    let hosted = hosted.map_err(ClusterError::from)?;
    report(arguments, &addr, &hosted)
}

/// Refusals are warnings, arrivals are not.
fn warn_or_tell(line: &str) {
    if line.starts_with("refused") {
        return warn(line);
    }
    tell(&format!("{line}\n"));
}

fn new_secret(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let secret = Secret::new(world).to_hex();
    if arguments.json {
        return output::json(&serde_json::json!({ "secret": secret }));
    }
    output::text(&format!("{secret}\n"))
}

#[derive(Serialize)]
struct Report<'a> {
    listen: &'a str,
    run: &'a str,
    workers: Vec<Worker<'a>>,
    num_refused: usize,
}

#[derive(Serialize)]
struct Worker<'a> {
    rank: usize,
    host: &'a str,
    addr: &'a str,
}

fn report(arguments: &Arguments, listen: &str, hosted: &Hosted) -> Result<(), Failure> {
    let Hosted { run, guests, num_refused } = hosted;
    if !arguments.json {
        let workers = guests.len();
        return output::text(&format!("{workers} workers have met; {num_refused} were refused\n"));
    }
    let guests = guests.iter().enumerate();
    let workers =
        guests.map(|(rank, guest)| Worker { rank, host: &guest.host, addr: &guest.addr }).collect();
    output::json(&Report { listen, run, workers, num_refused: *num_refused })
}
