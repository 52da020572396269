//! What more workers bring: efficiency, speed-up, and where they end.
//!
//! Everything follows from one model: a step takes T/n to compute and C to communicate, where C of
//! a ring hardly depends on n. So the speed-up saturates, and an efficiency above one is a mistake
//! in the measurement.

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

/// Share of a step that computes, when communication is not hidden.
pub fn step_efficiency(compute: Seconds, communication: Seconds) -> f64 {
    compute / (compute + communication)
}

/// Communication that computation does not hide.
pub fn exposed(hideable_compute: Seconds, communication: Seconds) -> Seconds {
    Seconds((communication.0 - hideable_compute.0).max(0.0))
}

/// How many times as fast n workers are when a step on one of them takes 1 to compute and `ratio`
/// to communicate, whatever n: n(1+r)/(1+rn), which tends to 1 + 1/r.
pub fn speed_up(num_workers: usize, ratio: f64) -> f64 {
    let n = num_workers as f64;
    n * (1.0 + ratio) / (1.0 + ratio * n)
}

/// The same step on n workers: computation divides, communication stays.
pub fn step_seconds(alone: Seconds, num_workers: usize, communication: Seconds) -> Seconds {
    alone * (1.0 / num_workers as f64) + communication
}

/// T1/(n·Tn): what share of n workers' time one worker alone would have needed.
pub fn strong_efficiency(alone: Seconds, num_workers: usize, step: Seconds) -> f64 {
    alone / (step * num_workers as f64)
}

/// How many times as fast `factor` times the workers are, when computation takes `ratio` times as
/// long as communication before: f(r+1)/(r+f).
pub fn speed_up_of_growth(factor: f64, ratio: f64) -> f64 {
    factor * (ratio + 1.0) / (ratio + factor)
}

/// Communication once every `num_steps` steps, a step's share of it.
pub fn amortized(compute: Seconds, communication: Seconds, num_steps: usize) -> Seconds {
    compute + communication * (1.0 / num_steps as f64)
}

/// The number of workers at which computing a step takes as long as a ring's all-reduce.
pub fn break_even_workers(alone: Seconds, vector: Bytes, bandwidth: BytesPerSecond) -> f64 {
    alone / (Bytes(2 * vector.0) / bandwidth)
}
