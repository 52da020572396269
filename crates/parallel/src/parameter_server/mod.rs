//! Parameter servers (Li et al. 2014): some processes hold the weights, others compute gradients.
//!
//! The parameters are cut into one shard per server, and each server steps its shard with its own
//! optimizer ([`shard`]). A worker *pulls* all shards, computes the gradient of its part of the
//! batch, and *pushes* it, shard by shard. That moves 2 S bytes in and out of a worker per step,
//! and n times as many through the servers: an all-reduce divides that load among all ranks,
//! servers bear it alone, and more servers bear less each. In return workers need not wait for each
//! other: the servers' policy sets how long they wait and how stale a gradient may be.
//!
//! Every pull returns its version, and every push names the version it was computed from. A worker
//! contacts servers one after the other, always in the same order, so two workers cannot block each
//! other at two servers. Once all servers let it read, it pulls the weights part by part in the
//! background, in the order of forward; gradients leave part by part as backward fills them, and a
//! server applies them when the worker's push confirms that they are finite.
//!
//! - [`shard`]: versions, staleness and blocking; [`policy`]: their rules; `pending_update`:
//!   aggregation of several gradients; [`push_counts`]: outcomes of pushes; `oscillation`:
//!   detection of a bound that is too large
//! - `server_process`: a server by the recipe; [`server_loop`]: its request loop; `replication`:
//!   primary and backup
//! - `worker_strategy`: what a worker does between steps; `push_report`, `row_report`: counters and
//!   warnings; [`figures`]: those of the summary; `loss_spike`: switch to synchronous steps
//! - `worker_step`: a worker's step; `pull_push`: its requests; [`client`]: its state;
//!   [`repeated_request`]: requests at a backup;
//!   [`failover`]: servers of a shard; [`latency`]: request latencies; [`host_aggregation`]: one
//!   client per host
//! - [`transfer_order`]: which transfers overlap with passes; `part_transfer`: one part in the
//!   background; `served_store`: passes on weights that are still arriving
//! - [`row_table`]: embedding rows by server; [`sparse_pull`]: pulls and pushes of used rows;
//!   `sparse_rows`: their state; [`row_cache`]: rows reused for several steps;
//!   `replicated_rows`: frequent rows on several servers
//! - `compressed_push`: compressed gradients
//! - [`server_state`]: checkpoint state of servers

pub mod client;
mod compressed_push;
pub mod failover;
pub mod figures;
pub mod host_aggregation;
pub mod latency;
mod loss_spike;
mod oscillation;
mod part_transfer;
mod pending_update;
pub mod policy;
mod pull_push;
pub mod push_counts;
mod push_report;
pub mod repeated_request;
mod replicated_rows;
mod replication;
pub mod row_cache;
mod row_report;
pub mod row_table;
mod served_store;
pub mod server_loop;
mod server_process;
pub mod server_state;
pub mod shard;
pub mod sparse_pull;
mod sparse_rows;
pub mod transfer_order;
mod worker_step;
mod worker_strategy;

use lockstep_comm::{Comm, CommError};
use lockstep_mesh::{Group, Rank};
pub use lockstep_telemetry::{RepeatedRequest, RowRequests};

pub use client::{Client, HostGroup};
pub use compressed_push::PushCompression;
pub use failover::LostServer;
pub use figures::{RowFigures, ServerFigures};
pub use policy::{Bound, Policy};
pub use push_counts::PushCounts;
pub use row_table::ShardLayout;
pub(crate) use served_store::ServedStore;
pub use server_loop::{Role, ServeOptions, serve};
pub use shard::Shard;
pub use sparse_rows::SparseRowCounts;
pub use transfer_order::TransferOrder;
pub use worker_step::PullPushPlan;
pub(crate) use worker_strategy::join;

/// Numbers of a request, a reply, and the acknowledgement of a backup, each of eight bytes.
pub(crate) const REQUEST_LEN: usize = Request::NUM_FIELDS;
pub(crate) const REPLY_LEN: usize = Reply::NUM_FIELDS;
pub(crate) const ACKNOWLEDGEMENT_LEN: usize = 1;

/// Parameters, by bucket.
pub type Parts = Vec<Vec<f32>>;

/// Tag of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Request = 1,
    Reply = 2,
    Weights = 3,
    Gradients = 4,
    State = 5,
    Counts = 6,
    /// Row indices and counts.
    Rows = 7,
}

