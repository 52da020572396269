//! Shared memory inside a host, TCP between hosts.
//!
//! A round may have messages of both kinds, and the ranks at their other ends may in turn wait for
//! each other, so both kinds make progress at once: doing one after the other could wait for ever.
//! Whatever one of the two learns about a rank that failed the other one is told.

use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::World;

use super::shared::{Meeting, SharedTransport, SharedWorld, ended};
use super::tcp::{LOOK_AROUND, TcpOptions, TcpTransport, WARNING};
use super::{Envelope, Renewal, Round, Transport, Wires};
use crate::error::{CommError, Interruption};
use crate::rendezvous::{Joined, Place, Settings, join};
use crate::verdict::Verdict;

/// How long to sleep on the network while something may come through memory, at first and at most.
const FIRST_NAP: Duration = Duration::from_micros(100);
const LAST_NAP: Duration = Duration::from_millis(2);

/// One lane of a rank's wires to ranks on its own host and on others.
pub struct HostsTransport {
    world: World,
    memory: SharedTransport,
    network: TcpTransport,
    domains: Vec<usize>,
}

/// Joins the run and returns the best wires that there are: shared memory if all ranks are on this
/// host, otherwise TCP, and shared memory for the ranks that are. Without
/// [`Settings::shares_memory`] it is TCP throughout.
pub fn open(
    world: &World,
    place: &Place,
    settings: &Settings,
    options: &TcpOptions,
    arena_bytes: usize,
) -> Result<Wires, CommError> {
    let joined = join(world, place, settings)?;
    connect(world, joined, settings, options, arena_bytes)
}

/// The wires of a rank that has joined.
pub fn connect(
    world: &World,
    joined: Joined,
    settings: &Settings,
    options: &TcpOptions,
    arena_bytes: usize,
) -> Result<Wires, CommError> {
    let (local_peers, num_local) = (joined.local_peers(), joined.num_local());
    let Joined { rank, num_ranks, run, mut cables, domains, .. } = joined;
    if !settings.shares_memory {
        let lanes = TcpTransport::lanes(world, rank, cables, num_local, options)?;
        return Ok(TcpTransport::wires(lanes));
    }
    let meeting = Meeting::open(world, &run, rank, num_ranks)?;
    let view = meeting.meet(&local_peers, arena_bytes, settings.timeout)?;
    let memory = SharedTransport::lanes(&Arc::new(view));
    if local_peers.len() + 1 == num_ranks {
        return Ok(Wires::of(memory));
    }
    for lane in &mut cables {
        for peer in &local_peers {
            lane[peer.0] = None;
        }
    }
    let network = TcpTransport::lanes(world, rank, cables, num_local, options)?;
    let mut network = network.into_iter();
    Ok(Wires::of(memory.map(|memory| {
        let network = network.next().expect("both have the same lanes");
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
        let (mut idle_since, mut has_warned) = (None, false);
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
            if self.network.tries_again(idle, &mut num_tries) {
                continue;
            }
            if idle >= LOOK_AROUND {
                self.network.look_for_mismatch(&round.envelope)?;
            }
            if idle >= WARNING && !std::mem::replace(&mut has_warned, true) {
                self.network.warn();
            }
            if idle >= timeout {
                let why = self.network.out_of_time(&round.envelope);
                let peer = self.waited_for(round);
                let is_late = matches!(why, Interruption::Deadline { .. });
                return Err(if is_late { Interruption::Deadline { peer } } else { why });
            }
            // Memory wakes nobody who sleeps on the network, so sleeps are short while it may.
            let longest = if self.memory.is_done() { timeout } else { nap };
            self.network.sleep(longest.min(timeout.saturating_sub(idle)))?;
            if let Err(why) = self.look_around(round) {
                // What came at the last moment has come.
                if !self.memory.step(round)? {
                    return Err(why);
                }
            }
            nap = (2 * nap).min(LAST_NAP);
        }
    }

    /// Whether nobody on this host has given up, and nobody has died who is still needed. Who is
    /// not may have left because all its work is done.
    fn look_around(&self, round: &Round<'_>) -> Result<(), Interruption> {
        let is_needed = |rank: Rank| {
            let from = round.recvs.iter().map(|(peer, _)| *peer);
            let mut peers = from.chain(round.sends.iter().map(|(peer, _)| *peer));
            !self.memory.is_done() && peers.any(|peer| peer == rank)
        };
        match self.memory.look_around() {
            Err(Interruption::Lost { peer, .. }) if !is_needed(peer) => Ok(()),
            found => found,
        }
    }

    fn waited_for(&self, round: &Round<'_>) -> Rank {
        if !self.network.is_done() {
            return self.network.waited_for();
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
            if !matches!(why, Interruption::Lost { peer, .. } if self.network.is_spared(*peer)) {
                self.network.end(why.clone());
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
            let by_memory = self.memory.with_message(peers, envelope)?;
            let found = by_memory.or_else(|| self.network.with_message(peers, envelope));
            if let Some(peer) = found {
                return Ok(peer);
            }
            if self.memory.is_gone(peers[0]) || self.network.is_gone(peers[0]) {
                return Err(ended(peers[0]));
            }
            let idle = self.world.clock().since(began);
            if idle >= timeout {
                return Err(Interruption::Deadline { peer: peers[0] });
            }
            self.memory.look_around().map_err(|why| self.network.end(why))?;
            self.network.sleep_for_message(peers, nap.min(timeout.saturating_sub(idle)))?;
            nap = (2 * nap).min(LAST_NAP);
        }
    }

    fn shared(&self) -> Option<Arc<SharedWorld>> {
        self.memory.shared()
    }

    fn spare(&self, ranks: &[Rank]) {
        self.memory.spare(ranks);
        self.network.spare(ranks);
    }

    /// The ranks of a host speak with one voice: the first of them that made a statement.
    fn settle(&mut self, statement: Verdict) -> Verdict {
        let of_host = self.memory.settle(statement);
        self.network.settle(of_host)
    }

    fn renew(self: Box<Self>, renewal: &Renewal<'_>) -> Result<Box<dyn Transport>, CommError> {
        let Self { world, memory, mut network, domains } = *self;
        network.begin_epoch(renewal);
        let memory = memory.renewed(renewal);
        Ok(Box::new(Self { world, memory, network, domains }))
    }

    fn domains(&self) -> Vec<usize> {
        self.domains.clone()
    }

    fn name(&self) -> &'static str {
        "shm+tcp"
    }
}
