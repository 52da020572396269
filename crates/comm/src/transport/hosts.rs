//! Shared memory inside a host and TCP between hosts.
//!
//! A round may have messages of both kinds, and the ranks at their other ends may wait for each
//! other, so both transports make progress at once; running one after the other could deadlock.
//! A failure that one of them detects is recorded in both.

use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::World;

use super::shared::{SegmentExchange, SharedTransport, SharedWorld, ended};
use super::tcp::{Connections, TcpOptions, TcpTransport};
use super::{Channels, Envelope, EpochChange, POLL_INTERVAL, Round, SLOW_PEER_WARNING, Transport};
use crate::error::{CommError, Interruption};
use crate::verdict::Verdict;

/// First and longest sleep on the network while messages may arrive through memory.
const FIRST_NAP: Duration = Duration::from_micros(100);
const LAST_NAP: Duration = Duration::from_millis(2);

/// One channel of a rank to ranks on its own host and on others.
pub struct HostsTransport {
    world: World,
    memory: SharedTransport,
    network: TcpTransport,
    domains: Vec<usize>,
}

/// A rank that has joined the run, with connections to all others.
pub struct ConnectedRank {
    /// This rank.
    pub rank: Rank,
    /// World size.
    pub num_ranks: usize,
    /// Unique name of the run.
    pub run: String,
    /// Host of each rank. Equal names are probably the same host.
    pub hosts: Vec<String>,
    /// The streams to all other ranks.
    pub connections: Connections,
    /// Memory domain of each rank: ranks of one domain are certain to share a host. Equal on all
    /// ranks.
    pub domains: Vec<usize>,
}

impl ConnectedRank {
    /// The other ranks in this rank's memory domain.
    pub fn local_peers(&self) -> Vec<Rank> {
        let own = self.domains[self.rank.0];
        let is_local = |&rank: &Rank| rank != self.rank && self.domains[rank.0] == own;
        (0..self.num_ranks).map(Rank).filter(is_local).collect()
    }

    /// Number of ranks with the host name of this rank, itself included.
    pub fn num_local(&self) -> usize {
        self.hosts.iter().filter(|&host| *host == self.hosts[self.rank.0]).count()
    }
}

/// Shared memory between the ranks of a host.
#[derive(Debug, Clone, Copy)]
pub struct SharedMemory {
    /// Size of this rank's arena.
    pub arena_bytes: usize,
    /// Deadline for the exchange of segments.
    pub timeout: Duration,
}

/// Opens the fastest channels between joined ranks: shared memory between ranks of one host, TCP
/// between hosts. Without `memory` it is TCP throughout.
pub fn connect(
    world: &World,
    joined: ConnectedRank,
    memory: Option<SharedMemory>,
    options: &TcpOptions,
) -> Result<Channels, CommError> {
    let (local_peers, num_local) = (joined.local_peers(), joined.num_local());
    let ConnectedRank { rank, num_ranks, run, mut connections, domains, .. } = joined;
    let Some(SharedMemory { arena_bytes, timeout }) = memory else {
        let channels = TcpTransport::channels(world, rank, connections, num_local, options)?;
        return Ok(TcpTransport::into_channels(channels));
    };
    let exchange = SegmentExchange::listen(world, &run, rank, num_ranks)?;
    let view = exchange.run(&local_peers, arena_bytes, timeout)?;
    let memory = SharedTransport::channels(&Arc::new(view));
    if local_peers.len() + 1 == num_ranks {
        return Ok(Channels::new(memory));
    }
    for channel in &mut connections {
        for peer in &local_peers {
            channel[peer.0] = None;
        }
    }
    let network = TcpTransport::channels(world, rank, connections, num_local, options)?;
    let mut network = network.into_iter();
    Ok(Channels::new(memory.map(|memory| {
        let network = network.next().expect("both have the same channels");
        HostsTransport { world: Arc::clone(world), memory, network, domains: domains.clone() }
    })))
}

impl HostsTransport {
    fn exchange_both(
        &mut self,
        round: &mut Round<'_>,
        timeout: Duration,
    ) -> Result<(), Interruption> {
        self.network.begin(round)?;
        self.memory.begin(round);
        let (mut began, mut idle_since, mut has_warned) = (None, None, false);
        let (mut num_tries, mut nap) = (0, FIRST_NAP);
        loop {
            let by_memory = self.memory.step(round)?;
            let by_network = self.network.step(round)?;
            if self.memory.is_done() && self.network.is_done() {
                return Ok(());
            }
            if by_memory || by_network {
                (idle_since, num_tries, nap) = (None, 0, FIRST_NAP);
                continue;
            }
            let now = self.world.clock().now();
            let idle = now.saturating_sub(*idle_since.get_or_insert(now));
            if self.network.keeps_spinning(idle, &mut num_tries) {
                continue;
            }
            if idle >= POLL_INTERVAL {
                self.network.find_mismatch(&round.envelope)?;
            }
            if idle >= SLOW_PEER_WARNING && !std::mem::replace(&mut has_warned, true) {
                self.network.warn();
            }
            let elapsed = now.saturating_sub(*began.get_or_insert(now));
            if idle >= timeout || elapsed >= round.total_timeout(timeout) {
                let why = self.network.timeout_cause(&round.envelope);
                let peer = self.awaited_rank(round);
                let is_timeout = matches!(why, Interruption::Deadline { .. });
                return Err(if is_timeout { Interruption::Deadline { peer } } else { why });
            }
            // Shared memory does not wake a rank that sleeps on the network, so sleeps stay short.
            let longest = if self.memory.is_done() { timeout } else { nap };
            self.network.sleep(longest.min(timeout.saturating_sub(idle)))?;
            if let Err(why) = self.check_peers(round) {
                // Messages that arrived before the failure still count.
                if !self.memory.step(round)? {
                    return Err(why);
                }
            }
            nap = (2 * nap).min(LAST_NAP);
        }
    }

