//! Rendezvous: the ranks of a run find each other, authenticate and connect.
//!
//! Every rank knows the rendezvous address and the [secret](Secret) of the run. Rank 0 listens
//! there, or a [standalone host](host()). The other ranks connect and send their rank, world size,
//! settings and own address. When all ranks have registered, the host sends the table of all ranks
//! to each of them. Then every pair of ranks connects: the higher rank initiates, the lower one
//! accepts, once for each stream.
//!
//! Every connection starts with a mutual handshake ([`lockstep_auth`]), and the whole rendezvous is
//! encrypted. Afterwards a stream continues in plaintext unless [`Settings::encrypt`] is set. The
//! table carries a random run identifier. Clients of other runs, clients without the secret and
//! misconfigured ranks are rejected with a reason. One deadline bounds the whole rendezvous.
//!
//! Ranks detect a shared machine by connecting: the higher rank of a pair tries a local socket that
//! the lower one has opened under the name of the run. Host names and addresses are used in reports
//! only.
//!
//! - `rank_env`: rank, world size and address from the environment
//! - `wire`: messages and their encoding
//! - `acceptor`: incoming connections, handshake and hello; `rejection_log`: rejected clients
//! - `handshake`: the initiating side of handshake and hello
//! - `registry`: the host collects all ranks; `registration`: a rank registers at the host
//! - `full_mesh`: every pair of ranks connects
//! - `wait_log`: reports of a rank that waits for others
//! - `host`: standalone host; `session`: long-lived sessions that start at any time
//!
//! ```no_run
//! use lockstep_cluster::rendezvous::{RankEnv, Settings, join};
//!
//! let world = lockstep_platform::real();
//! let rank_env = RankEnv::from_env(&world)?;
//! let joined = join(&world, &rank_env, &Settings::default())?;
//! println!("rank {} of {} on {}", joined.rank, joined.num_ranks, joined.hosts[joined.rank.0]);
//! # Ok::<(), lockstep_cluster::rendezvous::RendezvousError>(())
//! ```

mod acceptor;
mod error;
mod full_mesh;
mod handshake;
mod host;
#[doc(hidden)]
pub mod hostile;
mod rank_env;
mod registration;
mod registry;
mod rejection_log;
mod session;
mod wait_log;
mod wire;

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

pub use lockstep_auth::ticket::{RUN, SECRET, SECRET_FILE, Secret, TICKET, Ticket};
use lockstep_comm::transport::NUM_CHANNELS;
pub use lockstep_comm::transport::hosts::ConnectedRank;
use lockstep_comm::transport::hosts::SharedMemory;
use lockstep_comm::transport::tcp::Connections;
use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Listener, World};

use acceptor::Acceptor;
pub use error::{RendezvousError, Side};
pub use host::{HostedRank, HostedRun, host};
pub use rank_env::{LAUNCHER, MASTER_PORT, MasterPort, RENDEZVOUS_ADDR, RankEnv};
use registry::{Registry, SharedSettings};
pub use rejection_log::Log;
pub use session::{RemoteSession, SessionAcceptor, open_session};
use wait_log::WaitLog;
pub use wait_log::WaitReports;
use wire::{PeerInfo, Table};

/// Settings of the rendezvous. All ranks must agree, except on time limits and the log.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Data streams of a pair of ranks, per channel.
    pub num_streams: usize,
    /// Whether to detect ranks on the same machine, which then use shared memory.
    pub shares_memory: bool,
    /// Whether data streams are encrypted, not only the rendezvous.
    pub encrypt: bool,
    /// Deadline of the whole rendezvous.
    pub timeout: Duration,
    /// Time that a client has for handshake and hello.
    pub handshake_timeout: Duration,
    /// Receives one line for each rejected client, and the reports of a wait.
    pub log: Option<Log>,
    /// Times of the reports while this rank waits for others.
    pub wait_reports: WaitReports,
    /// Silence of a machine after which its ranks count as lost.
    pub keepalive_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            num_streams: 2,
            shares_memory: true,
            encrypt: false,
            timeout: Duration::from_mins(1),
            handshake_timeout: Duration::from_secs(5),
            log: None,
            wait_reports: WaitReports::default(),
            keepalive_timeout: Duration::from_secs(15),
        }
    }
}

impl Settings {
    /// Argument of [`connect`](lockstep_comm::transport::hosts::connect): shared memory where these
    /// settings enable it.
    pub fn memory(&self, arena_bytes: usize) -> Option<SharedMemory> {
        self.shares_memory.then_some(SharedMemory { arena_bytes, timeout: self.timeout })
    }
}

/// Largest number of data streams of a pair.
pub const MAX_STREAMS: usize = 64;

/// Joins the run as the rank that `rank_env` describes.
pub fn join(
    world: &World,
    rank_env: &RankEnv,
    settings: &Settings,
) -> Result<ConnectedRank, RendezvousError> {
    if rank_env.rank == Rank(0) && rank_env.num_ranks > 1 && !rank_env.has_standalone_host {
        let listener = listen(world, &rank_env.master).map_err(|error| match error {
            RendezvousError::Net(source) => {
                RendezvousError::NoListener { source, fix: rank_env.port.fix() }
            }
            error => error,
        })?;
        return join_as_first(world, listener, rank_env, settings);
    }
    join_with(world, None, rank_env, settings)
}

