//! A link that is slower than the real one, so that a laptop behaves like a cluster.
//!
//! A peer's link has a time from which it may be written to again. Bytes that left push it on by
//! as long as they would take at the emulated speed. A rank that slept a little too long may catch
//! up, so that the speed holds on average.

use std::time::Duration;

/// How much of what was slept too long can be made up for.
const CATCH_UP: Duration = Duration::from_millis(4);

/// Bytes that leave at once at most, so that a slow link has no bursts.
pub(super) const MAX_PACED_BYTES: usize = 32 << 10;

/// The pace of the link to one peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    bytes_per_second: f64,
    open_from: Duration,
}

impl Pace {
    /// As fast as asked for; 0 is not limited.
    pub(super) fn new(bytes_per_second: u64) -> Option<Self> {
        let open_from = Duration::ZERO;
        let bytes_per_second = bytes_per_second as f64;
        (bytes_per_second > 0.0).then_some(Self { bytes_per_second, open_from })
    }

    /// How long until the link may be written to again.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        self.open_from.saturating_sub(now)
    }

    /// Notes that bytes have left.
    pub(super) fn has_sent(&mut self, bytes: usize, now: Duration) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        self.open_from = self.open_from.max(now.saturating_sub(CATCH_UP)) + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_as_long_as_the_link_is_slow() {
        let mut pace = Pace::new(1_000_000).unwrap();
        let start = Duration::from_secs(10);
        assert_eq!(pace.wait(start), Duration::ZERO);
        pace.has_sent(50_000, start);
        assert_eq!(pace.wait(start), Duration::from_millis(46), "less what may be made up for");
        pace.has_sent(50_000, start);
        assert_eq!(pace.wait(start), Duration::from_millis(96));
        assert_eq!(pace.wait(start + Duration::from_millis(96)), Duration::ZERO);
    }

    #[test]
    fn no_limit_is_no_pace() {
        assert!(Pace::new(0).is_none());
    }
}
