//! Detects links that have become slower, so that they are measured again.
//!
//! A call that takes much longer than ever before may have waited for a late rank, or for a slow
//! link. The last rank to arrive waits for none, so links are the cause only if *every* rank finds
//! its calls slow. The ranks vote at regular calls, which are numbered alike on all ranks, and
//! measure again if all vote yes.

use std::time::Duration;

/// Calls between two votes.
const VOTE_INTERVAL: u64 = 64;

/// Slow calls since the last vote that make a rank vote yes.
const MIN_SLOW: u32 = 24;

/// Slowdown factor of a slow call.
const SLOW_FACTOR: f64 = 3.0;

/// Delay that does not count as slow.
const GRACE: Duration = Duration::from_micros(200);

/// Most votes skipped after a measurement.
const MAX_PAUSE: u32 = 64;

/// Counts slow calls of one rank.
#[derive(Debug, Default)]
pub(crate) struct SlowdownDetector {
    is_on: bool,
    num_slow: u32,
    /// Votes to skip now, and after the next measurement.
    pause: u32,
    next_pause: u32,
}

impl SlowdownDetector {
    /// Starts to count: links were measured just now.
    pub(crate) fn begin(&mut self) {
        (self.is_on, self.num_slow) = (true, 0);
        // Back off exponentially while measurements do not help.
        self.pause = self.next_pause;
        self.next_pause = (2 * self.next_pause).clamp(1, MAX_PAUSE);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether the ranks vote before this call.
    #[inline]
    pub(crate) fn votes_before(&self, call: u64) -> bool {
        self.is_on && call.is_multiple_of(VOTE_INTERVAL)
    }

    /// Vote of this rank; resets the count.
    pub(crate) fn vote(&mut self) -> bool {
        let is_slow = std::mem::take(&mut self.num_slow) >= MIN_SLOW;
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        if !is_slow {
            // Calls were fast for a while, so the next slowdown is a new one.
            self.next_pause = 0;
        }
        is_slow
    }

    /// Marks every call so far as slow.
    #[cfg(test)]
    pub(crate) fn mark_all_slow(&mut self) {
        self.num_slow = MIN_SLOW;
    }

    /// Records the duration of a call beside its expected duration.
    pub(crate) fn record(&mut self, took: Duration, expected: Duration) {
        if took > expected.mul_f64(SLOW_FACTOR) + GRACE {
            self.num_slow += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(slowdown: &mut SlowdownDetector, num_slow: u32) -> bool {
        for index in 0..VOTE_INTERVAL as u32 {
            let millis = if index < num_slow { 50 } else { 10 };
            slowdown.record(Duration::from_millis(millis), Duration::from_millis(10));
        }
        slowdown.vote()
    }

    #[test]
    fn many_slow_calls_vote_yes_and_single_ones_do_not() {
        let mut slowdown = SlowdownDetector::default();
        assert!(!slowdown.votes_before(VOTE_INTERVAL));
        slowdown.begin();
        assert!(slowdown.votes_before(VOTE_INTERVAL) && !slowdown.votes_before(VOTE_INTERVAL + 1));
        assert!(!calls(&mut slowdown, 0) && !calls(&mut slowdown, MIN_SLOW - 1));
        assert!(calls(&mut slowdown, MIN_SLOW));
    }

    #[test]
    fn measurements_that_do_not_help_back_off() {
        let mut slowdown = SlowdownDetector::default();
        slowdown.begin();
        let mut gaps = Vec::new();
        for _ in 0..5 {
            let mut gap = 1;
            while !calls(&mut slowdown, MIN_SLOW) {
                gap += 1;
            }
            gaps.push(gap);
            slowdown.begin();
        }
        assert_eq!(gaps, [1, 2, 3, 5, 9]);
    }
}
