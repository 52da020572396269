//! `lockstep rendezvous`: the rendezvous of workers on several hosts, and their shared secret.

use crate::failure::Failure;
use crate::output;
use crate::workers::{print_status, warn};
use lockstep_cluster::ClusterError;
use lockstep_cluster::rendezvous::{self, HostedRun, Secret, Settings, Ticket};
use lockstep_platform::World;
use serde::Serialize;
use std::time::Duration;

/// Serve the rendezvous of workers on several hosts, or create their shared secret
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep rendezvous --new-secret > secret           64 hex digits; copy to every host
  chmod 600 secret; export LOCKSTEP_SECRET_FILE=secret
  lockstep rendezvous --listen 0.0.0.0:29500 --workers 4
  LOCKSTEP_RENDEZVOUS=10.0.0.1:29500 RANK=0 WORLD_SIZE=4 lockstep train ...

Without this command rank 0 listens at MASTER_ADDR and MASTER_PORT. Connections that do not belong
to the run are refused with a line on standard error. The command ends when all workers have
joined.")]
pub(crate) struct Arguments {
    /// Address to listen at, as host:port
    #[arg(long, required_unless_present = "new_secret")]
    listen: Option<String>,
    /// Number of workers
    #[arg(long, required_unless_present = "new_secret",
          value_parser = clap::value_parser!(u16).range(2..=4096))]
    workers: Option<u16>,
    /// Seconds to wait for all workers
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Print a new secret and exit
    #[arg(long, conflicts_with_all = ["listen", "workers"])]
    new_secret: bool,
    /// No lines on standard error
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
        log: (!arguments.quiet).then_some(print_log),
        ..Settings::default()
    };
    let addr = listener.local_addr();
    if !arguments.quiet {
        print_status(&format!("waiting for {workers} workers at {addr}\n"));
    }
    let hosted = rendezvous::host(world, listener, &ticket, workers.into(), &settings);
    let hosted = hosted.map_err(ClusterError::from)?;
    report(arguments, &addr, &hosted)
}

/// Prints refusals as warnings and joins as status lines.
fn print_log(line: &str) {
    if line.starts_with("refused") {
        return warn(line);
    }
    print_status(&format!("{line}\n"));
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

fn report(arguments: &Arguments, listen: &str, hosted: &HostedRun) -> Result<(), Failure> {
    let HostedRun { run, ranks, num_refused } = hosted;
    if !arguments.json {
        let workers = ranks.len();
        return output::text(&format!(
            "{workers} workers joined; {num_refused} connections refused\n"
        ));
    }
    let ranks = ranks.iter().enumerate();
    let workers =
        ranks.map(|(rank, info)| Worker { rank, host: &info.host, addr: &info.addr }).collect();
    output::json(&Report { listen, run, workers, num_refused: *num_refused })
}
