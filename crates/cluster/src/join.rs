//! Communicator of a worker, over the transport of the recipe.
//!
//! Worker threads receive their communicators from the process that creates them. Worker processes
//! join by [`rendezvous`], which detects shared memory, so `auto` needs no configuration.

use crate::ClusterError;
use crate::rendezvous::{self, ConnectedRank, Log, RankEnv, Settings, Ticket};
use crate::role::has_launcher;
use lockstep_comm::transport::tcp::TcpOptions;
use lockstep_comm::transport::{Channels, hosts};
use lockstep_comm::{Comm, Options};
use lockstep_config::{Recipe, TransportChoice};
use lockstep_mesh::Rank;
use lockstep_mpi::Process;
use lockstep_platform::{Listener, World};
use std::time::Duration;

/// Shortest rendezvous timeout: workers may start this far apart even if `run.deadline` is less.
const MIN_JOIN_TIMEOUT: Duration = Duration::from_mins(1);

/// Worker with its communicator.
pub struct JoinedWorker {
    /// Communicator of all workers.
    pub comm: Comm,
    /// Number of workers on this host, this one included.
    pub num_local: usize,
    /// MPI, where its launcher started this worker; it ends after the communicator.
    pub mpi: Option<Process>,
}

/// Communicator of a world of one rank.
pub fn join_single(
    recipe: &Recipe,
    world: &World,
    arena_bytes: usize,
) -> Result<JoinedWorker, ClusterError> {
    let timeout = recipe.run.deadline();
    let mut comms = Comm::threads(world, 1, &Options { arena_bytes, timeout })?;
    let comm = comms.pop().expect("a world of one rank");
    Ok(JoinedWorker { comm, num_local: 1, mpi: None })
}

/// Joins as a worker process and waits for the other workers. `log` receives rejected clients and
/// the ranks that this one waits for.
pub fn join_worker(
    recipe: &Recipe,
    world: &World,
    rank_env: &RankEnv,
    arena_bytes: usize,
    log: Log,
) -> Result<JoinedWorker, ClusterError> {
    let mut settings = Settings { log: Some(log), ..settings(recipe) };
    if has_launcher(world) {
        // Our launcher starts all ranks at once and reports one that ends.
        settings.wait_reports.first = settings.wait_reports.every;
    }
    let joined = rendezvous::join(world, rank_env, &settings)?;
    open_comm(recipe, world, joined, arena_bytes, None)
}

/// Joins the run and opens its transport ([`hosts::connect`]).
pub fn open(
    world: &World,
    rank_env: &RankEnv,
    settings: &Settings,
    options: &TcpOptions,
    arena_bytes: usize,
) -> Result<Channels, ClusterError> {
    let joined = rendezvous::join(world, rank_env, settings)?;
    Ok(hosts::connect(world, joined, settings.memory(arena_bytes), options)?)
}

/// Communicator of a worker thread, or how to obtain it.
pub enum ThreadRank {
    /// Communicator over shared memory.
    Connected(JoinedWorker),
    /// The thread joins by rendezvous, as a process does.
    Rendezvous {
        /// Rank and rendezvous address.
        rank_env: RankEnv,
        /// Listener at the rendezvous address, for rank 0.
        listener: Option<Box<dyn Listener>>,
    },
}

/// Worker threads of this process, by rank.
pub fn thread_ranks(
    recipe: &Recipe,
    world: &World,
    arena_bytes: usize,
) -> Result<Vec<ThreadRank>, ClusterError> {
    let num_ranks = recipe.num_ranks();
    if recipe.run.transport == TransportChoice::Tcp {
        let listener = rendezvous::listen(world, "127.0.0.1:0")?;
        let master = listener.local_addr();
        let ticket = Ticket::new(world);
        let mut listener = Some(listener);
        let thread_rank = |rank| {
            let rank_env = RankEnv::new(Rank(rank), num_ranks, &master, &ticket);
            ThreadRank::Rendezvous { rank_env, listener: listener.take() }
        };
        return Ok((0..num_ranks).map(thread_rank).collect());
    }
    let options = Options { arena_bytes, timeout: recipe.run.deadline() };
    let comms = Comm::threads(world, num_ranks, &options)?;
    Ok(comms
        .into_iter()
        .map(|comm| ThreadRank::Connected(JoinedWorker { comm, num_local: num_ranks, mpi: None }))
        .collect())
}

impl ThreadRank {
    /// Joins the run; waits for the other ranks if they join by rendezvous.
    pub fn join(
        self,
        recipe: &Recipe,
        world: &World,
        arena_bytes: usize,
    ) -> Result<JoinedWorker, ClusterError> {
        let settings = settings(recipe);
        let joined = match self {
            Self::Connected(worker) => return Ok(worker),
            Self::Rendezvous { rank_env, listener: Some(listener) } => {
                rendezvous::join_as_first(world, listener, &rank_env, &settings)?
            }
            Self::Rendezvous { rank_env, listener: None } => {
                rendezvous::join(world, &rank_env, &settings)?
            }
        };
        open_comm(recipe, world, joined, arena_bytes, None)
    }
}

/// Settings of the rendezvous of a run.
pub(crate) fn settings(recipe: &Recipe) -> Settings {
    let shares_memory = !recipe.run.transport.has_messages_only();
    let timeout = recipe.run.deadline().max(MIN_JOIN_TIMEOUT);
    Settings { shares_memory, timeout, encrypt: recipe.run.encrypt, ..Settings::default() }
}

/// Opens the communicator of a rank that has joined, with MPI for its data if given.
pub(crate) fn open_comm(
    recipe: &Recipe,
    world: &World,
    joined: ConnectedRank,
    arena_bytes: usize,
    mpi: Option<Process>,
) -> Result<JoinedWorker, ClusterError> {
    let num_local = joined.num_local();
    let emulate = recipe.emulate.clone();
    let options = TcpOptions { emulate, mpi: mpi.clone(), ..TcpOptions::default() };
    let wires = hosts::connect(world, joined, settings(recipe).memory(arena_bytes), &options)?;
    let comm = Comm::world(world, wires)?.within(recipe.run.deadline());
    comm.probe()?;
    if recipe.run.transport == TransportChoice::Shm && comm.transport() != "shm" {
        return Err(ClusterError::NotOneHost { transport: comm.transport() });
    }
    Ok(JoinedWorker { comm, num_local, mpi })
}
