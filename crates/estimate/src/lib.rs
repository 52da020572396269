//! Estimates memory, step time and cost of a training run on a cluster that is not at hand.
//!
//! `planner` counts what this engine does on this machine; this crate models published devices and
//! clusters. The cost model is explicit (matrix products, memory traffic, kernel launches,
//! collectives, pipelines). Constants that cannot be derived live in one small file per device
//! type, fitted to published runs and checked against them (`lockstep plan validate`). No constant
//! belongs to a single paper. Everything is pure: equal arguments give equal results.
//!
//! # Layout
//! - [`model`]: models by name, their parameters and FLOPs
//! - [`hardware`]: devices, networks and clusters by name or from a file
//! - [`layout`]: parallel degrees and the rules that make a layout valid
//! - [`calibration`]: achieved shares of the peaks, one file per device type
//! - [`memory`]: memory of the fullest device, by part
//! - [`time`]: step time, by part
//! - [`search`]: every layout of a model on a cluster, and the best of them
//! - [`advice`]: compression, local SGD and stale gradients instead of a plain all-reduce
//! - [`batch`]: critical batch size
//! - [`bill`]: days, dollars, energy, failures
//! - [`risk`]: distribution of the time lost to failures
//! - [`validate`]: predictions against published runs, and the fit of calibrations

pub mod hardware;
pub mod layout;
pub mod model;

pub mod calibration;
pub mod memory;
pub mod time;

pub mod advice;
pub mod batch;
pub mod bill;
pub mod recipe;
pub mod risk;
pub mod scenario;
pub mod search;
pub mod size_search;
pub mod upgrades;
pub mod validate;

pub use calibration::Calibration;
pub use layout::{Job, Layout};
