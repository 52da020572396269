//! How the ranks of a run find each other and connect.
//!
//! Every rank knows one address, the *meeting point*, and the run's [secret](Secret). Rank 0
//! listens there, or a [process of its own](host()). All others call and say who they are, how
//! large they believe the run to be, and where they listen themselves. Once all have come, the host
//! sends everybody the table of all ranks. Then every pair connects: the higher rank calls, the
//! lower one answers, once for each stream.
//!
//! Every connection, to the meeting point and of each pair, starts with a handshake in which both
//! ends prove that they know the secret, and everything here is said sealed; only then a stream
//! goes on plain, unless [`Settings::encrypt`] keeps it sealed. The table carries a random number
//! that stands for this run; callers of other runs, strangers and mistakes are turned away with a
//! reason, and everything ends by one deadline.
//!
//! Which ranks share a machine is found by trying: while a pair connects, the higher rank looks for
//! a local socket that the lower one has opened under the name of the run. Host names and addresses
//! only go into reports.
//!
//! - `place`: what the environment says
//! - `wire`: what is said; `door`: where it is heard; `refusals`: who was turned away
//! - `greet`: two ends find out that they belong together
//! - `gather`: the host waits for all; `attend`: the others come; `pairs`: everybody connects
//! - `host`: a meeting point of its own; `reception`: where those who come later are heard
//!
//! ```no_run
//! use lockstep_cluster::rendezvous::{Place, Settings, join};
//!
//! let world = lockstep_platform::real();
//! let place = Place::from_env(&world)?;
//! let joined = join(&world, &place, &Settings::default())?;
//! println!("rank {} of {} on {}", joined.rank, joined.num_ranks, joined.hosts[joined.rank.0]);
//! # Ok::<(), lockstep_cluster::rendezvous::RendezvousError>(())
//! ```

mod attend;
mod door;
mod error;
mod gather;
mod greet;
mod host;
#[doc(hidden)]
pub mod hostile;
mod pairs;
mod place;
mod reception;
mod refusals;
mod wire;

#[cfg(test)]
mod attacks;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

pub use lockstep_auth::ticket::{RUN, SECRET, SECRET_FILE, Secret, TICKET, Ticket};
use lockstep_comm::transport::NUM_CHANNELS;
pub use lockstep_comm::transport::hosts::Joined;
use lockstep_comm::transport::hosts::SharedMemory;
use lockstep_comm::transport::tcp::Connections;
use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, Listener, World};

use door::Door;
pub use error::{RendezvousError, Side};
use gather::{Gathering, Terms};
pub use host::{Hosted, HostedGuest, host};
pub use place::{MEETING_POINT, Place};
pub use reception::{Reception, Visitor, visit};
pub use refusals::Log;
use wire::{Member, Table};

/// How a run comes together. All ranks must have the same, but for limits and the log.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Streams for messages between two ranks, on each lane.
    pub num_streams: usize,
    /// Whether to find out which ranks share a machine.
    pub shares_memory: bool,
    /// Whether everything between ranks travels sealed, and not only how they met.
    pub encrypt: bool,
    /// How long everything may take.
    pub timeout: Duration,
    /// How long a caller may take to prove that it knows the secret.
    pub greeting_limit: Duration,
    /// Where callers that are turned away are told, one line each.
    pub log: Option<Log>,
    /// How long a machine may be silent before its ranks count as lost.
    pub silence_limit: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            num_streams: 2,
            shares_memory: true,
            encrypt: false,
            timeout: Duration::from_mins(1),
            greeting_limit: Duration::from_secs(5),
            log: None,
            silence_limit: Duration::from_secs(15),
        }
    }
}

impl Settings {
    /// Shared memory for [`connect`](lockstep_comm::transport::hosts::connect), if these settings ask for it.
    pub fn memory(&self, arena_bytes: usize) -> Option<SharedMemory> {
        self.shares_memory.then_some(SharedMemory { arena_bytes, timeout: self.timeout })
    }
}

/// The most streams that a pair may have.
pub const MAX_STREAMS: usize = 64;

