//! What a run will cost, from the same schedules that the engine runs.
//!
//! Everything here is pure: no clock, no file, no tensor; the same arguments give the same answer.
//!
//! # Layout
//! - [`collective`]: collectives by closed form, one a file, beside the price of their schedules
//! - [`pipeline`]: pipelines by closed form; [`timeline`]: any pipeline, played event by event
//! - [`memory`]: what every rank will hold, and whether that fits
//! - [`traffic`]: what every rank will move, counted from the schedules
//! - [`time`]: how long a step takes on a machine that was measured
//! - [`forecast`]: all of that for a recipe
//! - [`overlap`]: communication beside backward; [`scaling`]: what more workers bring
//! - [`stability`]: whether descent converges when gradients come late
//!
//! # Example
//! ```
//! use lockstep_config::units::Seconds;
//! use lockstep_planner::timeline::{Pace, StagePace, draw, play};
//! use lockstep_schedule::pipeline::{Kind, Shape, build};
//!
//! let shape = Shape { num_devices: 2, num_chunks: 1, num_microbatches: 3 };
//! let one = Seconds(1.0);
//! let stage = StagePace { forward: one, input_grad: one, weight_grad: one };
//! let pace = Pace::even(shape, stage, Seconds(0.0));
//! let timeline = play(&build(Kind::OneFOneB, shape)?, &pace).expect("it ends");
//! assert_eq!(draw(&timeline, 39), "\
//! 0  F0 F1 ······B0─── F2 B1─── ···B2───
//! 1  ···F0 B0─── F1 B1─── F2 B2─── ······
//! ");
//! # Ok::<(), lockstep_schedule::pipeline::NoSuchPipeline>(())
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
