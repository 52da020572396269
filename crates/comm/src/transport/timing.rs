//! Intervals at which waiting ranks check their peers, equal on all transports.

use std::time::Duration;

/// Longest sleep of a waiting rank between two checks of its peers.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Wait after which a rank warns the user on standard error.
pub(crate) const SLOW_PEER_WARNING: Duration = Duration::from_secs(5);

/// Slowest rate at which the bytes of a round may move, in bytes per second. Every network that
/// ranks train over is faster.
pub(crate) const MIN_BYTES_PER_SECOND: u64 = 10_000;

/// A waiting rank that has not checked its peers for this long was not running.
pub(crate) const MAX_SILENCE: Duration = Duration::from_millis(500);
