//! Closed forms of data-parallel scaling: efficiency, speed-up and its limits.
//!
//! Everything follows from one model: a step takes T/n to compute and C to communicate, where C of
//! a ring hardly depends on n. The speed-up therefore saturates (Amdahl 1967), and an efficiency
//! above one is a measurement error.

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

/// Computing share of a step, when communication is not overlapped.
pub fn step_efficiency(compute: Seconds, communication: Seconds) -> f64 {
    compute / (compute + communication)
}

/// Exposed communication.
pub fn exposed(hideable_compute: Seconds, communication: Seconds) -> Seconds {
    Seconds((communication.0 - hideable_compute.0).max(0.0))
}

/// Speed-up of n workers when a step on one of them takes 1 to compute and `ratio` to communicate,
/// whatever n: n(1+r)/(1+rn), which tends to 1 + 1/r.
pub fn speed_up(num_workers: usize, ratio: f64) -> f64 {
    let n = num_workers as f64;
    n * (1.0 + ratio) / (1.0 + ratio * n)
}

/// Step time on n workers: computation divides, communication stays.
pub fn step_seconds(alone: Seconds, num_workers: usize, communication: Seconds) -> Seconds {
    alone * (1.0 / num_workers as f64) + communication
}

/// Strong-scaling efficiency T1/(n·Tn).
pub fn strong_efficiency(alone: Seconds, num_workers: usize, step: Seconds) -> f64 {
    alone / (step * num_workers as f64)
}

/// Speed-up from `factor` times the workers, when computation took `ratio` times as long as
/// communication before: f(r+1)/(r+f).
pub fn speed_up_of_growth(factor: f64, ratio: f64) -> f64 {
    factor * (ratio + 1.0) / (ratio + factor)
}

/// Step time with communication once every `num_steps` steps.
pub fn amortized(compute: Seconds, communication: Seconds, num_steps: usize) -> Seconds {
    compute + communication * (1.0 / num_steps as f64)
}

/// Number of workers at which computing a step takes as long as a ring all-reduce.
pub fn break_even_workers(alone: Seconds, vector: Bytes, bandwidth: BytesPerSecond) -> f64 {
    alone / (Bytes(2 * vector.0) / bandwidth)
}