    /// Checks that no rank of this host has failed and that no rank of the round has died. Other
    /// ranks may have left because their work is done.
    fn check_peers(&self, round: &Round<'_>) -> Result<(), Interruption> {
        let is_needed = |rank: Rank| {
            let from = round.recvs.iter().map(|(peer, _)| *peer);
            let mut peers = from.chain(round.sends.iter().map(|(peer, _)| *peer));
            !self.memory.is_done() && peers.any(|peer| peer == rank)
        };
        match self.memory.check_peers() {
            Err(Interruption::Lost { peer, .. }) if !is_needed(peer) => Ok(()),
            found => found,
        }
    }

    fn awaited_rank(&self, round: &Round<'_>) -> Rank {
        if !self.network.is_done() {
            return self.network.awaited_rank();
        }
        let from = round.recvs.iter().map(|(peer, _)| *peer);
        let mut peers = from.chain(round.sends.iter().map(|(peer, _)| *peer));
        peers.find(|&peer| !self.network.reaches(peer)).unwrap_or(self.network.rank())
    }
}

impl Transport for HostsTransport {
    fn rank(&self) -> Rank {
        self.network.rank()
    }

    fn num_ranks(&self) -> usize {
        self.network.num_ranks()
    }

    fn exchange(&mut self, round: &mut Round<'_>, timeout: Duration) -> Result<(), Interruption> {
        let to = round.sends.iter().map(|(peer, _)| *peer);
        let mut peers = to.chain(round.recvs.iter().map(|(peer, _)| *peer));
        let result = if peers.any(|peer| self.network.reaches(peer)) {
            self.exchange_both(round, timeout)
        } else {
            self.memory.exchange(round, timeout)
        };
        result.inspect_err(|why| {
            self.network.abandon(round);
            if !matches!(why, Interruption::Lost { peer, .. } if self.network.is_expendable(*peer))
            {
                self.network.record_failure(why.clone());
            }
        })
    }

    fn wait_for_message(
        &mut self,
        peers: &[Rank],
        envelope: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        if !peers.iter().any(|peer| self.network.reaches(*peer)) {
            return self.memory.wait_for_message(peers, envelope, timeout);
        }
        let (began, mut nap) = (self.world.clock().now(), FIRST_NAP);
        loop {
            let by_memory = self.memory.find_message(peers, envelope)?;
            let found = by_memory.or_else(|| self.network.find_message(peers, envelope));
            if let Some(peer) = found {
                return Ok(peer);
            }
            if self.memory.is_dead(peers[0]) || self.network.is_dead(peers[0]) {
                return Err(ended(peers[0]));
            }
            let idle = self.world.clock().since(began);
            if idle >= timeout {
                return Err(Interruption::Deadline { peer: peers[0] });
            }
            self.memory.check_peers().map_err(|why| self.network.record_failure(why))?;
            self.network.sleep_for_message(peers, nap.min(timeout.saturating_sub(idle)))?;
            nap = (2 * nap).min(LAST_NAP);
        }
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        self.memory.shared()
    }

    fn mark_expendable(&self, ranks: &[Rank]) {
        self.memory.mark_expendable(ranks);
        self.network.mark_expendable(ranks);
    }

    /// The ranks of a host first agree on one report, then all hosts agree on the verdict.
    fn agree_on_verdict(&mut self, report: Verdict) -> Verdict {
        let of_host = self.memory.agree_on_verdict(report);
        self.network.agree_on_verdict(of_host)
    }

    fn into_next_epoch(
        self: Box<Self>,
        change: &EpochChange<'_>,
    ) -> Result<Box<dyn Transport>, CommError> {
        let Self { world, memory, mut network, domains } = *self;
        network.begin_epoch(change);
        let memory = memory.in_next_epoch(change);
        Ok(Box::new(Self { world, memory, network, domains }))
    }

    fn domains(&self) -> Vec<usize> {
        self.domains.clone()
    }

    fn name(&self) -> &'static str {
        "shm+tcp"
    }
}
