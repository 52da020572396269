//! Forecasts of a run's memory, traffic and step time, from the schedules that the engine runs.
//!
//! Everything here is pure: no clock, no file, no tensor; equal arguments give equal results.
//!
//! # Layout
//! - [`collective`]: collectives in closed form, one per file, tested against their schedules
//! - [`pipeline`]: pipelines in closed form; [`timeline`]: any pipeline, simulated event by event
//! - [`memory`]: memory of every rank, and whether it fits
//! - [`traffic`]: bytes that every rank moves, counted from the schedules
//! - [`time`]: step time on a measured machine
//! - [`forecast`]: all of that for a recipe
//! - [`overlap`]: overlap of communication with backward; [`scaling`]: data-parallel scaling
//! - [`stability`]: convergence of descent with delayed gradients
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

pub mod collective;

pub mod pipeline;
pub use lockstep_timeline as timeline;

pub mod forecast;
pub mod memory;
pub mod time;
pub mod traffic;

pub mod overlap;
pub mod scaling;
pub mod stability;

pub use forecast::Forecast;
