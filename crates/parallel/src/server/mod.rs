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
//! - [`shard`]: versions, staleness, who waits; [`policy`]: by which rules; `update`: several
//!   gradients as one; `oscillation`: when a bound is too large
//! - `serve`: a server's life; `copy`: that of one that holds the same and stands in for it
//! - [`client`]: a worker's side of it; [`holders`]: whom to ask; [`latency`]: how long that took;
//!   [`near`]: workers that do it together
//! - [`rows`]: a table whose rows travel one by one; [`touched`]: a worker's side of that; [`hot`]:
//!   rows that it does not ask for in every step; `spread`: rows that several servers answer for
//! - `squeeze`: gradients in fewer bytes
//! - [`state`]: what is saved of servers

pub mod client;
mod copy;
pub mod holders;
pub mod hot;
pub mod latency;
pub mod near;
mod oscillation;
pub mod policy;
pub mod rows;
pub mod serve;
pub mod shard;
mod spread;
mod squeeze;
pub mod state;
pub mod touched;
mod update;

use crate::buckets::Buckets;
use lockstep_comm::{Comm, CommError};
use lockstep_mesh::{Group, Rank};
use lockstep_model::Blueprint;

pub use client::Client;
pub use holders::Loss;
pub use near::Near;
pub use policy::{Bound, Policy};
pub use rows::Holdings;
pub use serve::{Part, Terms, serve};
pub use shard::Shard;
pub use squeeze::Squeeze;
pub use touched::RowCounts;

/// What a message is about; the tag it travels under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Request = 1,
    Answer = 2,
    Weights = 3,
    Gradients = 4,
    State = 5,
    Counts = 6,
    /// Which rows, and how many.
    Rows = 7,
}

/// What a worker asks for.
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
    /// How many pushes of each worker it has taken.
    Count = 9,
    /// To close the update with those who have come: what a server tells its copy.
    Close = 10,
    /// So many rows, by their places on the server.
    Rows = 11,
    /// So many rows of other servers, where it has copies that are new enough.
    Copies = 12,
    /// To keep copies of so many rows of other servers.
    LeaveCopies = 13,
}

impl Ask {
    const ALL: [Self; 13] = [
        Self::Pull,
        Self::Push,
        Self::Skip,
        Self::Read,
        Self::Load,
        Self::ReadState,
        Self::LoadState,
        Self::Leave,
        Self::Count,
        Self::Close,
        Self::Rows,
        Self::Copies,
        Self::LeaveCopies,
    ];

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|ask| *ask as u64 == number)
    }
}

/// What a worker asks for, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    ask: Ask,
    /// Whose it is: a server that passes it on to its copy says whom it is from.
    worker: usize,
    /// The worker's step.
    step: u64,
    /// Of a push, which of the worker's it is, from 1 on, so that none is taken twice; of a state,
    /// how many updates it has seen; of rows, how many.
    number: u64,
    /// Whether the worker's loss has jumped.
    is_alarm: bool,
}

impl Request {
    const NUM_WORDS: usize = 5;

    fn of(ask: Ask, worker: usize) -> Self {
        Self { ask, worker, step: 0, number: 0, is_alarm: false }
    }

    fn words(self) -> [u64; Self::NUM_WORDS] {
        let Self { ask, worker, step, number, is_alarm } = self;
        [ask as u64, worker as u64, step, number, u64::from(is_alarm)]
    }

    /// # Panics
    /// When it asks for nothing that there is: all ends are of one program.
    fn from_words([ask, worker, step, number, alarm]: [u64; Self::NUM_WORDS]) -> Self {
        let found = Ask::from_number(ask);
        let ask = found.unwrap_or_else(|| panic!("worker {worker} asked for {ask}"));
        Self { ask, worker: worker as usize, step, number, is_alarm: alarm == 1 }
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    /// A version, a staleness or a count, as was asked for.
    number: u64,
    /// Whether a push was thrown away.
    is_discarded: bool,
    /// The step from which on all wait for all, where they did not before.
    switch: Option<u64>,
    /// Whether the one that held the same is gone.
    is_alone: bool,
}

impl Answer {
    const NUM_WORDS: usize = 4;

    fn words(self) -> [u64; Self::NUM_WORDS] {
        let switch = self.switch.map_or(0, |step| step + 1);
        [self.number, u64::from(self.is_discarded), switch, u64::from(self.is_alone)]
    }

    fn from_words([number, discarded, switch, alone]: [u64; Self::NUM_WORDS]) -> Self {
        let (is_discarded, is_alone) = (discarded == 1, alone == 1);
        Self { number, is_discarded, switch: switch.checked_sub(1), is_alone }
    }
}

/// A model in as few buckets as can be, cut into a part for every server.
pub fn ranges(blueprint: &Blueprint, num_servers: usize) -> Buckets {
    Buckets::new(blueprint, usize::MAX, num_servers)
}

/// A member's ends of the groups of a run with servers.
pub struct Ends {
    /// Workers by themselves; for a server, servers.
    pub workers: Comm,
    /// Those that pull and push, the first worker of every group, and servers behind them.
    pub link: Comm,
    /// Those that pull and push, by themselves.
    pub pushers: Comm,
    /// The workers of this one's group; a server is alone.
    pub near: Comm,
}

impl Ends {
    /// Divides all members: the first `num_workers` work, in groups of so many, the others serve.
    /// All of them ask together.
    pub fn new(comm: &Comm, num_workers: usize, group_len: usize) -> Result<Self, CommError> {
        let all = comm.group_size();
        let servers = || (num_workers..all).collect();
        let (pushers, others): (Vec<usize>, Vec<usize>) =
            (0..num_workers).partition(|rank| rank.is_multiple_of(group_len));
        let groups = (0..num_workers).step_by(group_len).map(|f| (f..f + group_len).collect());
        let split = |parts: Vec<Vec<usize>>, name: &str| {
            let parts = parts.into_iter().filter(|part| !part.is_empty());
            let group = |part: Vec<usize>| Group::new(part.into_iter().map(Rank).collect());
            comm.split(&parts.map(group).collect::<Vec<_>>(), name)
        };
        let link = pushers.iter().copied().chain(num_workers..all).collect();
        Ok(Self {
            link: split(vec![link, others.clone()], "servers")?,
            workers: split(vec![(0..num_workers).collect(), servers()], "workers")?,
            pushers: split(vec![pushers, others, servers()], "pushers")?,
            near: split(groups.chain((num_workers..all).map(|r| vec![r])).collect(), "near")?,
        })
    }

    /// Whether this worker pulls and pushes, for itself or for its group.
    pub fn pushes(&self) -> bool {
        self.near.group_rank() == 0
    }
}
