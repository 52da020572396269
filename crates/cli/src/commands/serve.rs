//! `lockstep serve`: the dashboard of runs in a browser.

use crate::dashboard_runs::FolderRuns;
use crate::dashboard_tools::PageTools;
use crate::failure::Failure;
use crate::output;
use crate::prediction;
use crate::workers::{print_status, warn};
use lockstep_config::Blame;
use lockstep_dashboard::server::Limits;
use lockstep_dashboard::token::Token;
use lockstep_dashboard::{ServeError, Server, Sources};
use lockstep_platform::{Interrupts, World};
use lockstep_trainer::RunFolder;
use lockstep_trainer::run_folder::RUNS;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Address to listen on by default: this host, a free port.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:0";

/// Time between two looks at Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Show runs in a browser, live; the planner and the lab with sliders
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep serve                        all runs under runs/, new ones included
  lockstep serve runs/0007              one run
  lockstep serve runs/0007 runs/0009    two runs, to compare
  lockstep serve experiments            the runs in another folder
  lockstep serve --port 8080            a fixed port of this host
  lockstep serve --port 8080 --token \"$TOKEN\"    a known address, for scripts

Open the printed address in a browser. It has a random token: whoever has it may read, and nothing
can be changed. Ctrl-C ends the server. The newest 64 runs are shown.

Scripts read /api/runs?token=T and /api/runs/ID/steps?token=T, where ID is the id or the
name of a run, or send the token as Authorization: Bearer T. A token of --token is seen by other
users of this host in its list of processes; a random one is not.

The connection is not encrypted, so listen on this host only (the default) and reach another host
through ssh: ssh -L 8080:127.0.0.1:8080 host, with --port 8080 there.")]
pub(crate) struct Arguments {
    /// Run folders, or folders of run folders (default: runs)
    #[arg(value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Address to listen on, host:port; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    listen: String,
    /// Port of this host to listen on, as --listen 127.0.0.1:PORT
    #[arg(long, value_name = "PORT", conflicts_with = "listen")]
    port: Option<u16>,
    /// Token instead of a random one: letters, digits, '-', '_' and '.', at least 16 to be safe
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
}

impl Arguments {
    fn listen(&self) -> String {
        self.port.map_or_else(|| self.listen.clone(), |port| format!("127.0.0.1:{port}"))
    }

    fn token(&self, world: &World) -> Result<Token, Failure> {
        let Some(text) = &self.token else { return Ok(Token::random(world.entropy())) };
        let refused = "--token is not 1 to 128 letters, digits, '-', '_' and '.'; \
                       without it a random token is taken";
        let token = Token::chosen(text).ok_or_else(|| Failure::user(refused.to_owned()))?;
        if token.is_short() {
            warn("a token of less than 16 characters may be guessed");
        }
        Ok(token)
    }
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let sources = sources(&arguments.runs, world)?;
    let (listen, token) = (arguments.listen(), arguments.token(world)?);
    let process = prediction::measure_process(world);
    let runs = Arc::new(FolderRuns::new(world, sources, process));
    let sources = Sources { runs, tools: Some(Arc::new(PageTools::new(world))) };
    let server = Server::start(world, &listen, token, sources, Limits::default())?;
    warn_of_other_hosts(&listen);
    output::text(&format!("{}\n", server.url()))?;
    print_status("Ctrl-C ends the server\n");
    let line = "\n";
    world.processes().handle_interrupts(Interrupts::Defer { line, repeat: Duration::ZERO });
    world.processes().defer_termination(true);
    let is_over = || {
        world.processes().is_interrupt_requested() || world.processes().is_termination_requested()
    };
    while !is_over() {
        world.clock().sleep(POLL_INTERVAL);
    }
    drop(server);
    Ok(())
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Listen { .. } => {
                Self::user(format!("{error}; try --port 0 for a free port"))
            }
            ServeError::Start(_) => Self::new(Blame::Storage, error.to_string()),
        }
    }
}

/// Folders to show, each checked: a typing error should not end in an empty page.
fn sources(runs: &[PathBuf], world: &World) -> Result<Vec<PathBuf>, Failure> {
    if runs.is_empty() {
        // Runs may come later.
        return Ok(vec![PathBuf::from(RUNS)]);
    }
    for run in runs {
        let inside = || world.files().list(run).unwrap_or_default();
        let is_run = |folder: &Path| RunFolder::started(folder, world).is_ok();
        if !is_run(run) && !inside().iter().any(|folder| is_run(folder)) {
            let run = run.display();
            let error = format!("{run} is no run and has none; lockstep runs lists them");
            return Err(Failure::user(error));
        }
    }
    Ok(runs.to_vec())
}

/// Warns where the server can be reached from other hosts.
pub(crate) fn warn_of_other_hosts(listen: &str) {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    if !["127.0.0.1", "localhost", "[::1]"].contains(&host) {
        warn(&format!(
            "{listen} can be reached from other hosts, and the connection is not encrypted: \
             whoever listens on the way can read the token"
        ));
    }
}
