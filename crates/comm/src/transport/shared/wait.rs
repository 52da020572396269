//! Waiting for another rank: spin, then yield, then sleep.
//!
//! Most waits end within microseconds, and waking a sleeping thread takes longer than that. So a
//! rank first spins; with more ranks than cores it soon yields its core; and after about a
//! millisecond it sleeps, so that an idle rank uses no CPU. Only a long wait reads the clock and
//! checks whether a rank has failed or died.
//!
//! A rank that waits long publishes the rank that it waits for and a heartbeat. At its deadline a
//! rank follows these words from peer to peer and blames the end of the chain: a rank that waits
//! for none, or whose heartbeat has stopped.

use std::io::Write;
use std::sync::MutexGuard;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, ProcessState};

use super::{SharedWorld, header, lock};
use crate::error::Interruption;
use crate::transport::timing::{MAX_SILENCE, POLL_INTERVAL, SLOW_PEER_WARNING};

/// Yields between two checks for a failure.
const YIELDS_PER_LOOK: u32 = 16;

/// Longest yielding phase before a rank sleeps. On a loaded host one yield may take as long as the
/// time slices of all other threads.
const LONGEST_YIELDING: Duration = Duration::from_millis(10);

impl SharedWorld {
    /// Waits for `peer` until `is_done`.
    #[inline]
    pub(crate) fn wait_until(
        &self,
        peer: Rank,
        timeout: Duration,
        is_done: impl FnMut() -> bool,
    ) -> Result<(), Interruption> {
        self.wait_within(peer, |_| timeout, is_done)
    }

    /// [`Self::wait_until`] for one of several waits with a common limit: `timeout_at` returns the
    /// timeout of a wait that outlasts spinning at a given time.
    #[inline]
    pub(crate) fn wait_within(
        &self,
        peer: Rank,
        timeout_at: impl FnOnce(Duration) -> Duration,
        mut is_done: impl FnMut() -> bool,
    ) -> Result<(), Interruption> {
        for _ in 0..self.spin_policy.num_spins {
            if is_done() {
                return Ok(());
            }
            // Polling without a pause is slower: the processor speculates ahead of the change and
            // has to roll back.
            std::hint::spin_loop();
        }
        self.wait_long(peer, timeout_at, is_done)
    }

    #[cold]
    fn wait_long(
        &self,
        peer: Rank,
        timeout_at: impl FnOnce(Duration) -> Duration,
        mut is_done: impl FnMut() -> bool,
    ) -> Result<(), Interruption> {
        self.num_long_waits.fetch_add(1, Ordering::Relaxed);
        let timeout = timeout_at(self.world.clock().now());
        // Counted from here, not from the end of the yields, and with a margin: a peer that has
        // waited since the same moment, perhaps on a network, can report its own timeout first.
        let deadline = Deadline::after(self.world.clock(), timeout + 2 * LONGEST_YIELDING);
        let yielding = Deadline::after(self.world.clock(), LONGEST_YIELDING);
        for turn in 0..self.spin_policy.num_yields {
            if is_done() {
                return Ok(());
            }
            if turn.is_multiple_of(YIELDS_PER_LOOK) {
                self.check_verdict()?;
                if yielding.has_passed(self.world.clock()) {
                    break;
                }
            }
            self.world.shared().yield_now();
        }
        let mut long_wait = LongWait::new(self, peer);
        let mut stopped = None;
        let fence = || self.fence();
        let came = self.doorbell(self.rank).sleep_until(&mut is_done, fence, |word, previous| {
            let remaining = deadline.remaining(self.world.clock());
            stopped = self.check_peers().err();
            if self.is_dead(peer) {
                stopped = stopped.take().or_else(|| Some(ended(peer)));
            }
            if self.has_left(peer) {
                // All its writes are visible by now; `is_done` is evaluated once more below.
                let reason = "it has left the run".to_owned();
                stopped = stopped.take().or(Some(Interruption::Lost { peer, reason }));
            }
            long_wait.check();
            if remaining.is_zero() {
                let peer = long_wait.blocking_rank();
                stopped = stopped.take().or(Some(Interruption::Deadline { peer }));
            }
            if stopped.is_none() {
                self.world.shared().wait(word, previous, remaining.min(POLL_INTERVAL));
            }
            stopped.is_none()
        });
        // A condition that became true at the last moment counts.
        match stopped {
            Some(reason) if !came => Err(reason),
            _ => Ok(()),
        }
    }

