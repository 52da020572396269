//! Waiting for another rank: spin, then yield, then sleep.
//!
//! Most waits end within microseconds, and a sleeping thread takes longer than that to wake. So a
//! rank first looks again and again; if there are more ranks than cores it soon lets others have
//! the core; and after about a millisecond it sleeps, so that an idle rank costs nothing. Once a
//! wait is long, and only then, the clock is asked, and whether somebody has failed or died.
//!
//! A rank that waits long shows for whom, and that it is awake: a number in its memory grows. So
//! when the time is up the rank that is waited for is not blamed if it waits itself: whoever it
//! waits for is looked at instead, and so on, up to a rank that waits for nobody, or that says it
//! does and gives no sign of life.

use std::io::Write;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Deadline, ProcessState};

use super::{SharedWorld, header};
use crate::error::Interruption;
use crate::transport::tcp::WARNING;

/// The longest sleep without a look around.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// Yields between two looks at whether somebody failed.
const YIELDS_PER_LOOK: u32 = 16;

/// A rank that gives its core away for longer than this sleeps instead. On a machine with much else
/// to do one yield may take as long as everybody else's turn.
const LONGEST_YIELDING: Duration = Duration::from_millis(10);

/// A rank that waits and has given no sign of life for so long does not run.
const SILENCE: Duration = Duration::from_millis(500);

impl SharedWorld {
    /// Waits for `peer` until `is_done`.
    #[inline]
    pub(crate) fn wait_until(
        &self,
        peer: Rank,
        timeout: Duration,
        mut is_done: impl FnMut() -> bool,
    ) -> Result<(), Interruption> {
        for _ in 0..self.patience.num_spins {
            if is_done() {
                return Ok(());
            }
            // Looking without a pause is slower: the processor runs ahead of a change it has not
            // seen, and has to come back.
            std::hint::spin_loop();
        }
        self.wait_long(peer, timeout, is_done)
    }

    #[cold]
    fn wait_long(
        &self,
        peer: Rank,
        timeout: Duration,
        mut is_done: impl FnMut() -> bool,
    ) -> Result<(), Interruption> {
        self.num_long_waits.fetch_add(1, Ordering::Relaxed);
        // From here on, and not from when the yields are over. A peer that waits itself, on a
        // network perhaps, since the same moment gets the time to say whom it is that is late.
        let deadline = Deadline::after(self.world.clock(), timeout + 2 * LONGEST_YIELDING);
        let yielding = Deadline::after(self.world.clock(), LONGEST_YIELDING);
        for turn in 0..self.patience.num_yields {
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
        let mut watch = Watch::new(self, peer);
        let mut stopped = None;
        let fence = || self.fence();
        let came = self.bell(self.rank).sleep_until(&mut is_done, fence, |word, seen| {
            let remaining = deadline.remaining(self.world.clock());
            stopped = self.look_around().err();
            if self.is_gone(peer) {
                stopped = stopped.take().or_else(|| Some(ended(peer)));
            }
            if self.has_left(peer) {
                // What it did before it left is seen by now, and was looked at once more below.
                let reason = "it has left the run".to_owned();
                stopped = stopped.take().or(Some(Interruption::Lost { peer, reason }));
            }
            watch.look();
            if remaining.is_zero() {
                let peer = watch.last_in_line();
                stopped = stopped.take().or(Some(Interruption::Deadline { peer }));
            }
            if stopped.is_none() {
                self.world.shared().wait(word, seen, remaining.min(LOOK_AROUND));
            }
            stopped.is_none()
        });
        // What came at the last moment has come.
        match stopped {
            Some(reason) if !came => Err(reason),
            _ => Ok(()),
        }
    }

    /// A full fence, for those who may wake this rank too.
    fn fence(&self) {
        fence(Ordering::SeqCst);
        if self.has_fences {
            self.world.shared().fence_everyone();
        }
    }

    /// Whether nobody has failed and nobody has died that all need.
    pub(crate) fn look_around(&self) -> Result<(), Interruption> {
        self.check_verdict()?;
        self.first_dead().map_or(Ok(()), |peer| Err(ended(peer)))
    }

    fn check_verdict(&self) -> Result<(), Interruption> {
        self.judged().map_or(Ok(()), |verdict| Err(Interruption::Judged(Box::new(verdict))))
    }
}

/// What a rank is found to have done whose process is no more.
pub(crate) fn ended(peer: Rank) -> Interruption {
    Interruption::Lost { peer, reason: "its process ended".to_owned() }
}

/// A long wait of this rank for another.
struct Watch<'a> {
    shared: &'a SharedWorld,
    peer: Rank,
    since: Duration,
    has_warned: bool,
    /// Whom another thread of this rank waits for.
    other_wait: u64,
    /// By rank: the last sign of life, and when it came.
    beats: Vec<(u64, Duration)>,
}

impl<'a> Watch<'a> {
    fn new(shared: &'a SharedWorld, peer: Rank) -> Self {
        let own = shared.own();
        let other_wait = own.word(header::WAITS).swap(peer.0 as u64 + 1, Ordering::Relaxed);
        let since = shared.world.clock().now();
        let beats = vec![(u64::MAX, since); shared.num_ranks()];
        Self { shared, peer, since, has_warned: false, other_wait, beats }
    }

    /// Gives a sign of life, looks for those of others, and warns of a long wait.
    fn look(&mut self) {
        self.shared.own().word(header::BEATS).fetch_add(1, Ordering::Relaxed);
        let now = self.shared.world.clock().now();
        for (rank, segment) in self.shared.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            let beat = segment.word(header::BEATS).load(Ordering::Relaxed);
            if self.beats[rank].0 != beat {
                self.beats[rank] = (beat, now);
            }
        }
        if !self.has_warned && now.saturating_sub(self.since) >= WARNING {
            self.has_warned = true;
            self.warn();
        }
    }

    /// The rank that everybody waits for: from the one that this rank waits for on, as long as
    /// there is one that it waits for itself.
    fn last_in_line(&self) -> Rank {
        let mut last = self.peer;
        for _ in 0..self.shared.num_ranks() {
            match self.waits_for(last) {
                // A circle, or one that is not seen: nobody knows better.
                Some(next) if next == self.shared.rank || !self.shared.sees(next) => break,
                Some(next) => last = next,
                None => break,
            }
        }
        last
    }

    /// Whom a rank waits for that is awake.
    fn waits_for(&self, rank: Rank) -> Option<Rank> {
        let word = self.shared.segment(rank).word(header::WAITS).load(Ordering::Relaxed);
        let next = Rank(usize::try_from(word).ok()?.checked_sub(1)?);
        let silence = self.shared.world.clock().since(self.beats[rank.0].1);
        (next.0 < self.shared.num_ranks() && silence < SILENCE).then_some(next)
    }

    fn warn(&self) {
        let late = self.last_in_line();
        let process = self.shared.process_of(late);
        let process = process.map_or_else(String::new, |process| {
            let state = match self.shared.world.processes().state(process.id) {
                Some(ProcessState::Stopped) => ", which is stopped",
                _ => "",
            };
            format!(" (process {} on {}{state})", process.id, process.host)
        });
        let (own, seconds) = (self.shared.rank, WARNING.as_secs());
        let line = format!("warning: rank {own} waits for rank {late}{process} for {seconds} s\n");
        // Where nobody reads, there is nobody to warn.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.shared.own().word(header::WAITS).store(self.other_wait, Ordering::Relaxed);
    }
}
