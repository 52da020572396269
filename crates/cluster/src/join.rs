//! A worker's end of the group of all workers, over whichever transport the recipe asks for.
//!
//! Threads get their ends all at once, since one process makes them. Processes meet: each knows
//! where rank 0 is, and there they learn of each other ([`crate::rendezvous`]). Whether two
//! of them can share memory is found out by trying, so `auto` needs to be told nothing.

use crate::ClusterError;
use crate::rendezvous::{self, Joined, Log, Place, Settings, Ticket};
use lockstep_comm::transport::tcp::TcpOptions;
use lockstep_comm::transport::{Channels, hosts};
use lockstep_comm::{Comm, Options};
use lockstep_config::{Recipe, TransportChoice};
use lockstep_mesh::Rank;
use lockstep_platform::{Listener, World};
use std::time::Duration;

/// Workers may start this far apart, however impatient the recipe is once they are together.
const LEAST_JOINING: Duration = Duration::from_mins(1);

/// A worker that has joined.
pub struct Member {
    /// Its end.
    pub comm: Comm,
    /// How many workers share this machine, itself included.
    pub num_local: usize,
}

/// The end of a worker that is the only one.
pub fn alone(recipe: &Recipe, world: &World, arena_bytes: usize) -> Result<Member, ClusterError> {
    let timeout = recipe.run.deadline();
    let mut ends = Comm::threads(world, 1, &Options { arena_bytes, timeout })?;
    let comm = ends.pop().expect("one rank has one end");
    Ok(Member { comm, num_local: 1 })
}

/// The end of a worker that is a process; waits for the others to come too. Callers that do not
/// belong to the run are told to `log`.
pub fn worker(
    recipe: &Recipe,
    world: &World,
    place: &Place,
    arena_bytes: usize,
    log: Log,
) -> Result<Member, ClusterError> {
    let settings = Settings { log: Some(log), ..settings(recipe) };
    let joined = rendezvous::join(world, place, &settings)?;
    member(recipe, world, joined, arena_bytes)
}

/// Joins the run and opens the best wires that there are ([`hosts::connect`]).
pub fn open(
    world: &World,
    place: &Place,
    settings: &Settings,
    options: &TcpOptions,
    arena_bytes: usize,
) -> Result<Channels, ClusterError> {
    let joined = rendezvous::join(world, place, settings)?;
    Ok(hosts::connect(world, joined, settings.memory(arena_bytes), options)?)
}

/// Where a thread will find its end.
pub enum Seat {
    /// Here it is.
    Ready(Member),
    /// It meets the others at an address, as processes do.
    Meeting {
        /// Its place.
        place: Place,
        /// The address itself, for rank 0.
        listener: Option<Box<dyn Listener>>,
    },
}

/// The seats of workers that are threads of this process, by rank.
pub fn seats(
    recipe: &Recipe,
    world: &World,
    arena_bytes: usize,
) -> Result<Vec<Seat>, ClusterError> {
    let num_ranks = recipe.num_ranks();
    if recipe.run.transport == TransportChoice::Tcp {
        let listener = rendezvous::listen(world, "127.0.0.1:0")?;
        let master = listener.local_addr();
        let ticket = Ticket::new(world);
        let mut listener = Some(listener);
        let seat = |rank| {
            let place = Place::new(Rank(rank), num_ranks, &master, &ticket);
            Seat::Meeting { place, listener: listener.take() }
        };
        return Ok((0..num_ranks).map(seat).collect());
    }
    let options = Options { arena_bytes, timeout: recipe.run.deadline() };
    let ends = Comm::threads(world, num_ranks, &options)?;
    Ok(ends.into_iter().map(|comm| Seat::Ready(Member { comm, num_local: num_ranks })).collect())
}

impl Seat {
    /// The end; waits for the others where they have to meet.
    pub fn take(
        self,
        recipe: &Recipe,
        world: &World,
        arena_bytes: usize,
    ) -> Result<Member, ClusterError> {
        let settings = settings(recipe);
        let joined = match self {
            Self::Ready(member) => return Ok(member),
            Self::Meeting { place, listener: Some(listener) } => {
                rendezvous::join_as_first(world, listener, &place, &settings)?
            }
            Self::Meeting { place, listener: None } => rendezvous::join(world, &place, &settings)?,
        };
        member(recipe, world, joined, arena_bytes)
    }
}

fn settings(recipe: &Recipe) -> Settings {
    let shares_memory = recipe.run.transport != TransportChoice::Tcp;
    let timeout = recipe.run.deadline().max(LEAST_JOINING);
    Settings { shares_memory, timeout, encrypt: recipe.run.encrypt, ..Settings::default() }
}

fn member(
    recipe: &Recipe,
    world: &World,
    joined: Joined,
    arena_bytes: usize,
) -> Result<Member, ClusterError> {
    let num_local = joined.num_local();
    let options = TcpOptions { emulate: recipe.emulate.clone(), ..TcpOptions::default() };
    let wires = hosts::connect(world, joined, settings(recipe).memory(arena_bytes), &options)?;
    let comm = Comm::world(world, wires)?.within(recipe.run.deadline());
    comm.probe()?;
    if recipe.run.transport == TransportChoice::Shm && comm.transport() != "shm" {
        return Err(ClusterError::NotOneHost { transport: comm.transport() });
    }
    Ok(Member { comm, num_local })
}
