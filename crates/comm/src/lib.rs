//! Collective communication between ranks: schedules, run over threads, shared memory or TCP.
//!
//! # Layout
//! - [`comm`]: one rank's end of a group; `calls` has its collective operations, `starts` the same
//!   in the background, `parts` with parts of any lengths, `messages` from rank to rank
//! - [`sparse`]: sums of tables of which every rank has some rows
//! - [`buffer`], [`window`]: memory that other ranks reach
//! - [`element`]: the types that travel and how they are reduced
//! - [`signature`]: what a call is, so that a different one on another rank is noticed
//! - [`error`]: what can go wrong; [`verdict`]: who is to blame, the same on every rank that is
//!   left; [`label`]: what a call is for
//! - `recorder`: the last calls of every rank
//! - `planner`, `plan`: a schedule made ready to run
//! - `engine`: runs it, `background` on a thread of its own; `kernel` is its arithmetic,
//!   `workspace` its memory, `flags` how ranks meet in shared memory
//! - [`transport`]: the wires
//! - [`counters`]: what was moved; [`limit`]: what could be moved at best
//!
//! The library has no algorithm of its own: who sends, adds and copies what is a
//! [`Schedule`](lockstep_schedule::Schedule), plain data that was proven before, and the engine
//! does what it says.
//!
//! # Example
//! ```
//! use lockstep_comm::{Comm, CommError, Options, Reduction};
//!
//! let world = lockstep_platform::real();
//! let ends = Comm::threads(&world, 3, &Options::default())?;
//! std::thread::scope(|scope| {
//!     for comm in &ends {
//!         scope.spawn(|| -> Result<(), CommError> {
//!             // Every rank brings its number; every rank gets the sum.
//!             let mut buffer = comm.allocate::<f32>(1000)?;
//!             buffer.fill(comm.group_rank() as f32);
//!             comm.all_reduce(&mut buffer, Reduction::Sum)?;
//!             assert!(buffer.iter().all(|&x| x == 3.0));
//!             Ok(())
//!         });
//!     }
//! });
//! # Ok::<(), CommError>(())
//! ```

pub mod comm;

mod collectives;
mod nonblocking;
mod point_to_point;
mod vector_collectives;

pub mod sparse;

pub mod window;

pub mod buffer;
pub mod counters;
pub mod element;
pub mod error;
pub mod label;
pub mod signature;
pub mod verdict;

mod background;
mod call_buffers;
mod channel;
mod endpoint;
mod engine;
mod flags;
#[doc(hidden)]
pub mod hostile;
mod kernel;
mod membership;
mod prepared_schedule;
mod probe;
mod recorder;
mod schedule_cache;
mod workspace;

pub mod limit;
pub mod transport;

pub use background::Handle;
pub use buffer::ArenaBuffer;
pub use comm::{Comm, Options};
pub use counters::{Count, Counters};
pub use element::{Dtype, Element, Reduction};
pub use error::CommError;
pub use half::{bf16, f16};
pub use label::Label;
pub use nonblocking::{AllToAllVOutput, Owned};
pub use prepared_schedule::Traffic;
pub use probe::LinkMeasurements;
pub use schedule_cache::Forecast;
pub use signature::Signature;
pub use sparse::{Rows, Table};
pub use verdict::{Cause, Verdict};
pub use window::{Window, WindowLocation};
