//! Predictions beside published runs.
//!
//! # Layout
//! - [`csv`]: rows of a file
//! - [`row`]: a published run, or why it cannot be predicted
//! - [`mod@score`]: errors of a file: step time, memory, verdicts, regret
//! - [`fit`]: constants of a type of device, from all its rows together

pub mod csv;
pub mod fit;
mod programs;
pub mod row;
pub mod score;

pub use row::Published;
pub use score::{Outcome, Score, score};