/// Joins the run as `place` says.
pub fn join(world: &World, place: &Place, settings: &Settings) -> Result<Joined, RendezvousError> {
    if place.rank == Rank(0) && place.num_ranks > 1 && !place.has_host {
        let listener = listen(world, &place.master)?;
        return join_as_first(world, listener, place, settings);
    }
    join_with(world, None, place, settings)
}

/// Starts to listen at the meeting point, as rank 0; port 0 lets the system choose one.
pub fn listen(world: &World, master: &str) -> Result<Box<dyn Listener>, RendezvousError> {
    listen_at(world, &place::listening_addrs(master))
}

/// Listens at the first address where that is possible.
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

/// Joins as rank 0, which listens already.
pub fn join_as_first(
    world: &World,
    listener: Box<dyn Listener>,
    place: &Place,
    settings: &Settings,
) -> Result<Joined, RendezvousError> {
    assert!(place.rank == Rank(0) && !place.has_host, "rank 0 has the meeting point");
    join_with(world, Some(listener), place, settings)
}

fn join_with(
    world: &World,
    listener: Option<Box<dyn Listener>>,
    place: &Place,
    settings: &Settings,
) -> Result<Joined, RendezvousError> {
    let streams = 1..=MAX_STREAMS;
    assert!(streams.contains(&settings.num_streams), "{streams:?} streams between two ranks");
    assert!(place.rank.0 < place.num_ranks, "a rank is below the number of ranks");
    let deadline = Deadline::after(world.clock(), settings.timeout);
    let own = Member { host: host_identity(world), addr: String::new() };
    let party = Party { world, place, settings, deadline };
    if place.num_ranks == 1 {
        let table = Table { run: new_run(world), members: vec![own] };
        let connections = [0; NUM_CHANNELS].map(|_| vec![None]);
        return Ok(party.joined(table, connections, vec![0]));
    }
    let (door, table) = match listener {
        Some(listener) => {
            let mut door = party.door(listener);
            let table = gather::gather(&party.gathering(), &mut door, Some(own))?;
            (door, table)
        }
        None => attend::attend(&party, &own)?,
    };
    pairs::connect(&party, door, table)
}

/// What every step of joining needs to know.
struct Party<'a> {
    world: &'a World,
    place: &'a Place,
    settings: &'a Settings,
    deadline: Deadline,
}

impl Party<'_> {
    fn remaining(&self) -> Duration {
        self.deadline.remaining(self.world.clock())
    }

    fn timeout_ms(&self) -> u64 {
        self.settings.timeout.as_millis() as u64
    }

    /// Callers that may stand at one rank's door at the same time.
    fn num_callers(&self) -> usize {
        self.place.num_ranks * NUM_CHANNELS * (1 + self.settings.num_streams)
    }

    /// A door for the other ranks.
    fn door(&self, listener: Box<dyn Listener>) -> Door {
        let Settings { greeting_limit, log, .. } = *self.settings;
        let secret = &self.place.ticket.secret;
        Door::new(self.world, listener, secret, self.num_callers(), greeting_limit, log)
    }

    /// What rank 0 waits for.
    fn gathering(&self) -> Gathering<'_> {
        let Settings { num_streams, shares_memory, encrypt, timeout, .. } = *self.settings;
        Gathering {
            world: self.world,
            num_ranks: self.place.num_ranks,
            run: &self.place.ticket.run,
            terms: Some(Terms {
                num_streams: num_streams as u64,
                shares_memory,
                encrypts: encrypt,
            }),
            deadline: self.deadline,
            timeout,
            log: None,
        }
    }

    fn joined(&self, table: Table, connections: Connections, domains: Vec<usize>) -> Joined {
        Joined {
            rank: self.place.rank,
            num_ranks: self.place.num_ranks,
            run: run_name(&table.run),
            hosts: table.members.into_iter().map(|member| member.host).collect(),
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

/// The machine's name, and a number that changes with every start of the machine, where there is
/// one: two machines may have one name.
fn host_identity(world: &World) -> String {
    let boot = world.files().read_to_string(Path::new("/proc/sys/kernel/random/boot_id"));
    let boot = boot.unwrap_or_default();
    let boot = boot.trim().split('-').next().unwrap_or_default();
    format!("{} {boot}", world.host().name()).trim().to_owned()
}
