//! Pipelines by closed form: how much of the time devices idle, and how many microbatches it takes
//! to keep that small.
//!
//! The share of idle time is (p-1)/(v·m+p-1) for p devices, m microbatches and v stages a device.
//! Two other formulas are common and are not this share: (p-1)/m is idle over busy time, and p/m
//! is an approximation of that. Closed forms assume even stages and transfers that take no time;
//! [`crate::timeline`] assumes neither.

/// Share of a device's time in which it idles, of GPipe and 1F1B (`num_chunks` = 1) and of
/// interleaved schedules.
pub fn bubble(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    let (fill, busy) = (num_devices as f64 - 1.0, (num_chunks * num_microbatches) as f64);
    fill / (busy + fill)
}

/// Idle over busy time.
pub fn overhead(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    (num_devices as f64 - 1.0) / (num_chunks * num_microbatches) as f64
}

/// How many times as fast as one device that does everything.
pub fn speed_up(num_devices: usize, num_microbatches: usize, num_chunks: usize) -> f64 {
    num_devices as f64 * (1.0 - bubble(num_devices, num_microbatches, num_chunks))
}

/// The fewest microbatches with which devices work for this share of the time: m ≥ (p-1)e/(1-e).
pub fn microbatches_for(num_devices: usize, share: f64) -> usize {
    let exact = (num_devices as f64 - 1.0) * share / (1.0 - share);
    // 0.9 is not nine tenths; what is a whole number but for rounding stays one.
    ((exact - 1e-9).ceil() as usize).max(1)
}

/// Most microbatches whose activations a device keeps, in units of all of its stages.
pub fn live_microbatches_interleaved(num_devices: usize, num_chunks: usize) -> f64 {
    let p = num_devices as f64;
    p + (p - 1.0) / num_chunks as f64
}
