//! Closed forms of pipelines: the bubble, and the micro-batches that keep it small.
//!
//! The bubble fraction is (p-1)/(v·m+p-1) for p devices, m micro-batches and v virtual stages per
//! device (Narayanan et al. 2021 state idle over busy time, (p-1)/(v·m)). Two other formulas are
//! common and are not this fraction: (p-1)/m is idle over busy time, and p/m approximates it.
//! Closed forms assume equal stages and transfers that take no time; [`crate::timeline`] assumes
//! neither.

/// Bubble fraction of GPipe and 1F1B (`num_chunks` = 1) and of interleaved schedules.
pub fn bubble(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    let (fill, busy) = (num_devices as f64 - 1.0, (num_chunks * num_microbatches) as f64);
    fill / (busy + fill)
}

/// Idle over busy time.
pub fn overhead(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    (num_devices as f64 - 1.0) / (num_chunks * num_microbatches) as f64
}

/// Speed-up over one device.
pub fn speed_up(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    num_devices as f64 * (1.0 - bubble(num_devices, num_microbatches, num_chunks))
}

/// Fewest micro-batches for a busy share of e: m ≥ (p-1)e/(1-e).
pub fn microbatches_for(num_devices: usize, share: f64) -> usize {
    let exact = (num_devices as f64 - 1.0) * share / (1.0 - share);
    // The tolerance keeps a whole number from rounding up, since 0.9 is not exactly nine tenths.
    ((exact - 1e-9).ceil() as usize).max(1)
}

/// Peak live micro-batches of a device, in units of all of its stages.
pub fn live_microbatches_interleaved(num_devices: usize, num_chunks: usize) -> f64 {
    let p = num_devices as f64;
    p + (p - 1.0) / num_chunks as f64
}
