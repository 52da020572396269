//! Waiting for another rank: spin, then yield, then sleep.
//!
//! Most waits end within microseconds, and a sleeping thread takes longer than that to wake. So a
//! rank first looks again and again; if there are more ranks than cores it soon lets others have
//! the core; and after about a millisecond it sleeps, so that an idle rank costs nothing. Once a
//! wait is long, and only then, the clock is asked, and whether somebody has given up or died.

use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::Deadline;

use super::SharedWorld;
use crate::error::Interruption;

/// The longest sleep without a look around.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// Yields between two looks at whether somebody gave up.
const YIELDS_PER_LOOK: u32 = 16;

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
        for turn in 0..self.patience.num_yields {
            if is_done() {
                return Ok(());
            }
            if turn.is_multiple_of(YIELDS_PER_LOOK) {
                self.check_abort()?;
            }
            self.world.shared().yield_now();
        }
        let deadline = Deadline::after(self.world.clock(), timeout);
        let mut stopped = None;
        let fence = || self.fence();
        let came = self.bell(self.rank).sleep_until(&mut is_done, fence, |word, seen| {
            let remaining = deadline.remaining(self.world.clock());
            stopped = self.look_around().err();
            if self.has_left(peer) {
                // What it did before it left is seen by now, and was looked at once more below.
                let reason = "it has left the run".to_owned();
                stopped = stopped.take().or(Some(Interruption::Lost { peer, reason }));
            }
            if remaining.is_zero() {
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

    /// Whether nobody has given up and nobody has died.
    pub(crate) fn look_around(&self) -> Result<(), Interruption> {
        self.check_abort()?;
        match self.first_dead() {
            Some(peer) => Err(Interruption::Lost { peer, reason: "its process ended".to_owned() }),
            None => Ok(()),
        }
    }

    fn check_abort(&self) -> Result<(), Interruption> {
        match self.aborted() {
            Some((by, reason)) => Err(Interruption::Aborted { by, reason }),
            None => Ok(()),
        }
    }
}
