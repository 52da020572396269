//! The number of a worker in the whole run.
//!
//! Inside a group a worker also has a *position*, a plain index. The two are different types, so
//! that a position in a group of four cannot be mistaken for one of a thousand workers.

use std::fmt;

/// A worker's number in the whole run, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
