//! Continuing on the same streams after a failure.
//!
//! The survivors of a failure keep their streams; reconnecting would need the whole rendezvous.
//! Messages of the last epoch may be torn: a stream may hold the first half of one. So every header
//! carries its epoch. A sender first completes each torn message with padding; a receiver skips
//! every message under a header of an earlier epoch, so a rank that still writes in an old epoch
//! disturbs no survivor.

use std::sync::Arc;

use lockstep_mesh::Rank;

use super::{Link, TcpTransport};
use crate::transport::{EpochChange, Round};

impl TcpTransport {
    /// Abandons a round after a failure.
    #[cold]
    pub(crate) fn abandon(&mut self, round: &Round<'_>) {
        for &link in &self.active {
            self.links[link].sender.abandon(round);
            self.links[link].receiver.abandon();
        }
        self.active.clear();
    }

    /// Continues with the survivors.
    pub(crate) fn begin_epoch(&mut self, change: &EpochChange<'_>) {
        let stays = |peer: Rank| change.survivors.contains(&peer);
        self.epoch = change.epoch;
        self.failure = Arc::clone(&change.failure);
        self.active.clear();
        self.control_copies.retain(|(peer, _)| stays(*peer));
        let (staying, leaving): (Vec<Link>, Vec<Link>) =
            std::mem::take(&mut self.links).into_iter().partition(|link| stays(link.peer));
        for link in leaving {
            let streams = link.sender.streams().chain([link.control.number()]);
            // Dropping closes the stream, so a peer that still writes to it gets an error.
            streams.for_each(|stream| drop(self.set.remove(stream)));
        }
        self.links = staying;
        self.link_of.fill(None);
        for (index, link) in self.links.iter_mut().enumerate() {
            self.link_of[link.peer.0] = Some(index);
            link.sender.begin_epoch(change.epoch);
            link.receiver.begin_epoch(change.epoch);
        }
    }
}
