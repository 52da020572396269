//! A parameter server: all workers push their gradients to it and pull parameters from it.
//!
//! The server's link carries everybody's vector both ways, so the time grows with the number of
//! workers, where a ring's does not; several servers divide the vector among them.

use super::{ClosedForm, ring};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

/// A push and a pull of `num_workers` workers and as many `num_servers`.
pub const fn push_and_pull(num_workers: usize, num_servers: usize) -> ClosedForm {
    ClosedForm { rounds: 2, parts: 2 * num_workers as u64, of: num_servers as u64 }
}

/// How many times as much passes the busiest link as in a ring: n²/(s(n-1)).
pub fn bytes_over_ring(num_workers: usize, num_servers: usize) -> f64 {
    let vector = Bytes(1 << 40);
    push_and_pull(num_workers, num_servers).bytes(vector)
        / ring::all_reduce(num_workers).bytes(vector)
}

/// The share of linear speed-up that is left where the servers' links are all that counts:
/// 1/(1+(n-1)/s).
pub fn efficiency(num_workers: usize, num_servers: usize) -> f64 {
    1.0 / (1.0 + (num_workers as f64 - 1.0) / num_servers as f64)
}

/// The bandwidth that each server needs to serve all workers once a step.
pub fn server_bandwidth(
    num_workers: usize,
    num_servers: usize,
    vector: Bytes,
    step: Seconds,
) -> BytesPerSecond {
    BytesPerSecond(push_and_pull(num_workers, num_servers).bytes(vector) / step.0)
}