/// Kind of a worker's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// Pull of the weights for a step, once the worker may read.
    Pull = 1,
    /// Push of a gradient.
    Push = 2,
    /// Notice of a skipped step.
    Skip = 3,
    /// Read of the current weights, without a push to follow.
    Read = 4,
    /// Sets the weights.
    Load = 5,
    /// Read of the optimizer state.
    ReadState = 6,
    /// Sets the optimizer state and the number of steps.
    LoadState = 7,
    /// The worker leaves.
    Leave = 8,
    /// Read of the outcomes of the pushes of each worker.
    Count = 9,
    /// Closes the pending update; sent by a primary to its backup.
    Close = 10,
    /// Pull of rows, by their places on the server.
    Rows = 11,
    /// Pull of fresh replicas of other servers' rows.
    RowReplicas = 12,
    /// Store of replicas of other servers' rows.
    StoreRowReplicas = 13,
    /// Pull of the version for a step; the worker pulls its parts one by one.
    PullByParts = 14,
    /// Pull of one part of the version that the worker reads.
    PullPart = 15,
    /// Gradient of one part, which counts with the push that follows.
    PushPart = 16,
}

impl RequestKind {
    const ALL: [Self; 16] = [
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
        Self::RowReplicas,
        Self::StoreRowReplicas,
        Self::PullByParts,
        Self::PullPart,
        Self::PushPart,
    ];

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == number)
    }
}

/// A request on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    kind: RequestKind,
    /// Worker that sent it, also when a primary forwards it to its backup.
    worker: usize,
    /// The worker's step.
    step: u64,
    /// Number of the push, from 1 on, so that none is applied twice; number of updates of a state;
    /// number of rows; number of a part.
    number: u64,
    /// Whether the worker's loss has jumped.
    is_alarm: bool,
}

impl Request {
    const NUM_FIELDS: usize = 5;

    fn of(kind: RequestKind, worker: usize) -> Self {
        Self { kind, worker, step: 0, number: 0, is_alarm: false }
    }

    fn fields(self) -> [u64; Self::NUM_FIELDS] {
        let Self { kind, worker, step, number, is_alarm } = self;
        [kind as u64, worker as u64, step, number, u64::from(is_alarm)]
    }

    /// # Panics
    /// On an unknown kind: all ranks run one program.
    fn from_fields([kind, worker, step, number, alarm]: [u64; Self::NUM_FIELDS]) -> Self {
        let found = RequestKind::from_number(kind);
        let kind = found.unwrap_or_else(|| panic!("worker {worker} sent unknown request {kind}"));
        Self { kind, worker: worker as usize, step, number, is_alarm: alarm == 1 }
    }
}

/// A server's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reply {
    /// Version, count or length, depending on the request.
    number: u64,
    /// First synchronous step, where earlier ones were not.
    switch: Option<u64>,
    /// Whether the server's primary or backup is lost.
    has_lost_peer: bool,
}

impl Reply {
    const NUM_FIELDS: usize = 3;

    fn fields(self) -> [u64; Self::NUM_FIELDS] {
        let switch = self.switch.map_or(0, |step| step + 1);
        [self.number, switch, u64::from(self.has_lost_peer)]
    }

    fn from_fields([number, switch, alone]: [u64; Self::NUM_FIELDS]) -> Self {
        Self { number, switch: switch.checked_sub(1), has_lost_peer: alone == 1 }
    }
}

/// Process groups of a run with parameter servers.
pub struct ServerGroups {
    /// Workers; for a server, servers.
    pub workers: Comm,
    /// Workers that pull and push, one per host group, followed by the servers.
    pub link: Comm,
    /// Workers that pull and push.
    pub pushers: Comm,
    /// Workers of this one's host group; a server is alone.
    pub host_group: Comm,
}

impl ServerGroups {
    /// Splits `comm`: the first `num_workers` ranks work, in host groups of `group_len`, the others
    /// serve. Collective.
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
            host_group: split(groups.chain((num_workers..all).map(|r| vec![r])).collect(), "host")?,
        })
    }

    /// Whether this worker pulls and pushes, for itself or for its host group.
    pub fn pushes(&self) -> bool {
        self.host_group.group_rank() == 0
    }
}
