//! Oracles, tolerances and small recipes for tests of the whole engine; never shipped.
//!
//! # Layout
//! - [`tolerance`]: when two results count as equal.
//! - [`recipes`]: small recipes that cover what bits may depend on.
//! - [`products`]: every way to divide the work among a few workers.
//! - [`runs`]: runs of the real trainer in folders that go away.
//! - [`moved`]: the bytes that a run has moved, beside those that were predicted.
//! - [`texts`]: small texts, tokenizers and shards.
//! - [`golden`]: what PyTorch computes, from files.
//! - [`allocations`]: a global allocator that counts.
//!
//! The tests themselves are in `tests`, one file a question.
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

pub mod recipes;

pub mod products;

pub mod runs;

pub mod moved;

pub mod texts;

pub mod golden;

pub mod allocations;

pub use golden::Golden;
pub use runs::{Outcome, Runs};
pub use tolerance::Tolerance;
