//! How workers learn together without one lockstep: gossip and servers.

use std::fmt;

use super::{FederatedAttack, FederatedCombine, Recipe, SyncMode};
use crate::units::Seconds;

choices! {
    /// Who averages weights with whom.
    GraphName {
        /// Neighbours on a circle.
        Ring = "ring",
        /// Neighbours on a grid whose edges are joined.
        Torus = "torus",
        /// Those 1, 2, 4, 8, … places away, in both directions.
        Exponential = "exponential",
        /// As many as `sync.degree` says, drawn by chance.
        RandomRegular = "random-regular",
        /// Everybody.
        Complete = "complete",
        /// The next on a circle, one way.
        DirectedRing = "directed-ring",
        /// One a step, one way, 1, 2, 4, … places away in turn.
        OnePeer = "one-peer",
        /// The next on a circle and some drawn by chance, one way.
        RandomDirected = "random-directed",
    }
}

impl GraphName {
    /// The graphs whose number of neighbours is a choice.
    pub(crate) const WITH_DEGREE: &'static [&'static str] = &["random-regular", "random-directed"];

    /// Whether what goes one way need not come back.
    pub const fn is_directed(self) -> bool {
        matches!(self, Self::DirectedRing | Self::OnePeer | Self::RandomDirected)
    }
}

/// How gossip goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Gossip {
    /// Who averages with whom.
    pub graph: GraphName,
    /// How many others each worker sends to, where that is a choice.
    pub degree: usize,
}

choices! {
    /// Who waits for whom where servers hold the weights.
    Consistency {
        /// Everybody for everybody, in every step.
        Sync = "sync",
        /// Nobody.
        Async = "async",
        /// Those who are ahead, so that no gradient is too stale.
        Bounded = "bounded",
        /// Everybody for enough of the others, or for so long.
        Elastic = "elastic",
    }
}

choices! {
    /// What becomes of who would be too stale.
    Beyond {
        /// It waits before it reads.
        Block = "block",
        /// Nobody waits; what is too stale is thrown away.
        Discard = "discard",
    }
}

choices! {
    /// What the bound of staleness follows.
    StalenessRule {
        /// Nothing.
        Fixed = "fixed",
        /// Time, on a straight line.
        Linear = "linear",
        /// Rate and curvature.
        Curvature = "curvature",
        /// Gradients that swing: it is halved then.
        Oscillation = "oscillation",
    }
}

choices! {
    /// What becomes of a gradient whose update was closed without it.
    Late {
        /// It counts in the next.
        Next = "next",
        /// It is thrown away.
        Discard = "discard",
    }
}

choices! {
    /// How much less a gradient counts that has missed updates.
    StalenessWeight {
        /// Not at all.
        None = "none",
        /// By one over one and what it has missed.
        Inverse = "inverse",
        /// By a factor for every update.
        Exponential = "exponential",
    }
}

choices! {
    /// How rows are dealt to servers.
    RowsBy {
        /// By a hash of their number.
        Hash = "hash",
        /// In ranges of numbers.
        Range = "range",
    }
}

/// How the rows of the embedding travel to and from servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Whether only those that a step touches travel.
    pub sparse: bool,
    /// Which server holds which.
    pub by: RowsBy,
    /// How many rows that are often touched a worker keeps.
    pub hot: usize,
    /// For how many steps it does.
    pub hot_every: u64,
    /// How many rows that are often touched several servers answer for.
    pub spread: usize,
    /// The most updates that what others than the holder answer may have missed.
    pub spread_age: u64,
}

impl Rows {
    /// How rows are dealt, where they travel one by one.
    pub fn dealt(&self) -> Option<RowsBy> {
        self.sparse.then_some(self.by)
    }
}

/// How servers hold the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// How many there are.
    pub count: usize,
    /// How many more processes hold what each of them holds.
    pub replicas: usize,
    /// Who waits for whom.
    pub consistency: Consistency,
    /// The most updates that a gradient may have missed, where that is bounded.
    pub staleness: u64,
    /// How much less a gradient counts that has missed some.
    pub staleness_weight: StalenessWeight,
    /// The factor, where that is exponential.
    pub staleness_decay: f64,
    /// How many versions behind readers are kept on purpose.
    pub delay: u64,
    /// How the rows of the embedding travel.
    pub rows: Rows,
    /// What becomes of who would be too stale.
    pub beyond: Beyond,
    /// What the bound follows.
    pub staleness_rule: StalenessRule,
    /// The bound at the end, where it follows time.
    pub final_staleness: u64,
    /// The largest curvature of the loss, where the bound follows that.
    pub curvature: f64,
    /// What is divided by rate and curvature.
    pub staleness_constant: f64,
    /// How many gradients close an update, where not all are waited for.
    pub quorum: usize,
    /// How long an update waits for more once one has come; 0 for ever.
    pub close_after: Seconds,
    /// What becomes of a gradient whose update was closed without it.
    pub late: Late,
    /// The share of the run after which all wait for all.
    pub switch_after: f64,
    /// How many times its mean a loss is when all wait for all from then on; 0 never.
    pub spike: f64,
    /// Whether servers forget their optimizer's state when a run goes on from a checkpoint.
    pub resets_momentum: bool,
    /// How the gradients of an update become one.
    pub combine: FederatedCombine,
    /// How many workers may lie without harm.
    pub liars: usize,
    /// The most that a worker's gradient may be long at a server; 0 does not limit.
    pub gradient_clip: f64,
    /// How many workers lie, the last ones, to see what becomes of it.
    pub byzantine: usize,
    /// How they lie.
    pub attack: FederatedAttack,
}

impl Recipe {
    /// Into how many parts servers divide the weights.
    pub fn num_servers(&self) -> usize {
        if self.sync.mode == SyncMode::ParameterServer { self.sync.server.count } else { 0 }
    }

    /// How many pull from servers and push to them: the first worker of every group, or all.
    pub fn num_pushers(&self) -> usize {
        self.run.workers / self.sync.group_workers.max(1)
    }

    /// Processes besides the workers that hold the weights, or hold them once more.
    pub fn num_server_ranks(&self) -> usize {
        self.num_servers() * (1 + self.sync.server.replicas)
    }

    /// The ranks that hold the same part of the weights, so that all but one of each may be lost;
    /// none where nothing is held twice.
    pub fn stand_ins(&self) -> Vec<Vec<usize>> {
        let (workers, servers, copies) =
            (self.run.workers, self.num_servers(), 1 + self.sync.server.replicas);
        let holders = |server| (0..copies).map(|copy| workers + copy * servers + server).collect();
        if copies == 1 { Vec::new() } else { (0..servers).map(holders).collect() }
    }

    /// How many ranks a life of the run may have, ascending; see [`Self::worker_sizes`].
    pub fn rank_sizes(&self) -> Vec<usize> {
        let servers = self.num_server_ranks();
        self.worker_sizes().into_iter().map(|workers| workers + servers).collect()
    }

    /// Workers and servers: the ranks of the run, in this order.
    pub fn num_ranks(&self) -> usize {
        self.run.workers + self.num_server_ranks()
    }
}
