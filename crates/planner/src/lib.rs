//! One cost model: memory, traffic, time and cost of training, forecast before a run.
//!
//! A recipe on this engine and this machine is counted from the schedules that the engine runs
//! ([`Forecast`]). A layout of a published model on a cluster that is not at hand is priced from an
//! explicit model of matrix products, memory traffic, kernel launches, collectives and pipelines
//! ([`search`]); constants that cannot be derived live in one small file per device type, fitted to
//! published runs and checked against them (`lockstep plan validate`). No constant belongs to a
//! single paper. Everything is pure: no clock, no file, no tensor; equal arguments give equal
//! results.
//!
//! # Layout
//! - [`model`]: models by name, their parameters and FLOPs
//! - [`hardware`]: devices, networks and clusters by name or from a file
//! - [`layout`]: parallel degrees; [`framework`]: behaviour that they do not determine; [`job`]: a
//!   model on a cluster in a layout; [`recipe`]: layouts and models of recipes
//! - [`calibration`]: speeds of this machine and of types of devices
//! - [`collective`]: collectives in closed form, one per file, tested against their schedules
//! - [`pipeline`]: pipelines in closed form; [`timeline`]: any pipeline, simulated event by event
//! - [`memory`]: memory of every rank or of the fullest device, and whether it fits
//! - [`traffic`]: bytes that every rank moves, counted from the schedules
//! - [`time`]: step time; [`overlap`]: overlap of communication with backward; [`scaling`]:
//!   data-parallel scaling
//! - [`forecast`]: all of that for a recipe on this machine; `shorter_steps`: for steps of very
//!   many micro-batches
//! - [`scenario`]: a model on a cluster; [`search`]: every layout of it, and the best of them
//! - [`advice`]: compression, local SGD and stale gradients instead of a plain all-reduce;
//!   [`batch`]: critical batch size; [`stability`]: convergence with delayed gradients
//! - [`bill`]: days, dollars, energy, failures; [`risk`]: distribution of the time lost to failures
//! - [`diagnosis`]: where the time of a run went, why, and what to try next
//! - [`stragglers`]: what recorded steps would take without stragglers, and their cause
//! - [`validate`]: predictions against published runs, and the fit of calibrations
//!
//! # Example
//! ```
//! use lockstep_config::units::Seconds;
//! use lockstep_planner::timeline::{PassTimes, StageTimes, draw, simulate};
//! use lockstep_schedule::pipeline::{Kind, Shape, build};
//!
//! let shape = Shape { num_devices: 2, num_chunks: 1, num_microbatches: 3 };
//! let one = Seconds(1.0);
//! let stage = StageTimes { forward: one, input_grad: one, weight_grad: one };
//! let times = PassTimes::even(shape, stage, Seconds(0.0));
//! let timeline = simulate(&build(Kind::OneFOneB, shape)?, &times).expect("no deadlock");
//! assert_eq!(draw(&timeline, 39), "\
//! 0  F0 F1 ······B0─── F2 B1─── ···B2───
//! 1  ···F0 B0─── F1 B1─── F2 B2─── ······
//! ");
//! # Ok::<(), lockstep_schedule::pipeline::PipelineError>(())
//! ```

pub mod framework;
pub mod hardware;
pub mod job;
pub mod layout;
pub mod model;
pub mod recipe;

pub mod calibration;
pub mod collective;
pub mod pipeline;
pub mod timeline;

pub mod memory;
pub mod overlap;
pub mod scaling;
mod shorter_steps;
pub mod time;
pub mod traffic;

pub mod forecast;
pub mod scenario;
pub mod search;

pub mod advice;
pub mod batch;
pub mod bill;
pub mod diagnosis;
pub mod risk;
pub mod stability;
pub mod stragglers;
pub mod validate;

pub use calibration::Calibration;
pub use forecast::Forecast;
pub use layout::Layout;
