//! Global rank of a worker.
//!
//! Within a group a worker also has a *group rank*, a plain index. The two are different types, so
//! that rank 3 of a group of four cannot be mistaken for rank 3 of a thousand.

use std::fmt;

/// Global rank of a worker, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub usize);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
