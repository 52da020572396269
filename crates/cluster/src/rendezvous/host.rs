//! A meeting point of its own.
//!
//! It knows the run's secret and how many ranks come, waits for all of them, rank 0 included, hands
//! out the table and is done. Ranks of one run may then be started anywhere and in any order, and
//! only this address must be known before.

use lockstep_platform::{Deadline, Listener, World};

use super::door::Door;
use super::gather::{Gathering, gather};
use super::wire::Member;
use super::{RendezvousError, Settings, run_name};
use lockstep_auth::ticket::Ticket;

/// A run that came together here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosted {
    /// A name for the run that no other run has.
    pub run: String,
    /// By rank.
    pub guests: Vec<HostedGuest>,
    /// How many callers were turned away.
    pub num_refused: usize,
}

/// A rank that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedGuest {
    /// Its machine.
    pub host: String,
    /// Where the others find it.
    pub addr: String,
}

/// Waits for all ranks of a run and introduces them to each other. Of the settings only the time
/// limits and the log count; the rest is for the ranks to agree on.
pub fn host(
    world: &World,
    listener: Box<dyn Listener>,
    ticket: &Ticket,
    num_ranks: usize,
    settings: &Settings,
) -> Result<Hosted, RendezvousError> {
    let (limit, log) = (settings.greeting_limit, settings.log);
    let mut door = Door::new(world, listener, &ticket.secret, num_ranks, limit, log);
    let gathering = Gathering {
        world,
        num_ranks,
        run: &ticket.run,
        terms: None,
        deadline: Deadline::after(world.clock(), settings.timeout),
        timeout: settings.timeout,
        log,
    };
    let table = gather(&gathering, &mut door, None)?;
    let guest = |Member { host, addr }| HostedGuest { host, addr };
    Ok(Hosted {
        run: run_name(&table.run),
        guests: table.members.into_iter().map(guest).collect(),
        num_refused: door.refusals().num_all(),
    })
}
