//! Standalone rendezvous host.
//!
//! It knows the secret and the world size, waits for all ranks, rank 0 included, sends them the
//! table and ends. Ranks can then start anywhere and in any order; only this address must be known
//! in advance.

use lockstep_platform::{Deadline, Listener, World};

use super::acceptor::Acceptor;
use super::registry::{Registry, collect_ranks};
use super::wait_log::WaitLog;
use super::wire::PeerInfo;
use super::{RendezvousError, Settings, run_name};
use lockstep_auth::ticket::Ticket;

/// Run whose ranks have joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedRun {
    /// Unique name of the run.
    pub run: String,
    /// Ranks of the run, in order.
    pub ranks: Vec<HostedRank>,
    /// Number of rejected connections.
    pub num_refused: usize,
}

/// Rank that has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostedRank {
    /// Host name.
    pub host: String,
    /// Address for the other ranks.
    pub addr: String,
}

/// Waits for all ranks of a run and sends them the table. Only the time limits and the log of the
/// settings apply; the ranks agree on the rest.
pub fn host(
    world: &World,
    listener: Box<dyn Listener>,
    ticket: &Ticket,
    num_ranks: usize,
    settings: &Settings,
) -> Result<HostedRun, RendezvousError> {
    let (timeout, log) = (settings.handshake_timeout, settings.log);
    let mut acceptor = Acceptor::new(world, listener, &ticket.secret, num_ranks, timeout, log);
    let waiting = WaitLog::new(world, log, settings.wait_reports, settings.timeout);
    let registry = Registry {
        world,
        num_ranks,
        run: &ticket.run,
        shared_settings: None,
        deadline: Deadline::after(world.clock(), settings.timeout),
        timeout: settings.timeout,
        waiting: &waiting,
        log,
    };
    let table = collect_ranks(&registry, &mut acceptor, None)?;
    let rank = |PeerInfo { host, addr }| HostedRank { host, addr };
    Ok(HostedRun {
        run: run_name(&table.run),
        ranks: table.peers.into_iter().map(rank).collect(),
        num_refused: acceptor.rejections().num_all(),
    })
}
