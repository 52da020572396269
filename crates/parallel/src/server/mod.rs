//! Parameter servers: some processes hold the weights, others compute gradients.
//!
//! The parameters are cut into as many ranges as there are servers, and each is stepped where it
//! lies, by the optimizer of that server ([`shard`]). A worker *pulls* all ranges, computes the
//! gradient of its part of the batch, and *pushes* it, range by range. That moves 2 S bytes in and
//! out of a worker in a step, and all of n workers' through the servers: what an all-reduce divides
//! among all, servers bear alone; more servers bear less each. In return nobody needs to wait: how
//! long workers wait for each other, and how stale a gradient may be, is the servers' policy.
//!
//! Every pull says which version it is of, and every push which version it was computed from. A
//! worker asks servers one after the other, always in the same order, so two workers never hold up
//! each other at two servers.
//!
//! - [`shard`]: versions, staleness, who waits
//! - `serve`: a server's life
//! - [`client`]: a worker's side of it
//! - [`rows`]: a table whose rows travel one by one; [`touched`]: a worker's side of that; [`hot`]:
//!   rows that it does not ask for in every step
//! - [`state`]: what is saved of servers

pub mod client;
pub mod hot;
pub mod rows;
pub mod serve;
pub mod shard;
pub mod state;
pub mod touched;

use crate::buckets::Buckets;
use lockstep_comm::{Comm, CommError};
use lockstep_mesh::{Group, Rank};
use lockstep_model::Blueprint;

pub use client::Client;
pub use rows::Holdings;
pub use serve::serve;
pub use shard::{Policy, Shard};
pub use touched::RowCounts;

/// What a message is about; the tag it travels under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Request = 1,
    Answer = 2,
    Weights = 3,
    Gradients = 4,
    State = 5,
    /// Which rows, and how many.
    Rows = 6,
}

/// What a worker asks for: the first number of a request. The second is its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// The weights for a step, once its turn has come.
    Pull = 1,
    /// To take a gradient.
    Push = 2,
    /// To take note that there is none.
    Skip = 3,
    /// The weights as they are; the worker will not answer with a gradient.
    Read = 4,
    /// To take these weights for its own.
    Load = 5,
    /// The optimizer's state.
    ReadState = 6,
    /// To take this state for its own, after so many steps.
    LoadState = 7,
    /// Nothing more.
    Leave = 8,
    /// So many rows, in the place of the step.
    Rows = 9,
}

impl Ask {
    const ALL: [Self; 9] = [
        Self::Pull,
        Self::Push,
        Self::Skip,
        Self::Read,
        Self::Load,
        Self::ReadState,
        Self::LoadState,
        Self::Leave,
        Self::Rows,
    ];

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|ask| *ask as u64 == number)
    }
}

/// A model in as few buckets as can be, cut into a part for every server.
pub fn ranges(blueprint: &Blueprint, num_servers: usize) -> Buckets {
    Buckets::new(blueprint, usize::MAX, num_servers)
}

/// All members once more, for pulls and pushes, and the first `num_workers` of them, or the others,
/// by themselves. All members ask together.
pub fn groups(comm: &Comm, num_workers: usize) -> Result<(Comm, Comm), CommError> {
    let all = comm.num_members();
    let each: Vec<_> = (0..all).map(|rank| rank..rank + 1).collect();
    let group = |ranks: std::ops::Range<usize>| Group::new(ranks.map(Rank).collect());
    let parts = [group(0..num_workers), group(num_workers..all)];
    Ok((comm.summing(&each, "servers")?, comm.split(&parts, "workers")?))
}
