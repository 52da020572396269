//! Synchronization modes: the rule by which workers agree on the weights.

use crate::topic::choices;

choices! {
    /// How workers synchronize.
    SyncMode {
        /// All-reduce of the gradients in every step.
        AllReduce = "all-reduce",
        /// Local steps, then an average of the weights (local SGD, `DiLoCo`).
        LocalSgd = "local-sgd",
        /// Local steps of clients that keep their data; a coordinator aggregates their updates.
        Federated = "federated",
        /// Averaging with graph neighbours after every step.
        Gossip = "gossip",
        /// Parameter servers hold the weights; workers pull them and push gradients.
        ParameterServer = "parameter-server",
        /// Threads of one worker update shared memory without locks (Recht et al. 2011).
        Hogwild = "hogwild",
    }
}
