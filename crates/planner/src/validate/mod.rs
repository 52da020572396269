//! Validation: predictions against published runs.
//!
//! # Layout
//! - [`csv`]: rows of a file
//! - [`row`]: a published run, or the reason that it cannot be predicted
//! - `frameworks`: behaviour of published training frameworks
//! - [`mod@reported_memory`]: memory as a framework logs it
//! - [`mod@score`]: errors of a file: step time, memory, out-of-memory verdicts, regret
//! - [`fit`]: calibrations from the rows of all files

pub mod csv;
pub mod fit;
mod frameworks;

pub mod reported_memory;
pub mod row;
pub mod score;

pub use row::PublishedRun;
pub use score::{Outcome, Score, score};
