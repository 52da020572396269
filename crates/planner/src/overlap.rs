//! Communication beside backward: buckets leave as they fill, one after the other.
//!
//! A bucket starts when it is full *and* the one before has arrived. Small buckets start early and
//! pay many latencies; large ones leave the last of them to stick out behind the computation.

use lockstep_config::units::Seconds;

/// A bucket of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// When backward has filled it.
    pub ready: Seconds,
    /// How long it is on its way.
    pub transfer: Seconds,
}

/// When the last bucket has arrived; buckets are in the order in which they leave.
pub fn finish(buckets: &[Bucket]) -> Seconds {
    buckets.iter().fold(Seconds(0.0), |free, bucket| free.max(bucket.ready) + bucket.transfer)
}

/// What sticks out behind a backward pass that ends at `end`.
pub fn exposed(buckets: &[Bucket], end: Seconds) -> Seconds {
    finish(buckets).max(end) - end
}
