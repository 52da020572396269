//! Withdrawal from a failed call: no rank accesses this rank's buffers after the call has returned.
//!
//! A late rank would find the signals of this rank and access its memory, although the call has
//! failed and the caller uses its buffers again. So a rank that fails takes its signals back, which
//! stops every rank that has not passed its wait, and then waits for the ranks that may have passed
//! it. A rank says that it is inside a call before it waits (its first signal, or the word that
//! [`SharedWorld::enter`] writes), and both sides have a full fence between their write and their
//! read: either the late rank sees that the signals are gone, or this rank sees the late one.
//!
//! A rank that is inside leaves soon: it finishes its accesses, or finds the verdict in its next
//! wait. A process that was stopped during an access cannot leave, and may complete that access
//! when it resumes; so the survivors of a failure allocate new buffers in
//! [new memory](SharedWorld::in_next_epoch).

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, ProcessState};

use super::header::Header;
use super::{SharedWorld, lock};
use crate::flags::{may_be_inside, publish, revoke};

/// How long a running rank may take to leave a failed call.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between two looks at a rank that has to leave.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

impl SharedWorld {
    /// Publishes that this rank is inside a call in which it waits before it signals.
    pub(crate) fn enter(&self, group: u64, call: u64) {
        publish(self.own().word(Header::entered(group)), call);
        self.fence_lightly();
    }

    /// Withdraws from a failed call of a group, after the verdict was published.
    #[cold]
    pub(crate) fn withdraw(&self, group: u64, call: u64, ranks: &[Rank]) {
        revoke([1, 2].map(|signal| self.line(self.rank, group, call, signal)), call);
        self.finish(group, call);
        self.fence();
        self.wake(ranks.iter().copied());
        let deadline = Deadline::after(self.world.clock(), LEAVE_TIMEOUT);
        let is_peer = |rank: &&Rank| **rank != self.rank && self.sees(**rank);
        for &peer in ranks.iter().filter(is_peer) {
            while self.is_inside(peer, group, call)
                && self.can_leave(peer)
                && !deadline.has_passed(self.world.clock())
            {
                self.world.clock().sleep(LOOK_INTERVAL);
            }
        }
    }

    fn is_inside(&self, rank: Rank, group: u64, call: u64) -> bool {
        let segment = self.segment(rank);
        let [entered, finished] =
            [Header::entered(group), Header::finished(group)].map(|offset| segment.word(offset));
        may_be_inside(self.line(rank, group, call, 1), entered, finished, call)
    }

    /// Whether a rank still runs.
    fn can_leave(&self, rank: Rank) -> bool {
        let has_ended = |watched: &super::Watched| watched.rank == rank && watched.has_ended();
        let state = || self.world.processes().state(self.process_of(rank)?.id);
        !self.has_left(rank)
            && !lock(&self.watched).iter().any(has_ended)
            && state() != Some(ProcessState::Stopped)
    }
}
