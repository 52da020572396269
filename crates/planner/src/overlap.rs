//! Overlap of gradient exchange with backward: buckets are sent in sequence as they fill.
//!
//! A bucket starts when it is full *and* the previous one has arrived. Small buckets start early
//! and pay many latencies; large ones leave the last of them exposed behind the computation.

use lockstep_config::units::Seconds;

/// A bucket of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// Time at which backward has filled the bucket.
    pub ready: Seconds,
    /// Duration of its transfer.
    pub transfer: Seconds,
}

/// Arrival of the last bucket; buckets are in sending order.
pub fn finish(buckets: &[Bucket]) -> Seconds {
    buckets.iter().fold(Seconds(0.0), |free, bucket| free.max(bucket.ready) + bucket.transfer)
}

/// Exposed communication behind a backward pass that ends at `end`.
pub fn exposed(buckets: &[Bucket], end: Seconds) -> Seconds {
    finish(buckets).max(end) - end
}
