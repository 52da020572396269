//! The same streams in the next epoch.
//!
//! When ranks go on without one that failed, the streams between them stay open; connecting anew
//! would need everything that found them in the first place. Messages of the last epoch may be
//! torn: a stream may hold the first half of one. So every header carries its epoch. A sender owes
//! the rest of what it had begun and pays it before anything else, in bytes without a meaning; a
//! receiver skips everything under a header of an earlier epoch. Whoever still writes under a dead
//! epoch writes to nobody.

use std::sync::Arc;

use lockstep_mesh::Rank;

use super::{Link, TcpTransport};
use crate::transport::{Renewal, Round};

impl TcpTransport {
    /// Gives up a round after a failure.
    #[cold]
    pub(crate) fn abandon(&mut self, round: &Round<'_>) {
        for &link in &self.active {
            self.links[link].sender.abandon(round);
        }
        self.active.clear();
    }

    /// Goes on with those who are left.
    pub(crate) fn begin_epoch(&mut self, renewal: &Renewal<'_>) {
        let stays = |peer: Rank| renewal.survivors.contains(&peer);
        self.epoch = renewal.epoch;
        self.fate = Arc::clone(&renewal.fate);
        self.active.clear();
        self.heralds.retain(|(peer, _)| stays(*peer));
        let (staying, leaving): (Vec<Link>, Vec<Link>) =
            std::mem::take(&mut self.links).into_iter().partition(|link| stays(link.peer));
        for link in leaving {
            let streams = link.sender.streams().chain([link.control.number()]);
            // Closed when dropped: whoever still writes there will find out.
            streams.for_each(|stream| drop(self.set.remove(stream)));
        }
        self.links = staying;
        self.link_of.fill(None);
        for (index, link) in self.links.iter_mut().enumerate() {
            self.link_of[link.peer.0] = Some(index);
            link.sender.begin_epoch(renewal.epoch);
            link.receiver.begin_epoch(renewal.epoch);
        }
    }
}
