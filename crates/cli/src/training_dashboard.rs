//! The dashboard in the process that trains: `train --serve`.
//!
//! It follows the run's event file from threads of its own, as `lockstep serve` does, so the step
//! loop neither waits for it nor knows it. A server that cannot start is a warning.

use crate::commands::serve::warn_of_other_hosts;
use crate::dashboard_runs::FolderRuns;
use crate::workers::{print_status, warn};
use lockstep_dashboard::server::Limits;
use lockstep_dashboard::token::Token;
use lockstep_dashboard::{Server, Sources};
use lockstep_planner::memory::Process;
use lockstep_platform::World;
use lockstep_trainer::Options;
use std::sync::{Arc, Mutex, PoisonError};

/// A server from the creation of the run folder to the end of this value.
#[derive(Clone, Default)]
pub(crate) struct TrainingDashboard {
    server: Arc<Mutex<Option<Server>>>,
}

impl TrainingDashboard {
    /// Starts to serve the run when it has a folder, if there is an address to listen on.
    pub(crate) fn attach(
        &self,
        options: &mut Options,
        listen: Option<&str>,
        process: Process,
        world: &World,
    ) {
        let Some(listen) = listen.map(str::to_owned) else { return };
        let server = Arc::clone(&self.server);
        let (world, receiver) = (World::clone(world), options.on_run_folder.take());
        options.on_run_folder = Some(Box::new(move |path| {
            let runs = Arc::new(FolderRuns::new(&world, vec![path.to_owned()], process));
            let sources = Sources { runs, tools: None };
            let token = Token::random(world.entropy());
            match Server::start(&world, &listen, token, sources, Limits::default()) {
                Ok(started) => {
                    warn_of_other_hosts(&listen);
                    print_status(&format!("dashboard: {}\n", started.url()));
                    *server.lock().unwrap_or_else(PoisonError::into_inner) = Some(started);
                }
                Err(error) => warn(&format!("{error}; the run continues without its dashboard")),
            }
            if let Some(receive) = receiver {
                receive(path);
            }
        }));
    }
}
