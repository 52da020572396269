//! Waiting for a message without receiving it (`MPI_Probe`).

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::Interest;

use super::TcpTransport;
use super::peer_error::PeerError;
use crate::error::Interruption;
use crate::transport::{Envelope, POLL_INTERVAL};

impl TcpTransport {
    /// The first of `peers` from which a matching message has begun to arrive. Peers without a
    /// connection are ignored.
    pub(crate) fn find_message(&mut self, peers: &[Rank], expected: &Envelope) -> Option<Rank> {
        let set = &mut *self.set;
        peers.iter().copied().find(|peer| {
            let link = self.link_of[peer.0].map(|link| &mut self.links[link]);
            link.is_some_and(|link| link.receiver.has_message(set, expected))
        })
    }

    /// Sleeps until a message may have arrived from one of `peers`.
    pub(crate) fn sleep_for_message(
        &mut self,
        peers: &[Rank],
        timeout: Duration,
    ) -> Result<(), Interruption> {
        self.liveness.check(self.world.clock().now());
        let (all, watched) = (&self.links, &mut self.set);
        for link in all {
            watched.watch(link.receiver.first_stream(), Interest::default());
            if let Some(control) = link.control.stream() {
                watched.watch(control, Interest { read: true, write: false });
            }
        }
        // The stream of a dead peer would always be ready.
        let living = peers.iter().filter(|peer| !self.is_dead(**peer));
        let living: Vec<usize> = living.filter_map(|peer| self.link_of[peer.0]).collect();
        for link in living {
            let stream = self.links[link].receiver.first_stream();
            self.set.watch(stream, Interest { read: true, write: false });
        }
        match self.set.wait(None, timeout.min(POLL_INTERVAL)) {
            Ok(true) => self.check_reports(true),
            Ok(false) => self.check_failure(),
            Err(error) => {
                let reason = format!("waiting for streams failed: {error}");
                Err(self.record_failure(Interruption::Lost { peer: peers[0], reason }))
            }
        }
    }

    /// Implements [`crate::transport::Transport::wait_for_message`].
    pub(super) fn probe_first(
        &mut self,
        peers: &[Rank],
        expected: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        self.check_failure()?;
        let began = self.world.clock().now();
        loop {
            if let Some(peer) = self.find_message(peers, expected) {
                return Ok(peer);
            }
            if self.is_dead(peers[0]) {
                return Err(self.peer_failed(peers[0], PeerError::Closed));
            }
            let idle = self.world.clock().since(began);
            if idle >= timeout {
                self.check_reports(false)?;
                return Err(Interruption::Deadline { peer: peers[0] });
            }
            self.sleep_for_message(peers, timeout.saturating_sub(idle))?;
        }
    }
}
