//! Parameter servers: consistency, staleness, row sharding and replication.

use std::fmt;

use super::{AggregationRule, ByzantineAttack, Recipe, SyncMode};
use crate::units::Seconds;

choices! {
    /// Consistency model of the parameter servers.
    Consistency {
        /// Bulk synchronous: every update has the gradients of all workers.
        Sync = "sync",
        /// Asynchronous: every gradient is applied on arrival.
        Async = "async",
        /// Stale synchronous parallel (Ho et al. 2013): staleness is bounded.
        Bounded = "bounded",
        /// An update closes with a quorum of gradients or after a timeout.
        Elastic = "elastic",
    }
}

choices! {
    /// Treatment of gradients beyond the staleness bound.
    StaleGradients {
        /// The worker waits before it pulls.
        Block = "block",
        /// No worker waits; the server discards the gradient.
        Discard = "discard",
    }
}

choices! {
    /// How the staleness bound changes during the run.
    StalenessRule {
        /// Constant.
        Fixed = "fixed",
        /// Linear in the step.
        Linear = "linear",
        /// Inverse to learning rate times curvature.
        Curvature = "curvature",
        /// Halved when successive gradients oscillate.
        Oscillation = "oscillation",
    }
}

choices! {
    /// Treatment of a gradient that arrives after its update was closed.
    LateGradients {
        /// Counted in the update that is open.
        Next = "next",
        /// Discarded.
        Discard = "discard",
    }
}

choices! {
    /// Weight of a gradient of staleness t.
    StalenessWeight {
        /// 1.
        None = "none",
        /// 1 / (1 + t).
        Inverse = "inverse",
        /// `sync.staleness_decay` to the power of t.
        Exponential = "exponential",
    }
}

choices! {
    /// How embedding rows are sharded over servers.
    RowSharding {
        /// By a hash of the row index.
        Hash = "hash",
        /// In contiguous ranges.
        Range = "range",
    }
}

/// Transfer of embedding rows to and from the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingRows {
    /// Whether pulls and pushes carry only the rows of the step's tokens.
    pub sparse: bool,
    /// How rows are sharded over servers.
    pub sharding: RowSharding,
    /// Number of frequent rows that a worker caches.
    pub cache: usize,
    /// Number of steps between two refreshes of a cached row.
    pub cache_every: u64,
    /// Number of frequent rows that all servers replicate.
    pub replicated: usize,
    /// Maximum number of updates that a replicated row may have missed.
    pub replicated_age: u64,
}

impl EmbeddingRows {
    /// The row sharding, if transfers are sparse.
    pub fn sparse_sharding(&self) -> Option<RowSharding> {
        self.sparse.then_some(self.sharding)
    }
}

/// Settings of the parameter servers.
#[derive(Debug, Clone, PartialEq)]
pub struct Server {
    /// Number of servers.
    pub count: usize,
    /// Number of replicas of each server.
    pub replicas: usize,
    /// Consistency model.
    pub consistency: Consistency,
    /// Staleness bound (`bounded`).
    pub staleness: u64,
    /// Weight of stale gradients.
    pub staleness_weight: StalenessWeight,
    /// Decay per missed update (`exponential`).
    pub staleness_decay: f64,
    /// Number of versions by which pulls are delayed on purpose.
    pub read_delay: u64,
    /// Transfer of embedding rows.
    pub rows: EmbeddingRows,
    /// Treatment of gradients beyond the bound.
    pub stale_gradients: StaleGradients,
    /// How the bound changes.
    pub staleness_rule: StalenessRule,
    /// Bound at the end of the run (`linear`).
    pub final_staleness: u64,
    /// Largest curvature of the loss (`curvature`).
    pub curvature: f64,
    /// Numerator of the bound (`curvature`).
    pub staleness_constant: f64,
    /// Number of gradients that close an update (`elastic`).
    pub quorum: usize,
    /// Time after its first gradient at which an update is closed; 0 never.
    pub quorum_timeout: Seconds,
    /// Treatment of gradients whose update is closed (`elastic`).
    pub late_gradients: LateGradients,
    /// Fraction of the run after which updates are synchronous.
    pub switch_to_sync_after: f64,
    /// Loss over its running mean at which updates become synchronous; 0 never.
    pub switch_on_loss_spike: f64,
    /// Whether servers reset the optimizer state when a run resumes from a checkpoint.
    pub resets_momentum: bool,
    /// Aggregation rule of an update.
    pub aggregation: AggregationRule,
    /// Number of Byzantine workers that the rule tolerates.
    pub assumed_byzantine: usize,
    /// Norm to which the server clips each worker's gradient; 0 does not clip.
    pub gradient_clip: f64,
    /// Number of simulated Byzantine workers, the last ranks.
    pub byzantine: usize,
    /// Attack of the simulated Byzantine workers.
    pub attack: ByzantineAttack,
}

impl Recipe {
    /// Number of servers, each with one shard of the weights.
    pub fn num_servers(&self) -> usize {
        if self.sync.mode == SyncMode::ParameterServer { self.sync.server.count } else { 0 }
    }

    /// Number of workers that pull and push: the first of every group, or all.
    pub fn num_pushers(&self) -> usize {
        self.run.workers / self.sync.group_workers.max(1)
    }

    /// Number of server processes, replicas included.
    pub fn num_server_ranks(&self) -> usize {
        self.num_servers() * (1 + self.sync.server.replicas)
    }

    /// Groups of ranks with the same shard of the weights; the run survives the loss of all but
    /// one rank of a group. Empty without replicas.
    pub fn server_replica_groups(&self) -> Vec<Vec<usize>> {
        let (workers, servers, copies) =
            (self.run.workers, self.num_servers(), 1 + self.sync.server.replicas);
        let group = |server| (0..copies).map(|copy| workers + copy * servers + server).collect();
        if copies == 1 { Vec::new() } else { (0..servers).map(group).collect() }
    }

    /// World sizes that an attempt of the run may have, ascending: [`Self::worker_counts`] plus the
    /// servers.
    pub fn rank_counts(&self) -> Vec<usize> {
        let servers = self.num_server_ranks();
        self.worker_counts().into_iter().map(|workers| workers + servers).collect()
    }

    /// Number of ranks: workers first, then servers.
    pub fn num_ranks(&self) -> usize {
        self.run.workers + self.num_server_ranks()
    }
}
