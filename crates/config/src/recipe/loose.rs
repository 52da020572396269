//! How workers learn together without one lockstep: gossip and servers.

use std::fmt;

use super::{Recipe, SyncMode};

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
}

impl Recipe {
    /// Processes besides the workers that hold the weights.
    pub fn num_servers(&self) -> usize {
        if self.sync.mode == SyncMode::ParameterServer { self.sync.server.count } else { 0 }
    }

    /// How many ranks a life of the run may have, ascending; see [`Self::worker_sizes`].
    pub fn rank_sizes(&self) -> Vec<usize> {
        let servers = self.num_servers();
        self.worker_sizes().into_iter().map(|workers| workers + servers).collect()
    }

    /// Workers and servers: the ranks of the run, in this order.
    pub fn num_ranks(&self) -> usize {
        self.run.workers + self.num_servers()
    }
}
