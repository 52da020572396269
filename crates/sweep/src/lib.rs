//! Hyperparameter search: grid, random and successive halving, with a resumable result folder.
//!
//! The crate decides which runs a sweep consists of, in which order they start, which of them
//! continue and how they rank. `lockstep sweep` and `lockstep bench methods` start the processes
//! and print the results.
//!
//! # Layout
//! - [`search_space`]: values of each key; grid and random combinations
//! - [`halving`]: successive halving
//! - [`plan`]: the runs of a sweep and the checks before they start
//! - [`pool`]: a bounded number of jobs at a time
//! - [`outcome`]: result of one run; [`metric`]: the figure that ranks runs
//! - [`store`]: the folder of a sweep, from which a killed sweep resumes
//! - [`ranking`]: runs in the order of their results
//!
//! # Example
//! ```
//! use lockstep_sweep::search_space::{Axis, grid};
//!
//! let axes = ["optim.lr=1e-3,1e-2", "train.batch=8,16"].map(|text| Axis::parse(text).unwrap());
//! let choices = grid(&axes).unwrap();
//! assert_eq!(choices[1], ["1e-3", "16"]);
//! ```

pub mod error;
pub mod halving;
pub mod metric;
pub mod outcome;
pub mod plan;
pub mod pool;
pub mod ranking;
pub mod search_space;
pub mod store;

pub use error::SweepError;