/// Listens at the rendezvous address, as rank 0; port 0 selects a free port.
pub fn listen(world: &World, master: &str) -> Result<Box<dyn Listener>, RendezvousError> {
    listen_at(world, &rank_env::listening_addrs(master))
}

/// Listens at the first address that can be bound.
fn listen_at(world: &World, addrs: &[String]) -> Result<Box<dyn Listener>, RendezvousError> {
    let mut first_error = None;
    for addr in addrs {
        match world.net().listen(addr) {
            Ok(listener) => return Ok(listener),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.expect("there is an address to try").into())
}

/// Joins as rank 0, with a listener at the rendezvous address.
pub fn join_as_first(
    world: &World,
    listener: Box<dyn Listener>,
    rank_env: &RankEnv,
    settings: &Settings,
) -> Result<ConnectedRank, RendezvousError> {
    assert!(
        rank_env.rank == Rank(0) && !rank_env.has_standalone_host,
        "rank 0 hosts the rendezvous"
    );
    join_with(world, Some(listener), rank_env, settings)
}

fn join_with(
    world: &World,
    listener: Option<Box<dyn Listener>>,
    rank_env: &RankEnv,
    settings: &Settings,
) -> Result<ConnectedRank, RendezvousError> {
    let streams = 1..=MAX_STREAMS;
    assert!(streams.contains(&settings.num_streams), "{streams:?} streams between two ranks");
    assert!(rank_env.rank.0 < rank_env.num_ranks, "a rank is below the number of ranks");
    let deadline = Deadline::after(world.clock(), settings.timeout);
    let own = PeerInfo { host: host_identity(world), addr: String::new() };
    let waiting = WaitLog::new(world, settings.log, settings.wait_reports, settings.timeout);
    let context = JoinContext { world, rank_env, settings, deadline, waiting };
    if rank_env.num_ranks == 1 {
        let table = Table { run: new_run(world), peers: vec![own] };
        let connections = [0; NUM_CHANNELS].map(|_| vec![None]);
        return Ok(context.joined(table, connections, vec![0]));
    }
    let (acceptor, table) = match listener {
        Some(listener) => {
            let mut acceptor = context.acceptor(listener);
            let table = registry::collect_ranks(&context.registry(), &mut acceptor, Some(own))?;
            (acceptor, table)
        }
        None => registration::register(&context, &own)?,
    };
    full_mesh::connect(&context, acceptor, table)
}

/// Inputs that every phase of joining shares.
struct JoinContext<'a> {
    world: &'a World,
    rank_env: &'a RankEnv,
    settings: &'a Settings,
    deadline: Deadline,
    waiting: WaitLog,
}

impl JoinContext<'_> {
    fn remaining(&self) -> Duration {
        self.deadline.remaining(self.world.clock())
    }

    fn timeout_ms(&self) -> u64 {
        self.settings.timeout.as_millis() as u64
    }

    /// Number of connections that one rank may accept at the same time.
    fn num_clients(&self) -> usize {
        self.rank_env.num_ranks * NUM_CHANNELS * (1 + self.settings.num_streams)
    }

    /// Acceptor for the other ranks.
    fn acceptor(&self, listener: Box<dyn Listener>) -> Acceptor {
        let Settings { handshake_timeout, log, .. } = *self.settings;
        let secret = &self.rank_env.ticket.secret;
        Acceptor::new(self.world, listener, secret, self.num_clients(), handshake_timeout, log)
    }

    /// Registry of a run that rank 0 hosts.
    fn registry(&self) -> Registry<'_> {
        let Settings { num_streams, shares_memory, encrypt, timeout, .. } = *self.settings;
        Registry {
            world: self.world,
            num_ranks: self.rank_env.num_ranks,
            run: &self.rank_env.ticket.run,
            shared_settings: Some(SharedSettings {
                num_streams: num_streams as u64,
                shares_memory,
                encrypts: encrypt,
            }),
            deadline: self.deadline,
            timeout,
            waiting: &self.waiting,
            log: None,
        }
    }

    fn joined(&self, table: Table, connections: Connections, domains: Vec<usize>) -> ConnectedRank {
        ConnectedRank {
            rank: self.rank_env.rank,
            num_ranks: self.rank_env.num_ranks,
            run: run_name(&table.run),
            hosts: table.peers.into_iter().map(|peer| peer.host).collect(),
            connections,
            domains,
        }
    }
}

fn new_run(world: &World) -> wire::RunId {
    let mut run = [0; 16];
    world.entropy().fill(&mut run);
    run
}

fn run_name(run: &wire::RunId) -> String {
    format!("{:032x}", u128::from_be_bytes(*run))
}

/// Host name and boot id, where there is one: two machines may have the same name.
fn host_identity(world: &World) -> String {
    let boot = world.files().read_to_string(Path::new("/proc/sys/kernel/random/boot_id"));
    let boot = boot.unwrap_or_default();
    let boot = boot.trim().split('-').next().unwrap_or_default();
    format!("{} {boot}", world.host().name()).trim().to_owned()
}
