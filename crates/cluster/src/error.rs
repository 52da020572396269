//! Why workers cannot come together, with who must act.

use lockstep_comm::CommError;
use lockstep_config::Blame;
use lockstep_platform::{NetError, ProcessError, ThreadError};

use crate::rendezvous::RendezvousError;

/// A run that could not begin.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// The environment is that of a worker, but not a sound one.
    #[error("{source}; or unset RANK and WORLD_SIZE, and `lockstep` starts the workers itself")]
    Place {
        /// What is wrong with it.
        source: RendezvousError,
    },
    /// Whoever started the workers and whoever wrote the recipe disagree.
    #[error("WORLD_SIZE = {world_size} {}", asked(*world_size, sizes, *servers))]
    WorldSize {
        /// How many were started.
        world_size: usize,
        /// How many the recipe allows.
        sizes: Vec<usize>,
        /// How many of them are servers.
        servers: usize,
    },
    /// A worker among processes cannot be several threads.
    #[error(
        "run.isolation = \"threads\" puts all workers into one process, but this is one of \
         WORLD_SIZE = {world_size}; set run.isolation = \"processes\""
    )]
    ThreadsAmongProcesses {
        /// How many processes were started.
        world_size: usize,
    },
    /// The recipe wants memory between workers that have none in common.
    #[error(
        "run.transport = \"shm\" needs all workers on one host, and these are joined by \
         {transport}; try \"auto\""
    )]
    NotOneHost {
        /// What they are joined by.
        transport: &'static str,
    },
    /// The process that started this one has ended before it could begin.
    #[error("the process that started this worker has ended")]
    Orphan,
    /// The process that this one offered a worker to has ended, or cannot be reached any more.
    #[error("the run at {addr} is gone: {reason}")]
    LauncherGone {
        /// Where it was.
        addr: String,
        /// How it was noticed.
        reason: String,
    },
    /// The workers did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The workers could not open their connections.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A worker could not be started.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// There is no port to meet at.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl ClusterError {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Rendezvous(error) => error.blame(),
            Self::Comm(error) => error.blame(),
            // The launcher is no rank; its place among the peers is that of rank 0.
            Self::Orphan | Self::LauncherGone { .. } => Blame::Peer(0),
            Self::Place { .. }
            | Self::WorldSize { .. }
            | Self::ThreadsAmongProcesses { .. }
            | Self::NotOneHost { .. }
            | Self::Process(_)
            | Self::Thread(_)
            | Self::Net(_) => Blame::User,
        }
    }
}

/// What the recipe asks for instead.
fn asked(world_size: usize, sizes: &[usize], servers: usize) -> String {
    if let ([ranks], 1..) = (sizes, servers) {
        let workers = ranks - servers;
        return format!(
            "is not run.workers = {workers} and {servers} servers of sync.servers together; start \
             {ranks}"
        );
    }
    if let [workers] = sizes {
        return format!(
            "is not run.workers = {workers}; start {workers} workers or set run.workers = \
             {world_size}"
        );
    }
    let sizes: Vec<_> = sizes.iter().map(ToString::to_string).collect();
    format!("is not one of the sizes {} of run.workers; start so many workers", sizes.join(", "))
}