    /// A full fence, also on behalf of the ranks that may wake this one.
    pub(super) fn fence(&self) {
        fence(Ordering::SeqCst);
        if self.has_fences {
            self.world.shared().fence_all();
        }
    }

    /// Checks that no rank has failed and that no rank but expendable ones has died.
    pub(crate) fn check_peers(&self) -> Result<(), Interruption> {
        self.check_verdict()?;
        self.first_dead_rank().map_or(Ok(()), |peer| Err(ended(peer)))
    }

    fn check_verdict(&self) -> Result<(), Interruption> {
        self.verdict().map_or(Ok(()), |verdict| Err(Interruption::Reported(Box::new(verdict))))
    }
}

/// Interruption by a peer whose process has ended.
pub(crate) fn ended(peer: Rank) -> Interruption {
    Interruption::Lost { peer, reason: "its process ended".to_owned() }
}

/// A long wait of this rank for another.
struct LongWait<'a> {
    shared: &'a SharedWorld,
    peer: Rank,
    since: Duration,
    has_warned: bool,
    /// The published wait of another thread of this rank.
    outer_wait: u64,
}

impl<'a> LongWait<'a> {
    fn new(shared: &'a SharedWorld, peer: Rank) -> Self {
        let own = shared.own();
        let outer_wait = own.word(header::WAITING_FOR).swap(peer.0 as u64 + 1, Ordering::Relaxed);
        let since = shared.world.clock().now();
        Self { shared, peer, since, has_warned: false, outer_wait }
    }

    /// Publishes a heartbeat, reads those of others, and warns of a long wait.
    fn check(&mut self) {
        self.shared.own().word(header::HEARTBEAT).fetch_add(1, Ordering::Relaxed);
        let now = self.shared.world.clock().now();
        for (known, segment) in self.heartbeats().iter_mut().zip(&self.shared.segments) {
            let Some(segment) = segment else { continue };
            let heartbeat = segment.word(header::HEARTBEAT).load(Ordering::Relaxed);
            if known.0 != heartbeat {
                *known = (heartbeat, now);
            }
        }
        if !self.has_warned && now.saturating_sub(self.since) >= SLOW_PEER_WARNING {
            self.has_warned = true;
            self.warn();
        }
    }

    fn heartbeats(&self) -> MutexGuard<'_, Vec<(u64, Duration)>> {
        lock(&self.shared.heartbeats)
    }

    /// The end of the chain of waits that starts with this rank.
    fn blocking_rank(&self) -> Rank {
        let mut last = self.peer;
        for _ in 0..self.shared.num_ranks() {
            match self.waiting_for(last) {
                // A cycle, or a rank on another host: the chain cannot be followed further.
                Some(next) if next == self.shared.rank || !self.shared.sees(next) => break,
                Some(next) => last = next,
                None => break,
            }
        }
        last
    }

    /// The rank that a running rank waits for.
    fn waiting_for(&self, rank: Rank) -> Option<Rank> {
        let word = self.shared.segment(rank).word(header::WAITING_FOR).load(Ordering::Relaxed);
        let next = Rank(usize::try_from(word).ok()?.checked_sub(1)?);
        let observed = self.heartbeats()[rank.0].1;
        let silence = self.shared.world.clock().since(observed);
        (next.0 < self.shared.num_ranks() && silence < MAX_SILENCE).then_some(next)
    }

    fn warn(&self) {
        let peer = self.blocking_rank();
        let process = self.shared.process_of(peer);
        let process = process.map_or_else(String::new, |process| {
            let state = match self.shared.world.processes().state(process.id) {
                Some(ProcessState::Stopped) => ", which is stopped",
                _ => "",
            };
            format!(" (process {} on {}{state})", process.id, process.host)
        });
        let (own, seconds) = (self.shared.rank, SLOW_PEER_WARNING.as_secs());
        let line = format!("warning: rank {own} waits for rank {peer}{process} for {seconds} s\n");
        // A closed standard error is ignored.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

impl Drop for LongWait<'_> {
    fn drop(&mut self) {
        self.shared.own().word(header::WAITING_FOR).store(self.outer_wait, Ordering::Relaxed);
    }
}
