//! When it is time to measure again.
//!
//! A call that takes much longer than ever before may have waited for a rank that was late, or for
//! a link that has become bad. The last rank to come waits for nobody: so only when *every* rank
//! finds its calls slow is it the links. Every so many calls all ranks ask each other, at the same
//! call because calls are numbered alike everywhere, and measure again if all wish for it.

use std::time::Duration;

/// Calls from one question to the next.
const EVERY: u64 = 64;

/// Slow calls among them that make a rank wish for a new measurement.
const MANY: u32 = 24;

/// How many times as long as expected a slow call takes.
const SLOW: f64 = 3.0;

/// What a call may take longer for other reasons.
const GRACE: Duration = Duration::from_micros(200);

/// The most questions between two measurements.
const MAX_PAUSE: u32 = 64;

/// Looks at how long calls take.
#[derive(Debug, Default)]
pub(crate) struct SlowdownDetector {
    is_on: bool,
    num_slow: u32,
    /// Questions at which nothing is wished for, and how many the next time.
    pause: u32,
    next_pause: u32,
}

impl SlowdownDetector {
    /// Begins to look: links were measured just now.
    pub(crate) fn begin(&mut self) {
        (self.is_on, self.num_slow) = (true, 0);
        // A measurement that does not help is not made again soon.
        self.pause = self.next_pause;
        self.next_pause = (2 * self.next_pause).clamp(1, MAX_PAUSE);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether all ranks ask each other before this call.
    #[inline]
    pub(crate) fn votes_before(&self, call: u64) -> bool {
        self.is_on && call.is_multiple_of(EVERY)
    }

    /// What this rank wishes; counting begins anew.
    pub(crate) fn vote(&mut self) -> bool {
        let is_slow = std::mem::take(&mut self.num_slow) >= MANY;
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        if !is_slow {
            // All was well for a while, so the next trouble is a new one.
            self.next_pause = 0;
        }
        is_slow
    }

    /// Every call so far was a slow one.
    #[cfg(test)]
    pub(crate) fn mark_all_slow(&mut self) {
        self.num_slow = MANY;
    }

    /// Notes how long a call took, beside what it should take at most.
    pub(crate) fn note(&mut self, took: Duration, expected: Duration) {
        if took > expected.mul_f64(SLOW) + GRACE {
            self.num_slow += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(slowdown: &mut SlowdownDetector, num_slow: u32) -> bool {
        for index in 0..EVERY as u32 {
            let millis = if index < num_slow { 50 } else { 10 };
            slowdown.note(Duration::from_millis(millis), Duration::from_millis(10));
        }
        slowdown.vote()
    }

    #[test]
    fn many_slow_calls_make_a_wish_and_single_ones_do_not() {
        let mut slowdown = SlowdownDetector::default();
        assert!(!slowdown.votes_before(EVERY));
        slowdown.begin();
        assert!(slowdown.votes_before(EVERY) && !slowdown.votes_before(EVERY + 1));
        assert!(!calls(&mut slowdown, 0) && !calls(&mut slowdown, MANY - 1));
        assert!(calls(&mut slowdown, MANY));
    }

    #[test]
    fn a_measurement_that_does_not_help_is_made_ever_more_rarely() {
        let mut slowdown = SlowdownDetector::default();
        slowdown.begin();
        let mut gaps = Vec::new();
        for _ in 0..5 {
            let mut gap = 1;
            while !calls(&mut slowdown, MANY) {
                gap += 1;
            }
            gaps.push(gap);
            slowdown.begin();
        }
        assert_eq!(gaps, [1, 2, 3, 5, 9]);
    }
}
