//! What a run would cost on a cluster that is not here: memory, time and money, estimated.
//!
//! `planner` counts what this engine does on this machine; this crate knows other people's devices
//! by what they published. The physics is explicit (products, memory traffic, launches, messages,
//! pipelines), and what cannot be derived is one small file of constants for each type of device,
//! fitted to published runs and checked against them (`lockstep plan validate`). No constant
//! belongs to a paper. Everything is pure: the same arguments give the same answer.
//!
//! # Layout
//! - [`model`]: models by name, their parameters and operations
//! - [`hardware`]: devices, networks and clusters by name or from a file
//! - [`layout`]: how a model is divided, and which divisions are possible
//! - [`calibration`]: what devices reach, one file for each type
//! - [`memory`]: what the fullest device holds, by part
//! - [`time`]: how long a step takes, by part
//! - [`search`]: every layout of a model on a cluster, and the best of them
//! - [`advice`]: other ways to keep copies together
//! - [`batch`]: the batch from which on larger ones save no steps
//! - [`bill`]: days, dollars, energy, failures
//! - [`risk`]: what failures may cost beyond their mean
//! - [`validate`]: predictions beside published runs, and the fit of calibrations

pub mod hardware;
pub mod layout;
pub mod model;

pub mod calibration;
pub mod memory;
pub mod time;

pub mod advice;
pub mod batch;
pub mod bill;
pub mod risk;
pub mod search;
pub mod validate;

pub use calibration::Calibration;
pub use layout::{Job, Layout};
