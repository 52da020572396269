//! Oracles, tolerances and small recipes for tests of the whole engine; never shipped.
//!
//! # Layout
//! - [`tolerance`]: exact and approximate equality of results.
//! - [`devices`]: devices that tests run on.
//! - [`recipes`]: small recipes that cover every dependence of the bits.
//! - [`layouts`]: every layout of a few workers, and a pairwise-covering subset.
//! - [`runs`]: runs of the real trainer in temporary folders.
//! - [`traffic`]: bytes sent by a run against the planner's prediction.
//! - [`trace`]: a checker of trace files.
//! - [`corpora`]: small corpora, tokenizers and token shards.
//! - [`golden`]: reference results of PyTorch, from files.
//! - [`allocations`]: a global allocator that counts.
//!
//! The tests are in `tests/suite`, one module a topic, linked as one binary. Tests that measure the
//! whole process are binaries of their own.
//!
//! # Example
//! ```
//! use lockstep_config::Dtype;
//! use lockstep_harness::Tolerance;
//!
//! let (found, expected) = ([1.0f32.next_up(), 4.0], [1.0, 4.0]);
//! Tolerance::Close(Dtype::F32, 2).assert("sum", &found, &expected);
//! let mismatch = Tolerance::Exact.compare("sum", &found, &expected).unwrap_err();
//! assert_eq!((mismatch.index, mismatch.ulps), (0, 1));
//! ```

pub mod tolerance;

pub mod devices;

pub mod recipes;

pub mod layouts;

pub mod runs;

pub mod traffic;

pub mod trace;

pub mod corpora;

pub mod golden;

pub mod allocations;

pub use golden::Golden;
pub use runs::{Outcome, Runs};
pub use tolerance::Tolerance;
