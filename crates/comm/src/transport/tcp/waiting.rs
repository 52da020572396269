//! Waiting for whoever sends first.

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::Interest;

use super::trouble::Trouble;
use super::{LOOK_AROUND, TcpTransport};
use crate::error::Interruption;
use crate::transport::Envelope;

impl TcpTransport {
    /// The first of `peers` from which a message with this name has begun to come; others that
    /// there is no cable to are somebody else's.
    pub(crate) fn with_message(&mut self, peers: &[Rank], wanted: &Envelope) -> Option<Rank> {
        let set = &mut *self.set;
        peers.iter().copied().find(|peer| {
            let link = self.link_of[peer.0].map(|link| &mut self.links[link]);
            link.is_some_and(|link| link.receiver.has_message(set, wanted))
        })
    }

    /// Sleeps until something may have come from one of `peers`.
    pub(crate) fn sleep_for_message(
        &mut self,
        peers: &[Rank],
        timeout: Duration,
    ) -> Result<(), Interruption> {
        self.awake.look(self.world.clock().now());
        let (all, watched) = (&self.links, &mut self.set);
        for link in all {
            watched.watch(link.receiver.first_stream(), Interest::default());
            if let Some(control) = link.control.stream() {
                watched.watch(control, Interest { read: true, write: false });
            }
        }
        // The stream of one that has died would be ready all the time.
        let living = peers.iter().filter(|peer| !self.is_gone(**peer));
        let living: Vec<usize> = living.filter_map(|peer| self.link_of[peer.0]).collect();
        for link in living {
            let stream = self.links[link].receiver.first_stream();
            self.set.watch(stream, Interest { read: true, write: false });
        }
        match self.set.wait(None, timeout.min(LOOK_AROUND)) {
            Ok(true) => self.listen(true),
            Ok(false) => self.check_fate(),
            Err(error) => {
                let reason = format!("waiting for streams failed: {error}");
                Err(self.end(Interruption::Lost { peer: peers[0], reason }))
            }
        }
    }

    /// See [`crate::transport::Transport::wait_for_message`].
    pub(super) fn wait_for_first(
        &mut self,
        peers: &[Rank],
        wanted: &Envelope,
        timeout: Duration,
    ) -> Result<Rank, Interruption> {
        self.check_fate()?;
        let began = self.world.clock().now();
        loop {
            if let Some(peer) = self.with_message(peers, wanted) {
                return Ok(peer);
            }
            if self.is_gone(peers[0]) {
                return Err(self.broken_by(peers[0], Trouble::Closed));
            }
            let idle = self.world.clock().since(began);
            if idle >= timeout {
                self.listen(false)?;
                return Err(Interruption::Deadline { peer: peers[0] });
            }
            self.sleep_for_message(peers, timeout.saturating_sub(idle))?;
        }
    }
}
