//! Waiting for another rank: spin, then yield, then sleep.
//!
//! Most waits end within microseconds, and waking a sleeping thread takes longer than that. So a
//! rank first spins; with more ranks than cores it soon yields its core; and after about a
//! millisecond it sleeps, so that an idle rank uses no CPU. Only a long wait reads the clock and
//! checks whether a rank has failed or died.
//!
//! A thread that waits long publishes the rank that it waits for, and a heartbeat of its rank. At
//! its deadline a rank follows these from peer to peer and blames the end of the chain: a rank that
//! waits for none, or whose heartbeat has stopped. A wait that ended at its deadline stays
//! published until the next one begins: a rank that is about to report another is not the end of a
//! chain.

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
        if timeout.is_zero() {
            // Earlier waits have used all of it, each with its margin.
            return Err(LongWait::new(self, peer).time_out());
        }
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
                stopped = stopped.take().or_else(|| Some(long_wait.time_out()));
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

/// Bit of a published wait that has ended at its deadline.
const TIMED_OUT: u64 = 1 << 63;

/// A long wait of a thread of this rank for another rank.
struct LongWait<'a> {
    shared: &'a SharedWorld,
    peer: Rank,
    since: Duration,
    has_warned: bool,
    /// Offset of the word that publishes it, unless all are taken.
    word: Option<usize>,
}

impl<'a> LongWait<'a> {
    fn new(shared: &'a SharedWorld, peer: Rank) -> Self {
        let published = peer.0 as u64 + 1;
        let replace = |word: usize, from, to| {
            let word = shared.own().word(word);
            word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        for word in published_waits() {
            let ended = shared.own().word(word).load(Ordering::Relaxed);
            if ended & TIMED_OUT != 0 {
                replace(word, ended, 0);
            }
        }
        let word = published_waits().find(|&word| replace(word, 0, published));
        let since = shared.world.clock().now();
        Self { shared, peer, since, has_warned: false, word }
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

    /// Ends the wait at its deadline. It stays published, because another rank whose deadline
    /// passes before this one has reported would else blame this one.
    fn time_out(&mut self) -> Interruption {
        if let Some(word) = self.word.take() {
            self.shared.own().word(word).fetch_or(TIMED_OUT, Ordering::Relaxed);
        }
        Interruption::Deadline { peer: self.blocking_rank() }
    }

    /// The end of a chain of waits that starts with this wait. A rank on another host ends a chain;
    /// where all chains are cycles, it is the last rank that was reached.
    fn blocking_rank(&self) -> Rank {
        let mut chain = vec![self.peer];
        let mut next = 0;
        while let Some(&rank) = chain.get(next) {
            let awaited = self.awaited_by(rank);
            if awaited.is_empty() {
                return rank;
            }
            next += 1;
            for other in awaited {
                if other != self.shared.rank && !chain.contains(&other) {
                    chain.push(other);
                }
            }
        }
        *chain.last().expect("it has the peer")
    }

    /// The ranks of this host that the threads of a running rank wait for.
    fn awaited_by(&self, rank: Rank) -> Vec<Rank> {
        let silence = self.shared.world.clock().since(self.heartbeats()[rank.0].1);
        if silence >= MAX_SILENCE {
            return Vec::new();
        }
        let segment = self.shared.segment(rank);
        let load = |word| segment.word(word).load(Ordering::Relaxed) & !TIMED_OUT;
        let waits = published_waits().map(load);
        let ranks =
            waits.filter_map(|word| Some(Rank(usize::try_from(word).ok()?.checked_sub(1)?)));
        ranks.filter(|rank| rank.0 < self.shared.num_ranks() && self.shared.sees(*rank)).collect()
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
        if let Some(word) = self.word {
            self.shared.own().word(word).store(0, Ordering::Relaxed);
        }
    }
}

/// Offsets of the words that publish the waits of a rank.
fn published_waits() -> impl Iterator<Item = usize> {
    (0..header::MAX_WAITS).map(|index| header::WAITING_FOR + 8 * index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_of_waits_includes_every_waiting_thread_of_a_rank() {
        let views = SharedWorld::threads(&lockstep_platform::real(), 3, 1 << 12).expect("a world");
        // A rank that receives parameters in the background waits with two threads at once.
        let background = LongWait::new(&views[1], Rank(0));
        let mut caller = LongWait::new(&views[1], Rank(2));
        let mut own = LongWait::new(&views[0], Rank(1));
        let mut blocking_rank = |caller: &mut LongWait<'_>| {
            caller.check();
            own.check();
            own.blocking_rank()
        };
        assert_eq!(blocking_rank(&mut caller), Rank(2), "rank 1 waits for this rank and for 2");
        drop(background);
        assert_eq!(blocking_rank(&mut caller), Rank(2), "one of the two waits has ended");
    }

    #[test]
    fn a_wait_that_timed_out_is_a_link_of_the_chain_until_the_next_wait() {
        let views = SharedWorld::threads(&lockstep_platform::real(), 3, 1 << 12).expect("a world");
        let mut own = LongWait::new(&views[0], Rank(1));
        let mut blocking_rank = || {
            own.check();
            own.blocking_rank()
        };
        // Rank 1 has not reported rank 2 yet when the deadline of rank 0 passes.
        let outcome = views[1].wait_until(Rank(2), Duration::from_millis(1), || false);
        assert!(matches!(outcome, Err(Interruption::Deadline { peer: Rank(2) })), "{outcome:?}");
        assert_eq!(blocking_rank(), Rank(2));
        drop(LongWait::new(&views[1], Rank(0)));
        assert_eq!(blocking_rank(), Rank(1), "rank 1 waits for none");
    }
}
