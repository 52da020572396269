//! Parameter server in closed form (Li et al. 2014): all workers push gradients and pull
//! parameters.
//!
//! The server's link carries every worker's vector in both directions, so the time grows with the
//! number of workers, where a ring's does not; several servers divide the vector.

use super::{ClosedForm, ring};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

/// Push and pull of `num_workers` workers with `num_servers` servers.
pub const fn push_and_pull(num_workers: usize, num_servers: usize) -> ClosedForm {
    ClosedForm { rounds: 2, parts: 2 * num_workers as u64, of: num_servers as u64 }
}

/// Bytes on the busiest link relative to a ring: n²/(s(n-1)).
pub fn bytes_over_ring(num_workers: usize, num_servers: usize) -> f64 {
    let vector = Bytes(1 << 40);
    push_and_pull(num_workers, num_servers).bytes(vector)
        / ring::all_reduce(num_workers).bytes(vector)
}

/// Share of linear speed-up when only the servers' links count: 1/(1+(n-1)/s).
pub fn efficiency(num_workers: usize, num_servers: usize) -> f64 {
    1.0 / (1.0 + (num_workers as f64 - 1.0) / num_servers as f64)
}

/// Bandwidth that each server needs to serve all workers once per step.
pub fn server_bandwidth(
    num_workers: usize,
    num_servers: usize,
    vector: Bytes,
    step: Seconds,
) -> BytesPerSecond {
    BytesPerSecond(push_and_pull(num_workers, num_servers).bytes(vector) / step.0)
}
