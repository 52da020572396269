//! Collective communication between ranks: schedules, run over threads, shared memory or TCP.
//!
//! # Layout
//! - [`comm`]: the communicator of a rank in a group; `collectives` has its blocking collectives,
//!   `vector_collectives` those with parts of any lengths, `nonblocking` their background variants,
//!   `point_to_point` messages and signals
//! - [`sparse`]: sparse all-reduce of table rows; [`window`]: one-sided put and get
//! - [`buffer`]: buffers in shared memory; [`element`]: element types and reductions
//! - [`signature`]: what must be equal on all ranks of a call; [`label`]: the purpose of a call
//! - [`error`]: errors; [`verdict`]: the agreement on a failed rank
//! - `recorder`: the flight recorder
//! - `schedule_cache`, `prepared_schedule`: selection and preparation of schedules
//! - `probe`: link measurements and autotuning
//! - `engine`: runs prepared schedules, with `kernel` (reductions), `workspace` (memory) and
//!   `flags` (synchronization in shared memory); `background` runs calls on progress threads
//! - `segment_window`: windows on the memory of ranks
//! - `endpoint`: a rank with its `channel`s; `membership`: its place in a group
//! - [`transport`]: threads, shared memory and TCP
//! - [`counters`]: calls and traffic; [`limit`]: the lower bound of an all-reduce
//!
//! The crate has no algorithm of its own: a verified [`Schedule`](lockstep_schedule::Schedule) says
//! which rank sends, adds and copies what, and the engine executes it.
//!
//! # Example
//! ```
//! use lockstep_comm::{Comm, CommError, Options, Reduction};
//!
//! let world = lockstep_platform::real();
//! let comms = Comm::threads(&world, 3, &Options::default())?;
//! std::thread::scope(|scope| {
//!     for comm in &comms {
//!         scope.spawn(|| -> Result<(), CommError> {
//!             // Every rank contributes its rank; every rank gets the sum.
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
mod segment_window;
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
