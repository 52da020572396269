//! Errors of launching and joining a run.

use lockstep_comm::CommError;
use lockstep_config::Blame;
use lockstep_mpi::MpiError;
use lockstep_platform::{NetError, ProcessError, ThreadError};

use crate::rendezvous::RendezvousError;

/// Failure to start a run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// The environment of a worker is incomplete or inconsistent.
    #[error("{source}; or unset RANK and WORLD_SIZE, and `lockstep` starts the workers itself")]
    Environment {
        /// Problem in the environment.
        source: RendezvousError,
    },
    /// `WORLD_SIZE` is not a world size of the recipe.
    #[error("WORLD_SIZE = {world_size} {}", expected_size(*world_size, sizes, *servers))]
    WorldSize {
        /// Number of started workers.
        world_size: usize,
        /// World sizes of the recipe.
        sizes: Vec<usize>,
        /// Number of parameter servers among them.
        servers: usize,
    },
    /// A worker process cannot start all workers as threads.
    #[error(
        "run.isolation = \"threads\" puts all workers into one process, but this is one of \
         WORLD_SIZE = {world_size}; set run.isolation = \"processes\""
    )]
    ThreadsAmongProcesses {
        /// Number of started processes.
        world_size: usize,
    },
    /// The recipe selects shared memory, but the workers are on several hosts.
    #[error(
        "run.transport = \"shm\" needs all workers on one host, and these use \
         {transport}; try \"auto\""
    )]
    NotOneHost {
        /// Transport between the workers.
        transport: &'static str,
    },
    /// The recipe selects MPI, but no MPI launcher started this process.
    #[error(
        "run.transport = \"mpi\" needs the launcher of that MPI; try mpirun -n {num_ranks} \
         lockstep ..., or run.transport = \"auto\""
    )]
    NoMpiLauncher {
        /// Number of processes to start.
        num_ranks: usize,
    },
    /// The message from rank 0 through MPI is no address.
    #[error(
        "rank 0 sent no address through MPI; start all ranks with the same version of lockstep"
    )]
    MpiInvitation,
    /// MPI failed.
    #[error(transparent)]
    Mpi(#[from] MpiError),
    /// The launcher ended before this worker started.
    #[error("the process that started this worker has ended")]
    Orphan,
    /// The launcher of a remote worker ended or is unreachable.
    #[error("the run at {addr} is gone: {reason}")]
    LauncherGone {
        /// Address of the launcher.
        addr: String,
        /// Observed failure.
        reason: String,
    },
    /// The rendezvous failed.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The communicator could not be opened.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A worker could not be started.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] ThreadError),
    /// No port is free for the rendezvous.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl ClusterError {
    /// Party that must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Rendezvous(error) => error.blame(),
            Self::Comm(error) => error.blame(),
            // The launcher has no rank; rank 0 stands for it.
            Self::Orphan | Self::LauncherGone { .. } => Blame::Peer(0),
            Self::Environment { .. }
            | Self::WorldSize { .. }
            | Self::ThreadsAmongProcesses { .. }
            | Self::NotOneHost { .. }
            | Self::NoMpiLauncher { .. }
            | Self::MpiInvitation
            | Self::Mpi(_)
            | Self::Process(_)
            | Self::Thread(_)
            | Self::Net(_) => Blame::User,
        }
    }
}

/// World size that the recipe expects.
fn expected_size(world_size: usize, sizes: &[usize], servers: usize) -> String {
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
    format!(
        "is not one of the sizes {} of run.workers; start one of these numbers of workers",
        sizes.join(", ")
    )
}
